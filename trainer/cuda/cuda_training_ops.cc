#include "trainer/cuda/cuda_training_ops.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "kernels/embedding/embedding_cuda.h"
#include "kernels/experts/combine_experts_cuda.h"
#include "kernels/experts/routed_experts_grad_cuda.h"
#include "kernels/rms_norm/rms_norm_cuda.h"
#include "kernels/rms_norm/rms_norm_grad_cuda.h"
#include "kernels/swiglu/swiglu_cuda.h"
#include "orchestrator/base/status.h"

namespace orrery::trainer {

using kernels::DType;
using kernels::SizeOf;
using kernels::TensorView;
using kernels::cuda::DeviceBuffer;
using kernels::cuda::LinearLibrary;
using kernels::cuda::Numerics;
using kernels::cuda::PagePool;
using kernels::cuda::PageRange;
using kernels::cuda::PinnedBuffer;
using model::Batch;
using model::kNoParam;
using model::ParamId;
using model::Stream;
using model::Value;

namespace {

// Of each range: more than any GPU has memory.
constexpr int64_t kAddresses = int64_t{1} << 40;

}  // namespace

absl::StatusOr<std::unique_ptr<CudaTrainingOps>> CudaTrainingOps::Create(
    const model::ModelSpec& spec, const kernels::DeviceLimits& device,
    const CudaTrainingOptions& options, cudaStream_t stream, std::shared_ptr<PagePool> pool) {
  ASSIGN_OR_RETURN(std::unique_ptr<LinearLibrary> library, LinearLibrary::Create());
  if (pool == nullptr) pool = kernels::cuda::MakeDevicePool();
  return std::unique_ptr<CudaTrainingOps>(
      new CudaTrainingOps(spec, device, options, std::move(library), stream, std::move(pool)));
}

CudaTrainingOps::CudaTrainingOps(const model::ModelSpec& spec, const kernels::DeviceLimits& device,
                                 const CudaTrainingOptions& options,
                                 std::unique_ptr<LinearLibrary> library, cudaStream_t stream,
                                 std::shared_ptr<PagePool> pool)
    : RecordingOps(options.recompute),
      spec_(spec),
      device_(device),
      options_(options),
      library_(std::move(library)),
      stream_(stream),
      pool_(std::move(pool)),
      rope_(pool_->real() ? model::UploadRope(spec, spec.max_positions) : DeviceBuffer()),
      input_(pool_->real()),
      main_(pool_, kAddresses),
      block_(pool_, kAddresses),
      workspace_(pool_, kAddresses),
      attention_workspace_(pool_, kAddresses),
      kv_memory_(pool_, kAddresses),
      logits_(pool_, kAddresses) {}

TrainingBytes CudaTrainingOps::DryRun(const model::ModelSpec& spec, DType dtype,
                                      const kernels::DeviceLimits& device,
                                      const CudaTrainingOptions& options,
                                      std::span<const MicroBatch> micros) {
  CudaTrainingOps ops(spec, device, options, nullptr, nullptr, kernels::cuda::MakeCountingPool());
  const std::unique_ptr<model::DeviceWeights> weights = model::DeviceWeights::Unbacked(spec, dtype);
  float* const grads = reinterpret_cast<float*>(weights->data());  // any address
  for (const MicroBatch& micro : micros) {
    std::vector<float> scores(micro.targets.size()), entropies(scores.size());
    for (float* into : {static_cast<float*>(nullptr), grads}) {
      ops.Begin(micro, *weights, into);
      const Value hidden = model::Forward(spec, weights->layout(), ops.batch(), ops);
      ops.Logprobs(hidden, 1, scores, entropies);
      if (into != nullptr) ops.Backward(scores, entropies);
    }
  }
  return ops.bytes();
}

TensorView CudaTrainingOps::Allocate(Lifetime lifetime, int64_t rows, int64_t cols) {
  return (lifetime == Lifetime::kMicroBatch ? main_ : block_).Allocate(dtype(), rows, cols);
}

void CudaTrainingOps::Copy(const TensorView& from, const TensorView& to) {
  CHECK(from.row_stride == from.cols && to.row_stride == to.cols && from.dtype == to.dtype &&
        from.num_elements() == to.num_elements());
  const auto bytes = static_cast<size_t>(from.num_elements() * SizeOf(from.dtype));
  Run([&] {
    CUDA_CHECK(cudaMemcpyAsync(to.data, from.data, bytes, cudaMemcpyDeviceToDevice, stream_));
  });
}

void CudaTrainingOps::Zero(const TensorView& view) {
  const auto bytes = static_cast<size_t>(view.num_elements() * SizeOf(view.dtype));
  Run([&] { CUDA_CHECK(cudaMemsetAsync(view.data, 0, bytes, stream_)); });
}

void CudaTrainingOps::GradInput(const TensorView& dy, ParamId weight, bool accumulate,
                                const TensorView& dx) {
  Run([&] { library_->GradInput(dy, weights_->View(weight), accumulate, dx, stream_); });
}

void CudaTrainingOps::GradWeight(const TensorView& dy, const TensorView& x, ParamId weight) {
  Run([&] { library_->GradWeight(dy, x, ParamGrad(weight), stream_); });
}

TrainingBytes CudaTrainingOps::bytes() const {
  TrainingBytes bytes;
  bytes.activations = main_.bytes();
  bytes.block = block_.bytes();
  bytes.logits = logits_.bytes();
  bytes.workspace = workspace_.bytes();
  bytes.attention_workspace = attention_workspace_.bytes();
  bytes.layer_kv = kv_memory_.bytes();
  bytes.inputs = input_.device_bytes();
  bytes.fixed = LinearLibrary::kWorkspaceBytes + model::RopeBytes(spec_, spec_.max_positions);
  return bytes;
}

void CudaTrainingOps::Reserve(const TrainingBytes& bytes) {
  main_.Reserve(bytes.activations);
  block_.Reserve(bytes.block);
  logits_.Grow(bytes.logits);
  workspace_.Grow(bytes.workspace);
  GrowZeroed(&attention_workspace_, bytes.attention_workspace);
  GrowZeroed(&kv_memory_, bytes.layer_kv);
  input_.Reserve(bytes.inputs);
}

void CudaTrainingOps::Release() {
  Run([&] { CUDA_CHECK(cudaStreamSynchronize(stream_)); });
  main_.Release();
  block_.Release();
  for (PageRange* range : {&workspace_, &attention_workspace_, &kv_memory_, &logits_}) {
    range->Shrink(0);
  }
}

void CudaTrainingOps::GrowZeroed(PageRange* range, int64_t bytes) {
  if (!range->Grow(bytes)) return;
  Run([&] {
    CUDA_CHECK(cudaMemsetAsync(range->data(), 0, static_cast<size_t>(range->bytes()), stream_));
  });
}

void* CudaTrainingOps::Workspace(int64_t bytes) {
  workspace_.Grow(bytes);
  return workspace_.data();
}

TensorView CudaTrainingOps::ParamGrad(ParamId id) const {
  const model::Param& p = weights_->layout().params[id];
  return TensorView::Float(grads_ + p.offset, p.rows, p.cols);
}

// One layer's keys and values at a time: attention reads them before the next layer writes.
void CudaTrainingOps::PrepareKv(int64_t num_blocks) {
  const int64_t bytes = kernels::cuda::KvBlocks::NumBytes(spec_.heads, dtype(), num_blocks);
  GrowZeroed(&kv_memory_, bytes);  // attention reads whole blocks: all of them must be finite
  kv_.k = kv_memory_.data();
  kv_.v = kv_memory_.data() + bytes / 2;
  kv_.dtype = dtype();
  kv_.num_blocks = num_blocks;
  kv_.num_kv_heads = spec_.heads.num_kv_heads;
  kv_.head_dim = spec_.heads.head_dim;
}

void CudaTrainingOps::Begin(const MicroBatch& micro, const model::DeviceWeights& weights,
                            float* grads) {
  weights_ = &weights;
  grads_ = grads;
  main_.Reset();
  block_.Reset();
  BeginTape(grads != nullptr);
  batch_ = micro.batch();
  std::vector<int32_t> tiles;
  if (grads != nullptr) {
    attention_grad_ = kernels::cuda::PlanAttentionGrad(micro.spans, spec_.heads, dtype(), device_);
    tiles = attention_grad_.Words();
  }
  input_.Upload(micro, spec_.heads, tiles, stream_);
  routed_id_bytes_ = micro.routed_id_bytes;
  differing_routing_ = 0;
  if (micro.replays_routing() && pool_->real()) {
    if (differing_.bytes() == 0) differing_ = DeviceBuffer(4);
    CUDA_CHECK(cudaMemsetAsync(differing_.data(), 0, 4, stream_));
  }
  PrepareKv(micro.num_blocks);
}

Value CudaTrainingOps::Embed(ParamId table, const Batch& batch) {
  const Value out = Make(batch.num_tokens(), spec_.hidden_size);
  Run(kernels::cuda::Embedding, weights_->View(table), input_.token_ids(), nullptr, out.view,
      stream_);
  Record([this, table, out] {
    Run(kernels::cuda::AddListedRows, GradOf(out).view, input_.rows_by_token(), ParamGrad(table),
        stream_);
  });
  return out;
}

std::pair<Value, Value> CudaTrainingOps::AddNorm(const Stream& stream, ParamId weight) {
  const TensorView& x = stream.residual.view;
  const bool has_delta = stream.delta.view.data != nullptr;
  const Value sum = has_delta ? Make(x.rows, x.cols) : stream.residual;
  const Value normed = Make(x.rows, x.cols);
  kernels::cuda::Delta delta;
  if (has_delta) delta.rows = stream.delta.view;
  Run(kernels::cuda::AddRmsNorm, x, delta, weights_->View(weight), spec_.rms_norm_eps, sum.view,
      normed.view, stream_);
  Record([=, this] {
    const TensorView dnormed = GradOf(normed).view;
    Gradient& dsum = GradOf(sum);
    Run(kernels::cuda::RmsNormGrad, dnormed, sum.view, weights_->View(weight), spec_.rms_norm_eps,
        dsum.written, dsum.view, ParamGrad(weight).f32(),
        Workspace(kernels::cuda::RmsNormGradWorkspaceBytes(sum.view.rows, sum.view.cols)), stream_);
    dsum.written = true;
    if (has_delta) ShareGradient(dsum.view, stream);
  });
  return {sum, normed};
}

void CudaTrainingOps::Product(const TensorView& x, ParamId weight, ParamId bias,
                              const TensorView& out) {
  const TensorView w = weights_->View(weight), b = weights_->View(bias);
  if (options_.numerics == Numerics::kFast && library_ != nullptr &&
      library_->Run(x, w, b, out, stream_)) {
    return;
  }
  Run(kernels::cuda::Linear, x, w, b, device_, out, stream_, options_.numerics);
}

Value CudaTrainingOps::Linear(const Value& x, ParamId weight, ParamId bias) {
  const Value out = Make(x.view.rows, weights_->layout().params[weight].rows);
  Product(x.view, weight, bias, out.view);
  Record([=, this] {
    const TensorView dy = GradOf(out).view;
    Gradient& dx = GradOf(x);
    GradInput(dy, weight, dx.written, dx.view);
    dx.written = true;
    GradWeight(dy, x.view, weight);
    if (bias == kNoParam) return;
    Run(kernels::cuda::GradBias, dy, ParamGrad(bias).f32(),
        Workspace(kernels::cuda::GradBiasWorkspaceBytes(dy.rows, dy.cols)), stream_);
  });
  return out;
}

kernels::cuda::QkNormRopeArgs CudaTrainingOps::RopeArgs(int64_t layer) const {
  const model::LayerParams& p = weights_->layout().layers[layer];
  kernels::cuda::QkNormRopeArgs args;
  args.heads = spec_.heads;
  args.q_norm = weights_->View(p.q_norm);
  args.k_norm = weights_->View(p.k_norm);
  args.eps = spec_.rms_norm_eps;
  args.rope = rope_.as<float>();
  args.positions = input_.positions();
  args.slots = input_.slots();
  return args;
}

// The rotated queries live as long as the block's forward: the backward rotates again.
Value CudaTrainingOps::QkNormRope(const Value& qkv, int64_t layer, const Batch&) {
  const kernels::cuda::QkNormRopeArgs args = RopeArgs(layer);
  const model::LayerParams& p = weights_->layout().layers[layer];
  const Value out = Make(qkv.view.rows, qkv.view.cols);
  Copy(qkv.view, out.view);
  Run(kernels::cuda::QkNormRopeWriteKv, out.view, args, kv_, stream_);
  Run(kernels::cuda::CopyKv, input_.copies(), input_.num_copies(), kv_, stream_);
  // Rotated keys are in the cache alone: the gradient of attention wants them in rows.
  if (recording()) RotateKeys(qkv.view, args, out.view);
  Record([=, this] {
    const TensorView dout = GradOf(out).view;
    const bool normed = p.q_norm != kNoParam;
    Run(kernels::cuda::QkNormRopeGrad, qkv.view, args, dout,
        normed ? ParamGrad(p.q_norm).f32() : nullptr, normed ? ParamGrad(p.k_norm).f32() : nullptr,
        Workspace(kernels::cuda::QkNormRopeGradWorkspaceBytes(spec_.heads)), stream_);
    SetGradient(qkv, dout);
  });
  return out;
}

// Of the rows of qkv, to those of out.
void CudaTrainingOps::RotateKeys(const TensorView& qkv, kernels::cuda::QkNormRopeArgs args,
                                 const TensorView& out) {
  const int64_t first = spec_.heads.q_width(), width = spec_.heads.kv_width();
  args.heads.num_heads =
      spec_.heads.num_kv_heads;  // one kind of heads: it takes the queries' place
  args.heads.num_kv_heads = 0;
  args.q_norm = args.k_norm;
  Run(kernels::cuda::QkNormRopeRows, qkv.Cols(first, width), args, out.Cols(first, width), stream_);
}

Value CudaTrainingOps::Attention(const Value& qkv, int64_t, const Batch&) {
  const Value out = Make(qkv.view.rows, spec_.heads.q_width());
  const kernels::cuda::AttentionRows rows = input_.attention_rows();
  const kernels::cuda::AttentionPlan plan = kernels::cuda::PlanAttention(
      spec_.heads, rows.num_alone(qkv.view.rows), input_.max_position(), device_);
  GrowZeroed(&attention_workspace_, plan.workspace_bytes);
  Run(kernels::cuda::Attention, qkv.view, spec_.heads, spec_.attention_scale(), rows, kv_, plan,
      attention_workspace_.data(), out.view, stream_);
  Record([=, this] {
    Gradient& dqkv = GradOf(qkv);
    Run(kernels::cuda::AttentionGrad, GradOf(out).view, qkv.view, out.view, spec_.heads,
        spec_.attention_scale(), attention_grad_, input_.extra(),
        Workspace(attention_grad_.workspace_bytes), dqkv.view, stream_);
    dqkv.written = true;
  });
  return out;
}

Value CudaTrainingOps::SwiGlu(const Value& gate_up) {
  const Value out = Make(gate_up.view.rows, gate_up.view.cols / 2);
  Run(kernels::cuda::SwiGlu, gate_up.view, out.view, stream_);
  Record([=, this] {
    Gradient& dgate_up = GradOf(gate_up);
    Run(kernels::cuda::SwiGluGrad, GradOf(out).view, gate_up.view, dgate_up.view, stream_);
    dgate_up.written = true;
  });
  return out;
}

// Routing of one layer; its arrays live as long as values made now.
kernels::cuda::Routing CudaTrainingOps::MakeRouting(int64_t rows) {
  const kernels::ExpertsShape shape = spec_.experts_shape();
  DeviceArena& arena = lifetime() == Lifetime::kMicroBatch ? main_ : block_;
  const int64_t slots = rows * shape.top_k;
  kernels::cuda::Routing routing;
  routing.weights = reinterpret_cast<float*>(arena.Allocate(slots * 4));
  routing.experts = reinterpret_cast<int32_t*>(arena.Allocate(slots * 4));
  routing.counts = reinterpret_cast<int32_t*>(arena.Allocate(shape.num_experts * 4));
  routing.slots = reinterpret_cast<int32_t*>(arena.Allocate(shape.num_experts * rows * 4));
  routing.capacity = rows;
  Zero({routing.counts, DType::kFloat32, 1, shape.num_experts, shape.num_experts});
  return routing;
}

kernels::cuda::ReplayedRouting CudaTrainingOps::ReplayOf(int64_t layer) const {
  kernels::cuda::ReplayedRouting replay;
  if (input_.routed_experts() == nullptr) return replay;
  const int64_t k = spec_.experts_per_token;
  replay.experts.ids = input_.routed_experts() + spec_.moe_index(layer) * k * routed_id_bytes_;
  replay.experts.row_stride = spec_.num_moe_layers() * k;
  replay.experts.id_bytes = routed_id_bytes_;
  replay.differing = differing_.as<int32_t>();
  return replay;
}

Value CudaTrainingOps::RoutedExperts(const Value& x, int64_t layer, const Batch&) {
  const model::LayerParams& p = weights_->layout().layers[layer];
  const kernels::ExpertsShape shape = spec_.experts_shape();
  const int64_t rows = x.view.rows, slots = rows * shape.top_k;
  DeviceArena& arena = lifetime() == Lifetime::kMicroBatch ? main_ : block_;
  const TensorView logits = arena.Allocate(DType::kFloat32, rows, shape.num_experts);
  Product(x.view, p.router, kNoParam, logits);
  const kernels::cuda::Routing routing = MakeRouting(rows);
  Run(kernels::cuda::RouteTopK, logits, shape, input_.positions(), ReplayOf(layer), routing,
      stream_);
  Run(kernels::cuda::SortExpertLists, routing, shape, rows, stream_);
  const TensorView gate_up = arena.Allocate(dtype(), slots, 2 * shape.f);
  Run(kernels::cuda::ExpertsLinear, x.view, shape.top_k, weights_->View(p.experts_gate_up), shape,
      routing, device_, gate_up, stream_);
  // The activation and the experts' outputs are not kept.
  const int64_t hidden_bytes = (slots * shape.f * SizeOf(dtype()) + 255) / 256 * 256;
  std::byte* scratch =
      static_cast<std::byte*>(Workspace(hidden_bytes + slots * shape.d * SizeOf(dtype())));
  const TensorView hidden{scratch, dtype(), slots, shape.f, shape.f};
  const TensorView y{scratch + hidden_bytes, dtype(), slots, shape.d, shape.d};
  Run(kernels::cuda::SwiGlu, gate_up, hidden, stream_);
  Run(kernels::cuda::ExpertsDown, hidden, weights_->View(p.experts_down), shape, routing, device_,
      y, stream_);
  const Value out = Make(rows, shape.d);
  Run(kernels::cuda::CombineExperts, y, routing.weights, shape.top_k, out.view, stream_);
  Record([=, this] { RoutedExpertsBackward({x, out, logits, gate_up, routing, layer}); });
  return out;
}

void CudaTrainingOps::RoutedExpertsBackward(const KeptExperts& kept) {
  const model::LayerParams& p = weights_->layout().layers[kept.layer];
  const kernels::ExpertsShape shape = spec_.experts_shape();
  const TensorView& x = kept.x.view;
  Gradient& dx = GradOf(kept.x);
  CHECK(!dx.written);
  kernels::cuda::RoutedExpertsGradArgs args;
  args.dout = GradOf(kept.out).view;
  args.x = x;
  args.gate_up = kept.gate_up;
  args.w_gate_up = weights_->View(p.experts_gate_up);
  args.w_down = weights_->View(p.experts_down);
  args.routing = kept.routing;
  args.dx = dx.view;
  args.dweights = reinterpret_cast<float*>(block_.Allocate(x.rows * shape.top_k * 4));
  args.dw_gate_up = ParamGrad(p.experts_gate_up);
  args.dw_down = ParamGrad(p.experts_down);
  Run(kernels::cuda::RoutedExpertsGrad, args, shape, device_,
      Workspace(kernels::cuda::RoutedExpertsGradWorkspaceBytes(shape, x.rows, dtype())), stream_);
  dx.written = true;
  const TensorView dlogits = block_.Allocate(dtype(), x.rows, shape.num_experts);
  Run(kernels::cuda::RouteTopKGrad, kept.logits, args.dweights, kept.routing, shape, dlogits,
      stream_);
  GradInput(dlogits, p.router, /*accumulate=*/true, dx.view);
  GradWeight(dlogits, x, p.router);
}

int64_t CudaTrainingOps::HeadRows() const {
  const int64_t row = spec_.vocab_size * SizeOf(dtype());
  return std::max<int64_t>(1, std::min(input_.num_targets(), options_.logits_bytes / row));
}

kernels::cuda::TargetScores CudaTrainingOps::ScoresFrom(int64_t first) const {
  return {scores_.logprobs + first, scores_.entropies + first, scores_.maxima + first,
          scores_.log_sums + first, scores_.finite + first};
}

// Logits of targets [first, first + count).
void CudaTrainingOps::HeadChunk(int64_t first, int64_t count, TensorView* logits) {
  *logits = {logits_.data(), dtype(), count, spec_.vocab_size, spec_.vocab_size};
  Product(head_rows_.Rows(first, count), weights_->layout().head, kNoParam, *logits);
}

int64_t CudaTrainingOps::Logprobs(const Value& hidden, float temperature, std::span<float> logprobs,
                                  std::span<float> entropies) {
  const int64_t n = input_.num_targets();
  CHECK(static_cast<int64_t>(logprobs.size()) == n && static_cast<int64_t>(entropies.size()) == n);
  hidden_ = hidden;
  temperature_ = temperature;
  if (n == 0) return -1;
  const int64_t rows = HeadRows();
  logits_.Grow(rows * spec_.vocab_size * SizeOf(dtype()));
  head_rows_ = Allocate(Lifetime::kMicroBatch, n, hidden.view.cols);
  Run(kernels::cuda::GatherRows, hidden.view, input_.target_rows(), head_rows_, stream_);
  // Log-probs, entropies and flags are one block: one copy brings them to the host.
  float* scores = reinterpret_cast<float*>(main_.Allocate(5 * n * 4));
  scores_ = {scores, scores + n, scores + 3 * n, scores + 4 * n,
             reinterpret_cast<int32_t*>(scores + 2 * n)};
  for (int64_t first = 0; first < n; first += rows) {
    const int64_t count = std::min(rows, n - first);
    TensorView logits;
    HeadChunk(first, count, &logits);
    Run(kernels::cuda::ScoreTargets, logits, input_.target_ids() + first, temperature,
        ScoresFrom(first), stream_);
  }
  if (!pool_->real()) return -1;
  const int64_t bytes = 3 * n * 4;
  if (pinned_.bytes() < bytes + 4) pinned_ = PinnedBuffer(2 * (bytes + 4));
  CUDA_CHECK(cudaMemcpyAsync(pinned_.data(), scores, static_cast<size_t>(bytes),
                             cudaMemcpyDeviceToHost, stream_));
  const bool replays = input_.routed_experts() != nullptr;
  if (replays) {
    CUDA_CHECK(cudaMemcpyAsync(pinned_.data() + bytes, differing_.data(), 4, cudaMemcpyDeviceToHost,
                               stream_));
  }
  CUDA_CHECK(cudaStreamSynchronize(stream_));
  if (replays) differing_routing_ = *pinned_.as<int32_t>(bytes);
  const float* from = pinned_.as<float>();
  std::copy(from, from + n, logprobs.begin());
  std::copy(from + n, from + 2 * n, entropies.begin());
  const int32_t* finite = reinterpret_cast<const int32_t*>(from + 2 * n);
  const int64_t bad = std::find(finite, finite + n, 0) - finite;
  return bad == n ? -1 : bad;
}

void CudaTrainingOps::BackwardHead(const float* dlogprobs, const float* dentropies) {
  const int64_t n = input_.num_targets(), rows = HeadRows();
  const ParamId head = weights_->layout().head;
  const TensorView drows = Allocate(Lifetime::kMicroBatch, n, head_rows_.cols);
  for (int64_t first = 0; first < n; first += rows) {
    const int64_t count = std::min(rows, n - first);
    TensorView logits{logits_.data(), dtype(), count, spec_.vocab_size, spec_.vocab_size};
    if (rows < n) HeadChunk(first, count, &logits);  // else they are still there
    Run(kernels::cuda::LogSoftmaxGrad, logits, input_.target_ids() + first, temperature_,
        ScoresFrom(first), dlogprobs + first, dentropies + first, stream_);
    GradWeight(logits, head_rows_.Rows(first, count), head);
    GradInput(logits, head, /*accumulate=*/false, drows.Rows(first, count));
  }
  Gradient& dhidden = GradOf(hidden_);
  Zero(dhidden.view);
  Run(kernels::cuda::AddListedRows, drows, input_.targets_by_row(), dhidden.view, stream_);
  dhidden.written = true;
}

void CudaTrainingOps::Backward(std::span<const float> dlogprobs,
                               std::span<const float> dentropies) {
  const auto n = static_cast<size_t>(input_.num_targets());
  CHECK(grads_ != nullptr && dlogprobs.size() == n && dentropies.size() == n);
  if (n == 0) return;
  float* device = reinterpret_cast<float*>(main_.Allocate(static_cast<int64_t>(2 * n * 4)));
  Run([&] {  // Logprobs has waited: the pinned block is free
    float* to = pinned_.as<float>();
    std::copy(dlogprobs.begin(), dlogprobs.end(), to);
    std::copy(dentropies.begin(), dentropies.end(), to + n);
    CUDA_CHECK(cudaMemcpyAsync(device, to, 2 * n * 4, cudaMemcpyHostToDevice, stream_));
  });
  BackwardHead(device, device + n);
  Replay();
}

}  // namespace orrery::trainer
