#include "trainer/cpu/training_ops.h"

#include <cstring>
#include <memory>

#include "kernels/embedding/embedding.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/swiglu/swiglu.h"
#include "orchestrator/base/check.h"

namespace orrery::trainer {

using kernels::TensorView;
using model::Batch;
using model::kNoParam;
using model::ParamId;
using model::Stream;
using model::Value;

namespace {

// Rows of logits that exist at a time.
constexpr int64_t kHeadRows = 96;

void AddColumnSums(const TensorView& dy, float* to) {
  for (int64_t t = 0; t < dy.rows; ++t) {
    const float* row = dy.f32(t);
    for (int64_t i = 0; i < dy.cols; ++i) to[i] += row[i];
  }
}

}  // namespace

TrainingOps::TrainingOps(const model::WeightStore* weights, const kernels::RopeTable* rope,
                         bool recompute)
    : RecordingOps(recompute), weights_(*weights), spec_(weights->spec()), rope_(*rope) {}

void TrainingOps::Copy(const TensorView& from, const TensorView& to) {
  for (int64_t t = 0; t < from.rows; ++t) {
    std::memcpy(to.f32(t), from.f32(t), from.cols * sizeof(float));
  }
}

void TrainingOps::Begin(const Batch&, int64_t num_blocks, float* grads) {
  main_.Reset();
  scratch_.Reset();
  BeginTape(grads != nullptr);
  grads_ = grads;
  differing_routing_ = 0;
  const int64_t half = kernels::KvBlocks::NumElements(spec_.heads, num_blocks);
  if (static_cast<int64_t>(kv_memory_.size()) < 2 * half) kv_memory_.resize(2 * half);
  kv_ = {kv_memory_.data(), kv_memory_.data() + half, num_blocks};
}

TensorView TrainingOps::ParamGrad(ParamId id) const {
  const model::Param& p = weights_.layout().params[id];
  return TensorView::Float(grads_ + p.offset, p.rows, p.cols);
}

Value TrainingOps::Embed(ParamId table, const Batch& batch) {
  const Value out = Make(batch.num_tokens(), spec_.hidden_size);
  kernels::Embedding(weights_.View(table), batch.token_ids, out.view);
  Record([this, table, out, ids = batch.token_ids] {
    kernels::EmbeddingGrad(GradOf(out).view, ids, ParamGrad(table));
  });
  return out;
}

std::pair<Value, Value> TrainingOps::AddNorm(const Stream& stream, ParamId weight) {
  const TensorView& x = stream.residual.view;
  const float* w = weights_.Vector(weight);
  const float eps = spec_.rms_norm_eps;
  const bool has_delta = stream.delta.view.data != nullptr;
  const Value sum = has_delta ? Make(x.rows, x.cols) : stream.residual;
  const Value normed = Make(x.rows, x.cols);
  if (has_delta) {
    kernels::AddRmsNorm(x, stream.delta.view, w, eps, weights_.rounding(), sum.view, normed.view);
  } else {
    kernels::RmsNorm(x, w, eps, weights_.rounding(), normed.view);
  }
  Record([=, this] {
    const TensorView dnormed = GradOf(normed).view;
    Gradient& dsum = GradOf(sum);
    kernels::RmsNormGrad(dnormed, sum.view, w, eps, dsum.written, dsum.view,
                         ParamGrad(weight).f32());
    dsum.written = true;
    if (!has_delta) return;
    ShareGradient(dsum.view, stream);
  });
  return {sum, normed};
}

Value TrainingOps::Linear(const Value& x, ParamId weight, ParamId bias) {
  const Value out = Make(x.view.rows, weights_.layout().params[weight].rows);
  kernels::Linear(x.view, weights_.Packed(weight), weights_.Vector(bias), weights_.rounding(),
                  out.view);
  Record([=, this] {
    const TensorView dy = GradOf(out).view;
    Gradient& dx = GradOf(x);
    kernels::LinearGradInput(dy, weights_.View(weight), dx.written, dx.view);
    dx.written = true;
    kernels::LinearGradWeight(dy, x.view, ParamGrad(weight));
    if (bias != kNoParam) AddColumnSums(dy, ParamGrad(bias).f32());
  });
  return out;
}

kernels::QkNormRopeArgs TrainingOps::RopeArgs(int64_t layer, const Batch& batch) const {
  const model::LayerParams& p = weights_.layout().layers[layer];
  kernels::QkNormRopeArgs args;
  args.heads = spec_.heads;
  args.q_norm = weights_.Vector(p.q_norm);
  args.k_norm = weights_.Vector(p.k_norm);
  args.eps = spec_.rms_norm_eps;
  args.rope = &rope_;
  args.positions = batch.positions;
  args.rounding = weights_.rounding();
  return args;
}

Value TrainingOps::QkNormRope(const Value& qkv, int64_t layer, const Batch& batch) {
  const kernels::QkNormRopeArgs args = RopeArgs(layer, batch);
  const model::LayerParams& p = weights_.layout().layers[layer];
  // The gradient of a norm needs its input; a rotation alone may overwrite it.
  const bool in_place = p.q_norm == kNoParam;
  const Value out = in_place ? Adopt(qkv.view) : Make(qkv.view.rows, qkv.view.cols);
  kernels::QkNormRope(qkv.view, args, out.view);
  kernels::WriteKv(out.view, spec_.heads, batch.slots, kv_);
  kernels::CopyKv(batch.copies, spec_.heads, kv_);
  Record([=, this] {
    const TensorView dout = GradOf(out).view;
    kernels::QkNormRopeGrad(qkv.view, args, dout,
                            p.q_norm == kNoParam ? nullptr : ParamGrad(p.q_norm).f32(),
                            p.k_norm == kNoParam ? nullptr : ParamGrad(p.k_norm).f32());
    SetGradient(qkv, dout);
  });
  return out;
}

Value TrainingOps::Attention(const Value& qkv, int64_t, const Batch& batch) {
  const Value out = Make(qkv.view.rows, spec_.heads.q_width());
  const float scale = spec_.attention_scale();
  kernels::Attention(qkv.view, spec_.heads, scale, batch.sequences, kv_, weights_.rounding(),
                     out.view);
  Record([=, this, sequences = batch.sequences] {
    Gradient& dqkv = GradOf(qkv);
    kernels::AttentionGrad(GradOf(out).view, qkv.view, out.view, spec_.heads, scale, sequences,
                           dqkv.view);
    dqkv.written = true;
  });
  return out;
}

Value TrainingOps::SwiGlu(const Value& gate_up) {
  const Value out = Make(gate_up.view.rows, gate_up.view.cols / 2);
  kernels::SwiGlu(gate_up.view, weights_.rounding(), out.view);
  Record([=, this] {
    Gradient& dgate_up = GradOf(gate_up);
    kernels::SwiGluGrad(GradOf(out).view, gate_up.view, dgate_up.view);
    dgate_up.written = true;
  });
  return out;
}

Value TrainingOps::RoutedExperts(const Value& x, int64_t layer, const Batch& batch) {
  const model::LayerParams& p = weights_.layout().layers[layer];
  const kernels::ExpertsShape shape = spec_.experts_shape();
  const TensorView logits = Allocate(lifetime(), x.view.rows, shape.num_experts);
  kernels::Linear(x.view, weights_.Packed(p.router), nullptr, kernels::Rounding::kNone, logits);
  const int64_t slots = x.view.rows * shape.top_k;
  const std::span<const int32_t> replay =
      batch.replay_experts.empty()
          ? batch.replay_experts
          : batch.replay_experts.subspan(spec_.moe_index(layer) * slots, slots);
  const auto routing = std::make_shared<kernels::Routing>();
  const auto state = std::make_shared<kernels::ExpertsState>();
  kernels::RouteTopK(logits, shape, replay, routing.get());
  differing_routing_ += routing->num_differing;
  const Value out = Make(x.view.rows, x.view.cols);
  kernels::RoutedExperts(x.view, *routing, shape, weights_.PackedStack(p.experts_gate_up),
                         weights_.PackedStack(p.experts_down), weights_.rounding(), state.get(),
                         out.view);
  Record([=, this] {
    Gradient& dx = GradOf(x);
    CHECK(!dx.written);
    std::vector<float> dweights(static_cast<size_t>(slots));
    kernels::RoutedExpertsGrad(GradOf(out).view, *routing, shape, weights_.View(p.experts_gate_up),
                               weights_.View(p.experts_down), *state, dx.view, dweights,
                               ParamGrad(p.experts_gate_up), ParamGrad(p.experts_down));
    dx.written = true;
    kernels::RouteTopKGrad(*routing, shape, dweights, logits);  // the logits are not needed again
    kernels::LinearGradInput(logits, weights_.View(p.router), /*accumulate=*/true, dx.view);
    kernels::LinearGradWeight(logits, x.view, ParamGrad(p.router));
  });
  return out;
}

int64_t TrainingOps::Logprobs(const Value& hidden, std::span<const Target> targets,
                              float inverse_temperature, std::span<float> logprobs,
                              std::span<float> entropies) {
  const int64_t n = static_cast<int64_t>(targets.size()), d = hidden.view.cols;
  CHECK_EQ(static_cast<int64_t>(logprobs.size()), n);
  CHECK_EQ(static_cast<int64_t>(entropies.size()), n);
  hidden_ = hidden;
  targets_.assign(targets.begin(), targets.end());
  stats_.resize(targets.size());
  inverse_temperature_ = inverse_temperature;
  std::vector<float> rows(static_cast<size_t>(kHeadRows * d));
  std::vector<float> logits(static_cast<size_t>(kHeadRows * spec_.vocab_size));
  int64_t bad = -1;
  for (int64_t first = 0; first < n; first += kHeadRows) {
    const int64_t count = std::min(kHeadRows, n - first);
    const TensorView x = TensorView::Float(rows.data(), count, d);
    const TensorView z = TensorView::Float(logits.data(), count, spec_.vocab_size);
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(x.f32(i), hidden.view.f32(targets[first + i].row), d * sizeof(float));
    }
    kernels::Linear(x, weights_.Packed(weights_.layout().head), nullptr, weights_.rounding(), z);
    for (int64_t i = 0; i < count; ++i) {
      kernels::LogSoftmaxStats& stats = stats_[first + i];
      stats = kernels::LogSoftmax(z.f32(i), z.cols, inverse_temperature, nullptr);
      if (!stats.finite && bad < 0) bad = first + i;
      logprobs[first + i] =
          stats.Logprob(z.f32(i)[targets[first + i].token_id], inverse_temperature);
      entropies[first + i] = stats.entropy;
    }
  }
  return bad;
}

void TrainingOps::BackwardHead(std::span<const float> dlogprobs,
                               std::span<const float> dentropies) {
  const int64_t n = static_cast<int64_t>(targets_.size()), d = hidden_.view.cols;
  const ParamId head = weights_.layout().head;
  std::vector<float> rows(static_cast<size_t>(kHeadRows * d)), drows(rows.size());
  std::vector<float> logits(static_cast<size_t>(kHeadRows * spec_.vocab_size));
  Gradient& dhidden = GradOf(hidden_);
  std::memset(dhidden.view.data, 0, dhidden.view.num_elements() * sizeof(float));
  dhidden.written = true;
  for (int64_t first = 0; first < n; first += kHeadRows) {
    const int64_t count = std::min(kHeadRows, n - first);
    const TensorView x = TensorView::Float(rows.data(), count, d);
    const TensorView dx = TensorView::Float(drows.data(), count, d);
    const TensorView z = TensorView::Float(logits.data(), count, spec_.vocab_size);
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(x.f32(i), hidden_.view.f32(targets_[first + i].row), d * sizeof(float));
    }
    kernels::Linear(x, weights_.Packed(head), nullptr, weights_.rounding(), z);
    for (int64_t i = 0; i < count; ++i) {
      kernels::LogSoftmaxGrad(z.f32(i), z.cols, inverse_temperature_, stats_[first + i],
                              targets_[first + i].token_id, dlogprobs[first + i],
                              dentropies[first + i], z.f32(i));
    }
    kernels::LinearGradWeight(z, x, ParamGrad(head));
    kernels::LinearGradInput(z, weights_.View(head), /*accumulate=*/false, dx);
    for (int64_t i = 0; i < count; ++i) {
      float* to = dhidden.view.f32(targets_[first + i].row);
      for (int64_t j = 0; j < d; ++j) to[j] += dx.f32(i)[j];
    }
  }
}

void TrainingOps::Backward(std::span<const float> dlogprobs, std::span<const float> dentropies) {
  CHECK(grads_ != nullptr);
  CHECK_EQ(dlogprobs.size(), targets_.size());
  CHECK_EQ(dentropies.size(), targets_.size());
  BackwardHead(dlogprobs, dentropies);
  Replay();
}

}  // namespace orrery::trainer
