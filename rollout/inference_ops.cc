#include "rollout/inference_ops.h"

#include <cstring>

#include "kernels/embedding/embedding.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/swiglu/swiglu.h"

namespace orrery::rollout {

using kernels::TensorView;
using model::Batch;
using model::ParamId;
using model::ParamKind;
using model::Stream;
using model::Value;

InferenceOps::InferenceOps(const model::WeightStore* weights, KvCache* cache,
                           const kernels::RopeTable* rope)
    : weights_(*weights), spec_(weights->spec()), cache_(*cache), rope_(*rope) {}

Value InferenceOps::Buffer(Role role, int64_t rows, int64_t cols) {
  std::vector<float>& buffer = buffers_[role];
  if (static_cast<int64_t>(buffer.size()) < rows * cols) buffer.resize(rows * cols);
  return {TensorView::Float(buffer.data(), rows, cols)};
}

Value InferenceOps::Embed(ParamId table, const Batch& batch) {
  routed_experts_.clear();
  const Value out = Buffer(kResidual, batch.num_tokens(), spec_.hidden_size);
  kernels::Embedding(weights_.View(table), batch.token_ids, out.view);
  return out;
}

std::pair<Value, Value> InferenceOps::AddNorm(const Stream& stream, ParamId weight) {
  const TensorView& x = stream.residual.view;
  const Value normed = Buffer(kNormed, x.rows, x.cols);
  const float* w = weights_.Vector(weight);
  if (stream.delta.view.data == nullptr) {
    kernels::RmsNorm(x, w, spec_.rms_norm_eps, weights_.rounding(), normed.view);
  } else {
    kernels::AddRmsNorm(x, stream.delta.view, w, spec_.rms_norm_eps, weights_.rounding(), x,
                        normed.view);
  }
  return {stream.residual, normed};
}

Value InferenceOps::Linear(const Value& x, ParamId weight, ParamId bias) {
  const model::Param& p = weights_.layout().params[weight];
  const Role role = p.kind == ParamKind::kQkv      ? kQkv
                    : p.kind == ParamKind::kOutput ? kProjected
                    : p.kind == ParamKind::kGateUp ? kGateUp
                                                   : kMlp;
  const Value out = Buffer(role, x.view.rows, p.rows);
  kernels::Linear(x.view, weights_.Packed(weight), weights_.Vector(bias), weights_.rounding(),
                  out.view);
  return out;
}

Value InferenceOps::QkNormRope(const Value& qkv, int64_t layer, const Batch& batch) {
  const model::LayerParams& p = weights_.layout().layers[layer];
  kernels::QkNormRopeArgs args;
  args.heads = spec_.heads;
  args.q_norm = weights_.Vector(p.q_norm);
  args.k_norm = weights_.Vector(p.k_norm);
  args.eps = spec_.rms_norm_eps;
  args.rope = &rope_;
  args.positions = batch.positions;
  args.rounding = weights_.rounding();
  kernels::QkNormRope(qkv.view, args, qkv.view);
  kernels::WriteKv(qkv.view, spec_.heads, batch.slots, cache_.Layer(layer));
  kernels::CopyKv(batch.copies, spec_.heads, cache_.Layer(layer));
  return qkv;
}

Value InferenceOps::Attention(const Value& qkv, int64_t layer, const Batch& batch) {
  const Value out = Buffer(kAttended, qkv.view.rows, spec_.heads.q_width());
  kernels::Attention(qkv.view, spec_.heads, spec_.attention_scale(), batch.sequences,
                     cache_.Layer(layer), weights_.rounding(), out.view);
  return out;
}

Value InferenceOps::SwiGlu(const Value& gate_up) {
  const Value out = Buffer(kActivated, gate_up.view.rows, gate_up.view.cols / 2);
  kernels::SwiGlu(gate_up.view, weights_.rounding(), out.view);
  return out;
}

Value InferenceOps::RoutedExperts(const Value& x, int64_t layer, const Batch& batch) {
  const model::LayerParams& p = weights_.layout().layers[layer];
  const kernels::ExpertsShape shape = spec_.experts_shape();
  const Value logits = Buffer(kRouter, x.view.rows, shape.num_experts);
  kernels::Linear(x.view, weights_.Packed(p.router), nullptr, kernels::Rounding::kNone,
                  logits.view);
  const int64_t slots = x.view.rows * shape.top_k;
  const std::span<const int32_t> replay =
      batch.replay_experts.empty()
          ? batch.replay_experts
          : batch.replay_experts.subspan(spec_.moe_index(layer) * slots, slots);
  kernels::RouteTopK(logits.view, shape, replay, &routing_);
  routed_experts_.insert(routed_experts_.end(), routing_.experts.begin(), routing_.experts.end());
  const Value out = Buffer(kMlp, x.view.rows, x.view.cols);
  kernels::RoutedExperts(x.view, routing_, shape, weights_.PackedStack(p.experts_gate_up),
                         weights_.PackedStack(p.experts_down), weights_.rounding(), &experts_,
                         out.view);
  return out;
}

TensorView InferenceOps::Logits(const Value& hidden, std::span<const int32_t> rows) {
  const int64_t n = static_cast<int64_t>(rows.size()), d = hidden.view.cols;
  const TensorView gathered = Buffer(kGathered, n, d).view;
  for (int64_t i = 0; i < n; ++i) {
    std::memcpy(gathered.f32(i), hidden.view.f32(rows[i]), d * sizeof(float));
  }
  const TensorView logits = Buffer(kLogits, n, spec_.vocab_size).view;
  kernels::Linear(gathered, weights_.Packed(weights_.layout().head), nullptr, weights_.rounding(),
                  logits);
  return logits;
}

}  // namespace orrery::rollout
