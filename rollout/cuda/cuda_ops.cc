#include "rollout/cuda/cuda_ops.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "kernels/cuda/fill.h"
#include "kernels/embedding/embedding_cuda.h"
#include "kernels/experts/norm_route_cuda.h"
#include "kernels/linear/linear_plan.h"
#include "kernels/rope/qk_norm_rope_cuda.h"
#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"

namespace orrery::rollout::cuda {

using kernels::DType;
using kernels::SizeOf;
using kernels::TensorView;
using model::Batch;
using model::ParamId;
using model::Stream;
using model::Value;

namespace {

// A Value that is the experts' outputs by slot, not yet summed over a row's slots: the norm that
// follows does it.
constexpr int32_t kBySlot = 1;

int64_t AttentionWorkspaceBytes(const model::ModelSpec& spec, const kernels::DeviceLimits& device,
                                const OpsLimits& limits) {
  int64_t bytes = 0;
  for (int64_t rows = 1; rows <= limits.max_rows; ++rows) {
    const kernels::cuda::AttentionPlan plan =
        kernels::cuda::PlanAttention(spec.heads, rows, limits.max_positions - 1, device);
    if (!plan.split) break;
    bytes = std::max(bytes, plan.workspace_bytes);
  }
  return bytes;
}

}  // namespace

std::vector<CudaOps::BufferShape> CudaOps::Shapes(const model::ModelSpec& spec, DType dtype,
                                                  const OpsLimits& limits) {
  const int64_t t = limits.max_rows, d = spec.hidden_size;
  const int64_t slots = spec.has_moe() ? t * spec.experts_per_token : 0;
  std::vector<BufferShape> shapes(kNumRoles);
  shapes[kResidual] = {t, d, dtype};
  shapes[kNormed] = {t, d, dtype};
  shapes[kQkv] = {t, spec.heads.qkv_width(), dtype};
  shapes[kAttended] = {t, spec.heads.q_width(), dtype};
  shapes[kProjected] = {t, d, dtype};
  shapes[kActivated] = {t, spec.intermediate_size, dtype};
  shapes[kMlp] = {t, d, dtype};
  shapes[kHeadInput] = {limits.max_samples, d, dtype};
  shapes[kLogits] = {limits.max_logit_rows, spec.vocab_size, dtype};
  shapes[kRouter] = {spec.has_moe() ? t : 0, spec.num_experts, DType::kFloat32};
  shapes[kExpertsHidden] = {slots, spec.expert_width, dtype};
  shapes[kExpertsOut] = {slots, d, dtype};
  return shapes;
}

int64_t CudaOps::KvBytes(const model::ModelSpec& spec, DType dtype, int64_t kv_blocks,
                         KvFormat format) {
  return spec.num_layers * kernels::cuda::KvBlocks::NumBytes(spec.heads, dtype, kv_blocks, format);
}

void CudaOps::GiveBackKv() {
  CUDA_CHECK(cudaStreamSynchronize(stream_));
  kv_.Shrink(0);
}

// Attention reads whole blocks: what was never written must be finite.
void CudaOps::TakeKv() {
  kv_.Grow(KvBytes(spec_, weights_.dtype(), limits_.kv_blocks, limits_.kv_format));
  CUDA_CHECK(cudaMemsetAsync(kv_.data(), 0, static_cast<size_t>(kv_.bytes()), stream_));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
}

int64_t CudaOps::BufferBytes(const model::ModelSpec& spec, DType dtype,
                             const kernels::DeviceLimits& device, const OpsLimits& limits) {
  int64_t bytes =
      AttentionWorkspaceBytes(spec, device, limits) + model::RopeBytes(spec, limits.max_positions);
  if (limits.numerics == Numerics::kFast) bytes += kernels::cuda::LinearLibrary::kWorkspaceBytes;
  for (const BufferShape& s : Shapes(spec, dtype, limits))
    bytes += s.rows * s.cols * SizeOf(s.dtype);
  const ExpertBuffers experts = SizesOfExpertBuffers(spec, limits);
  return bytes + experts.counts + experts.slots + experts.ids + experts.weights + experts.routed;
}

CudaOps::ExpertBuffers CudaOps::SizesOfExpertBuffers(const model::ModelSpec& spec,
                                                     const OpsLimits& limits) {
  ExpertBuffers sizes;
  if (!spec.has_moe()) return sizes;
  sizes.counts = 4 * spec.num_layers * spec.num_experts;
  sizes.slots = 4 * spec.num_experts * limits.max_rows;
  sizes.ids = sizes.weights = 4 * limits.max_rows * spec.experts_per_token;
  sizes.routed = limits.max_rows * RoutedRowBytes(spec);
  return sizes;
}

CudaOps::CudaOps(const DeviceWeights* weights, const kernels::DeviceLimits& device,
                 const OpsLimits& limits, cudaStream_t stream)
    : weights_(*weights),
      spec_(weights->spec()),
      device_(device),
      limits_(limits),
      stream_(stream),
      pool_(limits.pool != nullptr ? limits.pool : kernels::cuda::MakeDevicePool()),
      kv_(pool_, KvBytes(spec_, weights->dtype(), limits.kv_blocks, limits.kv_format)),
      rope_(model::UploadRope(spec_, limits.max_positions)),
      attention_workspace_(AttentionWorkspaceBytes(spec_, device, limits)) {
  if (limits.numerics == Numerics::kFast) {
    absl::StatusOr<std::unique_ptr<kernels::cuda::LinearLibrary>> library =
        kernels::cuda::LinearLibrary::Create();
    if (library.ok()) {
      library_ = *std::move(library);
    } else {
      spdlog::warn("{}", StatusText(library.status()));
    }
  }
  const std::vector<BufferShape> shapes = Shapes(spec_, weights->dtype(), limits);
  for (int i = 0; i < kNumRoles; ++i) {
    buffers_[i] = DeviceBuffer(shapes[i].rows * shapes[i].cols * SizeOf(shapes[i].dtype));
  }
  const ExpertBuffers experts = SizesOfExpertBuffers(spec_, limits);
  expert_counts_ = DeviceBuffer(experts.counts);
  expert_slots_ = DeviceBuffer(experts.slots);
  expert_ids_ = DeviceBuffer(experts.ids);
  expert_weights_ = DeviceBuffer(experts.weights);
  routed_experts_ = DeviceBuffer(experts.routed);
  CUDA_CHECK(cudaMemsetAsync(attention_workspace_.data(), 0,
                             static_cast<size_t>(attention_workspace_.bytes()), stream));
  if (limits.kv_at_once) TakeKv();
}

Value CudaOps::Buffer(Role role, int64_t rows, int64_t cols) const {
  const DType dtype = role == kRouter ? DType::kFloat32 : weights_.dtype();
  CHECK_LE(rows * cols * SizeOf(dtype), buffers_[role].bytes());
  return {TensorView{buffers_[role].data(), dtype, rows, cols, cols}};
}

kernels::cuda::KvBlocks CudaOps::Layer(int64_t layer) const {
  const int64_t half = KvBytes(spec_, weights_.dtype(), limits_.kv_blocks, limits_.kv_format) /
                       (2 * spec_.num_layers);
  kernels::cuda::KvBlocks blocks;
  blocks.k = kv_.data() + 2 * layer * half;
  blocks.v = kv_.data() + (2 * layer + 1) * half;
  blocks.dtype = weights_.dtype();
  blocks.num_blocks = limits_.kv_blocks;
  blocks.num_kv_heads = spec_.heads.num_kv_heads;
  blocks.head_dim = spec_.heads.head_dim;
  blocks.format = limits_.kv_format;
  return blocks;
}

std::vector<KvPlane> CudaOps::Planes() const {
  const int64_t bytes =
      KvBytes(spec_, weights_.dtype(), 1, limits_.kv_format) / (2 * spec_.num_layers);
  std::vector<KvPlane> planes;
  for (int64_t layer = 0; layer < spec_.num_layers; ++layer) {
    const kernels::cuda::KvBlocks blocks = Layer(layer);
    planes.push_back({static_cast<std::byte*>(blocks.k), bytes});
    planes.push_back({static_cast<std::byte*>(blocks.v), bytes});
  }
  return planes;
}

void CudaOps::CopyKv(const kernels::KvCopy* copies, int64_t n) {
  for (int64_t layer = 0; layer < spec_.num_layers; ++layer) {
    kernels::cuda::CopyKv(copies, n, Layer(layer), stream_);
  }
}

void CudaOps::RandomiseKv(uint64_t seed) {
  if (limits_.kv_format == KvFormat::kFloat8) return RandomiseFloat8Kv(seed);
  kernels::cuda::FillUniform(kv_.data(), weights_.dtype(), kv_.bytes() / SizeOf(weights_.dtype()),
                             -1, 1, seed, stream_);
}

// One stretch of pieces with values in [-1, 1], again and again: any bytes would do for values, but
// not for exponents.
void CudaOps::RandomiseFloat8Kv(uint64_t seed) {
  const int64_t d = spec_.heads.head_dim;
  const int64_t piece = kernels::cuda::KvBlocks::PieceBytes(d, weights_.dtype(), KvFormat::kFloat8);
  std::vector<std::byte> stretch(static_cast<size_t>(1021 * piece));
  for (size_t i = 0; i < stretch.size(); ++i) {
    const bool exponent = static_cast<int64_t>(i) % piece >= kernels::kBlockTokens * d;
    const uint64_t random = HashSeed({seed, i});
    // e4m3 of sign and size up to 0x38, which is 1.
    const uint64_t value = random % 0x39 | (random >> 32 & 1) << 7;
    stretch[i] = exponent ? std::byte{0} : static_cast<std::byte>(value);
  }
  const auto length = std::min(static_cast<int64_t>(stretch.size()), kv_.bytes());
  CUDA_CHECK(cudaMemcpyAsync(kv_.data(), stretch.data(), static_cast<size_t>(length),
                             cudaMemcpyHostToDevice, stream_));
  for (int64_t at = length; at < kv_.bytes(); at += length) {
    const auto n = static_cast<size_t>(std::min(length, kv_.bytes() - at));
    CUDA_CHECK(cudaMemcpyAsync(kv_.data() + at, kv_.data(), n, cudaMemcpyDeviceToDevice, stream_));
  }
  CUDA_CHECK(cudaStreamSynchronize(stream_));
}

double CudaOps::ExpertsTouched() const {
  std::vector<int32_t> counts(static_cast<size_t>(expert_counts_.bytes() / 4));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
  CUDA_CHECK(
      cudaMemcpy(counts.data(), expert_counts_.data(), counts.size() * 4, cudaMemcpyDeviceToHost));
  const auto touched = std::count_if(counts.begin(), counts.end(), [](int32_t n) { return n > 0; });
  return static_cast<double>(touched) / static_cast<double>(spec_.num_layers);
}

TensorView CudaOps::Hidden(const StepInput& input, int64_t num_tokens) {
  CHECK_LE(num_tokens, limits_.max_rows);
  CHECK_LE(input.num_logit_rows, limits_.max_samples);
  input_ = input;
  if (spec_.has_moe()) {
    CUDA_CHECK(cudaMemsetAsync(expert_counts_.data(), 0,
                               static_cast<size_t>(expert_counts_.bytes()), stream_));
  }
  Batch batch;
  batch.token_ids = {input.token_ids, static_cast<size_t>(num_tokens)};  // only its size is read
  return model::Forward(spec_, weights_.layout(), batch, *this).view;
}

TensorView CudaOps::Head(const TensorView& hidden) {
  CHECK_LE(hidden.rows, limits_.max_logit_rows);
  const TensorView logits = Buffer(kLogits, hidden.rows, spec_.vocab_size).view;
  Product(hidden, weights_.layout().head, model::kNoParam, logits);
  return logits;
}

Value CudaOps::Embed(ParamId table, const Batch& batch) {
  const Value out = Buffer(kResidual, batch.num_tokens(), spec_.hidden_size);
  kernels::cuda::Embedding(weights_.View(table), input_.token_ids, input_.previous, out.view,
                           stream_);
  return out;
}

kernels::cuda::Delta CudaOps::DeltaOf(const Value& delta) const {
  kernels::cuda::Delta result;
  result.rows = delta.view;
  if (delta.id == kBySlot) {
    result.weights = expert_weights_.as<float>();
    result.experts = expert_ids_.as<int32_t>();
    result.top_k = spec_.experts_per_token;
  }
  return result;
}

std::pair<Value, Value> CudaOps::AddNorm(const Stream& stream, ParamId weight) {
  const TensorView& x = stream.residual.view;
  const TensorView w = weights_.View(weight);
  const kernels::cuda::Delta delta = DeltaOf(stream.delta);
  if (weight == weights_.layout().final_norm) {  // only the rows that the head wants
    const Value out = Buffer(kHeadInput, input_.num_logit_rows, x.cols);
    kernels::cuda::AddRmsNormGathered(x, delta, input_.logit_rows, w, spec_.rms_norm_eps, out.view,
                                      stream_);
    return {stream.residual, out};
  }
  const Value normed = Buffer(kNormed, x.rows, x.cols);
  if (RouteWithNorm(stream, weight, normed.view)) return {stream.residual, normed};
  kernels::cuda::AddRmsNorm(x, delta, w, spec_.rms_norm_eps, x, normed.view, stream_);
  return {stream.residual, normed};
}

void CudaOps::Product(const TensorView& x, ParamId weight, ParamId bias, const TensorView& out) {
  const TensorView w = weights_.View(weight), b = weights_.View(bias);
  const bool library = library_ != nullptr && kernels::cuda::LibraryPays(x.rows, out.cols, device_);
  if (library && library_->Run(x, w, b, out, stream_)) return;
  kernels::cuda::Linear(x, w, b, device_, out, stream_, limits_.numerics);
}

Value CudaOps::Linear(const Value& x, ParamId weight, ParamId bias) {
  const model::Param& p = weights_.layout().params[weight];
  // Gate and up come out as their product (LinearSwiGlu): SwiGlu passes it on.
  if (p.kind == model::ParamKind::kGateUp) {
    const Value out = Buffer(kActivated, x.view.rows, p.rows / 2);
    kernels::cuda::LinearSwiGlu(x.view, weights_.View(weight), device_, out.view, stream_,
                                limits_.numerics);
    return out;
  }
  const Role role = p.kind == model::ParamKind::kQkv      ? kQkv
                    : p.kind == model::ParamKind::kOutput ? kProjected
                                                          : kMlp;
  const Value out = Buffer(role, x.view.rows, p.rows);
  Product(x.view, weight, bias, out.view);
  return out;
}

Value CudaOps::QkNormRope(const Value& qkv, int64_t layer, const Batch&) {
  const model::LayerParams& p = weights_.layout().layers[layer];
  kernels::cuda::QkNormRopeArgs args;
  args.heads = spec_.heads;
  args.q_norm = weights_.View(p.q_norm);
  args.k_norm = weights_.View(p.k_norm);
  args.eps = spec_.rms_norm_eps;
  args.rope = rope_.as<float>();
  args.positions = input_.positions;
  args.slots = input_.slots;
  kernels::cuda::QkNormRopeWriteKv(qkv.view, args, Layer(layer), stream_);
  return qkv;
}

Value CudaOps::Attention(const Value& qkv, int64_t layer, const Batch&) {
  const Value out = Buffer(kAttended, qkv.view.rows, spec_.heads.q_width());
  kernels::cuda::AttentionRows rows;
  rows.positions = input_.positions;
  rows.sequence_of = input_.sequence_of;
  rows.block_tables = input_.block_tables;
  rows.table_stride = input_.table_stride;
  rows.settled = input_.settled;
  rows.tiles = input_.attention_tiles;
  rows.num_tiles = input_.num_attention_tiles;
  rows.lone_rows = input_.lone_rows;
  rows.num_lone_rows = input_.num_lone_rows;
  const kernels::cuda::AttentionPlan plan = kernels::cuda::PlanAttention(
      spec_.heads, rows.num_alone(qkv.view.rows), input_.max_position, device_);
  CHECK_LE(plan.workspace_bytes, attention_workspace_.bytes());
  kernels::cuda::Attention(qkv.view, spec_.heads, spec_.attention_scale(), rows, Layer(layer), plan,
                           attention_workspace_.data(), out.view, stream_);
  return out;
}

Value CudaOps::SwiGlu(const Value& activated) { return activated; }

kernels::cuda::Routing CudaOps::RoutingOf(int64_t layer) const {
  kernels::cuda::Routing routing;
  routing.weights = expert_weights_.as<float>();
  routing.experts = expert_ids_.as<int32_t>();
  routing.counts = expert_counts_.as<int32_t>() + layer * spec_.num_experts;
  routing.slots = expert_slots_.as<int32_t>();
  routing.capacity = limits_.max_rows;
  const int64_t top_k = spec_.experts_per_token;
  const int id_bytes = spec_.expert_id_bytes();
  routing.record.ids = routed_experts_.data() + spec_.moe_index(layer) * top_k * id_bytes;
  routing.record.row_stride = spec_.num_moe_layers() * top_k;
  routing.record.id_bytes = id_bytes;
  return routing;
}

kernels::cuda::ReplayedRouting CudaOps::ReplayOf(int64_t layer, int64_t rows) const {
  const int64_t top_k = spec_.experts_per_token;
  const int32_t* replay = input_.replay_experts;
  if (replay != nullptr) replay += spec_.moe_index(layer) * rows * top_k;
  return kernels::cuda::ReplayedRouting::Of(replay, top_k);
}

bool CudaOps::RouteWithNorm(const Stream& stream, ParamId weight, const TensorView& normed) {
  const model::Param& p = weights_.layout().params[weight];
  if (p.kind != model::ParamKind::kPostNorm || !spec_.moe(p.layer)) return false;
  if (stream.delta.id == kBySlot) return false;
  const TensorView& x = stream.residual.view;
  if (!kernels::cuda::PlanNormRoute(x.dtype, x.rows, x.cols, spec_.num_experts, device_)) {
    return false;
  }
  kernels::cuda::NormRouteArgs args;
  args.x = args.sum = x;
  args.delta = stream.delta.view;
  args.norm = weights_.View(weight);
  args.eps = spec_.rms_norm_eps;
  args.router = weights_.View(weights_.layout().layers[p.layer].router);
  args.out = normed;
  args.shape = spec_.experts_shape();
  args.positions = input_.positions;
  args.replay = ReplayOf(p.layer, x.rows);
  args.routing = RoutingOf(p.layer);
  kernels::cuda::NormRoute(args, device_, stream_, limits_.numerics);
  routed_layer_ = p.layer;
  return true;
}

void CudaOps::Route(const TensorView& x, int64_t layer, const kernels::cuda::Routing& routing) {
  const Value logits = Buffer(kRouter, x.rows, spec_.num_experts);
  Product(x, weights_.layout().layers[layer].router, model::kNoParam, logits.view);
  kernels::cuda::RouteTopK(logits.view, spec_.experts_shape(), input_.positions,
                           ReplayOf(layer, x.rows), routing, stream_);
}

Value CudaOps::RoutedExperts(const Value& x, int64_t layer, const Batch&) {
  const model::LayerParams& p = weights_.layout().layers[layer];
  const kernels::ExpertsShape shape = spec_.experts_shape();
  const int64_t rows = x.view.rows;
  const kernels::cuda::Routing routing = RoutingOf(layer);
  if (routed_layer_ != layer) Route(x.view, layer, routing);
  routed_layer_ = -1;
  const Value hidden = Buffer(kExpertsHidden, rows * shape.top_k, shape.f);
  kernels::cuda::ExpertsGateUp(x.view, weights_.View(p.experts_gate_up), shape, routing, device_,
                               hidden.view, stream_);
  Value out = Buffer(kExpertsOut, rows * shape.top_k, shape.d);
  kernels::cuda::ExpertsDown(hidden.view, weights_.View(p.experts_down), shape, routing, device_,
                             out.view, stream_);
  out.id = kBySlot;
  return out;
}

}  // namespace orrery::rollout::cuda
