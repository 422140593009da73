#include "rollout/cuda/cuda_executor.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <span>

#include "kernels/cuda/device.h"
#include "rollout/response_room.h"

namespace orrery::rollout::cuda {
namespace {

using kernels::cuda::SamplerRow;

constexpr int64_t Align16(int64_t n) { return (n + 15) / 16 * 16; }

cudaStream_t NewStream() {
  cudaStream_t stream = nullptr;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

// 1, 2, 4, 8, then in steps of an eighth of the next power of two (at least 8).
int64_t Bucket(int64_t n) {
  if (n <= 8)
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(n, 1))));
  const int64_t step =
      std::max<int64_t>(8, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n))) / 8);
  return (n + step - 1) / step * step;
}

// The first position that the step computes of each row's sequence: below it, earlier steps did.
// None of padding.
void FillSettled(const Step& step, std::span<int32_t> to) {
  std::vector<int32_t> first(step.tables.size(), std::numeric_limits<int32_t>::max());
  for (const Step::Row& row : step.rows) {
    first[row.sequence] = std::min(first[row.sequence], row.position);
  }
  for (size_t i = 0; i < to.size(); ++i) {
    to[i] = i < step.rows.size() ? first[step.rows[i].sequence] : 0;
  }
}

}  // namespace

CudaExecutor::InputLayout::InputLayout(const Extents& e) {
  int64_t at = 0;
  const auto place = [&](int64_t bytes) { return std::exchange(at, at + Align16(bytes)); };
  token_ids = place(4 * e.rows);
  positions = place(4 * e.rows);
  slots = place(4 * e.rows);
  sequence_of = place(4 * e.rows);
  settled = place(4 * e.rows);
  logit_rows = place(4 * e.samples);
  sampling = place(static_cast<int64_t>(sizeof(SamplerRow)) * e.samples);
  attention_tiles = place(static_cast<int64_t>(sizeof(kernels::cuda::AttentionTile)) * e.rows);
  lone_rows = place(4 * e.rows);
  tables = place(4 * e.sequences * e.table_stride);
  bytes = at;
}

CudaExecutor::Extents CudaExecutor::Most(const OpsLimits& limits) {
  const int64_t blocks = BlocksFor(limits.max_positions);
  Extents most;
  most.rows = Bucket(limits.max_rows);
  most.samples = Bucket(limits.max_samples);
  most.sequences = Bucket(std::max(limits.max_rows, limits.max_samples));
  most.table_stride = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(blocks)));
  return most;
}

int64_t CudaExecutor::BufferBytes(const model::ModelSpec& spec, kernels::DType dtype,
                                  const kernels::DeviceLimits& device, const OpsLimits& limits) {
  const BufferSizes sizes(spec, device, limits);
  return CudaOps::BufferBytes(spec, dtype, device, limits) + sizes.input + sizes.copies +
         sizes.sampler_workspace + sizes.output + sizes.top_workspace + sizes.top_output;
}

CudaExecutor::BufferSizes::BufferSizes(const model::ModelSpec& spec,
                                       const kernels::DeviceLimits& device,
                                       const OpsLimits& limits) {
  const Extents most = Most(limits);
  input = InputLayout(most).bytes;
  copies = static_cast<int64_t>(sizeof(kernels::KvCopy)) * most.samples;
  sampler_workspace = kernels::cuda::SamplerWorkspaceBytes(limits.max_logit_rows, spec.vocab_size);
  output = 16 * most.samples;
  if (limits.top_logprobs == 0) return;
  top_workspace =
      kernels::PlanTopLogprobs(limits.max_logit_rows, spec.vocab_size, limits.top_logprobs, device)
          .workspace_bytes;
  top_output =
      most.samples * limits.top_logprobs * static_cast<int64_t>(sizeof(kernels::TopLogprob));
}

CudaExecutor::CudaExecutor(const DeviceWeights* weights, const kernels::DeviceLimits& device,
                           const OpsLimits& limits)
    : spec_(weights->spec()),
      limits_(limits),
      stream_(NewStream()),
      ops_(weights, device, limits, stream_),
      host_kv_(ops_.Planes(), limits.swap_blocks),
      device_(device) {
  const BufferSizes sizes(spec_, device, limits);
  input_ = DeviceBuffer(sizes.input);
  copies_ = DeviceBuffer(sizes.copies);
  sampler_workspace_ = DeviceBuffer(sizes.sampler_workspace);
  output_ = DeviceBuffer(sizes.output);
  top_workspace_ = DeviceBuffer(sizes.top_workspace);
  top_output_ = DeviceBuffer(sizes.top_output);
  for (int i = 0; i < kMaxInFlight; ++i) {
    pinned_input_[i] = PinnedBuffer(sizes.input);
    pinned_copies_[i] = PinnedBuffer(sizes.copies);
    pinned_output_[i] = PinnedBuffer(sizes.output);
    pinned_top_[i] = PinnedBuffer(sizes.top_output);
    CUDA_CHECK(cudaEventCreateWithFlags(&done_[i], cudaEventDisableTiming));
  }
}

CudaExecutor::~CudaExecutor() {
  cudaStreamSynchronize(stream_);
  for (auto& [extents, graph] : graphs_) cudaGraphExecDestroy(graph);
  for (cudaEvent_t event : done_) cudaEventDestroy(event);
  cudaStreamDestroy(stream_);
}

CudaExecutor::Extents CudaExecutor::RoundUp(const Step& step) const {
  size_t blocks = 1;
  for (const std::vector<int32_t>& table : step.tables) blocks = std::max(blocks, table.size());
  Extents e;
  e.rows = std::min(Bucket(static_cast<int64_t>(step.rows.size())), limits_.max_rows);
  e.samples = std::min(Bucket(static_cast<int64_t>(step.samples.size())), limits_.max_samples);
  e.sequences = Bucket(static_cast<int64_t>(step.tables.size()));
  e.top_logprobs = step.top_logprobs ? limits_.top_logprobs : 0;
  e.table_stride = static_cast<int64_t>(std::bit_ceil(std::max<size_t>(blocks, 16)));
  return e;
}

void CudaExecutor::Fill(const Step& step, const Extents& e, std::byte* to) const {
  const InputLayout at(e);
  const auto ints = [&](int64_t offset) { return reinterpret_cast<int32_t*>(to + offset); };
  for (int64_t i = 0; i < e.rows; ++i) {
    const bool real = i < static_cast<int64_t>(step.rows.size());
    const Step::Row row = real ? step.rows[i] : Step::Row{0, -1, 0, 0};
    ints(at.token_ids)[i] = row.token_id;
    ints(at.positions)[i] = row.position;
    ints(at.slots)[i] = row.slot;
    ints(at.sequence_of)[i] = row.sequence;
  }
  FillSettled(step, {ints(at.settled), static_cast<size_t>(e.rows)});
  auto* sampling = reinterpret_cast<SamplerRow*>(to + at.sampling);
  for (int64_t i = 0; i < e.samples; ++i) {
    const bool real = i < static_cast<int64_t>(step.samples.size());
    ints(at.logit_rows)[i] = real ? step.samples[i].row : -1;
    sampling[i] = real ? step.samples[i].params : SamplerRow{};
    sampling[i].active = real;
    if (sampling[i].num_ids + sampling[i].num_banned_ids > 0) {
      sampling[i].ids = ids_.as<int32_t>() + step.samples[i].first_id;
      sampling[i].banned_ids = sampling[i].ids + sampling[i].num_ids;
    }
  }
  for (size_t i = 0; i < step.tables.size(); ++i) {
    std::memcpy(ints(at.tables) + static_cast<int64_t>(i) * e.table_stride, step.tables[i].data(),
                step.tables[i].size() * sizeof(int32_t));
  }
}

kernels::cuda::AttentionDivision CudaExecutor::FillDivision(const Extents& e, std::byte* to) const {
  const InputLayout at(e);
  const auto ints = [&](int64_t offset) {
    return std::span(reinterpret_cast<const int32_t*>(to + offset), static_cast<size_t>(e.rows));
  };
  kernels::cuda::AttentionDivision division =
      kernels::cuda::DivideRows(ints(at.positions), ints(at.sequence_of), spec_.heads);
  std::copy(division.tiles.begin(), division.tiles.end(),
            reinterpret_cast<kernels::cuda::AttentionTile*>(to + at.attention_tiles));
  std::copy(division.lone_rows.begin(), division.lone_rows.end(),
            reinterpret_cast<int32_t*>(to + at.lone_rows));
  return division;
}

void CudaExecutor::Enqueue(const Extents& e, int64_t tiles, int64_t lone_rows) {
  const InputLayout at(e);
  StepInput in;
  in.token_ids = input_.as<int32_t>(at.token_ids);
  in.previous = output_.as<int32_t>();
  in.positions = input_.as<int32_t>(at.positions);
  in.slots = input_.as<int32_t>(at.slots);
  in.sequence_of = input_.as<int32_t>(at.sequence_of);
  in.block_tables = input_.as<int32_t>(at.tables);
  in.table_stride = e.table_stride;
  // The upload of the input lies between this step's kernels and whatever wrote what is settled.
  in.settled = input_.as<int32_t>(at.settled);
  in.max_position = std::min(e.table_stride * kernels::kBlockTokens, limits_.max_positions) - 1;
  in.attention_tiles = input_.as<kernels::cuda::AttentionTile>(at.attention_tiles);
  in.num_attention_tiles = tiles;
  in.lone_rows = input_.as<int32_t>(at.lone_rows);
  in.num_lone_rows = lone_rows;
  in.logit_rows = input_.as<int32_t>(at.logit_rows);
  in.num_logit_rows = e.samples;
  const kernels::TensorView hidden = ops_.Hidden(in, e.rows);
  const int64_t n = output_.bytes() / 16;
  for (int64_t first = 0; first < e.samples; first += limits_.max_logit_rows) {
    const int64_t count = std::min(e.samples - first, limits_.max_logit_rows);
    kernels::cuda::SamplerOutput out;
    out.token_ids = output_.as<int32_t>() + first;
    out.logprobs = output_.as<float>(4 * n) + first;
    out.entropies = output_.as<float>(8 * n) + first;
    out.finite = output_.as<int32_t>(12 * n) + first;
    const kernels::TensorView logits = ops_.Head(hidden.Rows(first, count));
    const SamplerRow* rows = input_.as<SamplerRow>(at.sampling) + first;
    kernels::cuda::SampleTokens(logits, rows, sampler_workspace_.data(), out, stream_);
    if (e.top_logprobs > 0) EnqueueTopLogprobs(logits, rows, first);
  }
}

void CudaExecutor::EnqueueTopLogprobs(const kernels::TensorView& logits, const SamplerRow* rows,
                                      int64_t first) {
  const kernels::TopLogprobsPlan plan =
      kernels::PlanTopLogprobs(logits.rows, logits.cols, limits_.top_logprobs, device_);
  kernels::cuda::TopLogprobs(logits, rows, sampler_workspace_.data(), plan, top_workspace_.data(),
                             top_output_.as<kernels::TopLogprob>() + first * plan.n, stream_);
}

void CudaExecutor::RunGraph(const Extents& extents) {
  // The first time a step of these extents comes it runs launch by launch: libraries and lazily
  // loaded kernels do things then that a capture forbids.
  if (seen_.insert(extents).second) return Enqueue(extents);
  auto found = graphs_.find(extents);
  if (found == graphs_.end()) {
    if (graph_bytes_ >= kMostGraphBytes) return Enqueue(extents);
    const int64_t before = kernels::QueryDeviceMemory().free_bytes;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    Enqueue(extents);
    CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
    graph_bytes_ += std::max<int64_t>(0, before - kernels::QueryDeviceMemory().free_bytes);
    found = graphs_.emplace(extents, executable).first;
  }
  CUDA_CHECK(cudaGraphLaunch(found->second, stream_));
}

void CudaExecutor::UploadCopies(const Step& step, int buffer) {
  if (step.copies.empty()) return;
  const size_t bytes = step.copies.size() * sizeof(kernels::KvCopy);
  CHECK_LE(static_cast<int64_t>(bytes), copies_.bytes());
  std::memcpy(pinned_copies_[buffer].data(), step.copies.data(), bytes);
  CUDA_CHECK(cudaMemcpyAsync(copies_.data(), pinned_copies_[buffer].data(), bytes,
                             cudaMemcpyHostToDevice, stream_));
  ops_.CopyKv(copies_.as<kernels::KvCopy>(), static_cast<int64_t>(step.copies.size()));
}

// Rare (penalties and minimum lengths), so it may wait.
void CudaExecutor::UploadIds(const Step& step) {
  if (step.ids.empty()) return;
  const int64_t bytes = static_cast<int64_t>(step.ids.size() * sizeof(int32_t));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
  if (ids_.bytes() < bytes) ids_ = DeviceBuffer(2 * bytes);
  CUDA_CHECK(cudaMemcpyAsync(ids_.data(), step.ids.data(), static_cast<size_t>(bytes),
                             cudaMemcpyHostToDevice, stream_));
}

int32_t CudaExecutor::Peek(int64_t sample) {
  CHECK_GT(in_flight_, 0);
  const int buffer = (next_ + kMaxInFlight - 1) % kMaxInFlight;
  CUDA_CHECK(cudaEventSynchronize(done_[buffer]));
  CHECK_LT(sample, num_samples_[buffer]);
  return pinned_output_[buffer].as<int32_t>()[sample];
}

// Enqueued behind the step, before the event that Collect waits for.
void CudaExecutor::DownloadRoutedExperts(const Step& step, int buffer) {
  routed_bytes_[buffer] = 0;
  if (!step.routed_experts) return;
  PinnedBuffer& to = pinned_routed_[buffer];
  if (to.bytes() == 0) to = PinnedBuffer(limits_.max_rows * ops_.routed_row_bytes());
  const int64_t bytes = static_cast<int64_t>(step.rows.size()) * ops_.routed_row_bytes();
  CUDA_CHECK(cudaMemcpyAsync(to.data(), ops_.routed_experts(), static_cast<size_t>(bytes),
                             cudaMemcpyDeviceToHost, stream_));
  routed_bytes_[buffer] = bytes;
}

void CudaExecutor::DownloadTopLogprobs(const Step& step, int buffer) {
  num_top_[buffer] =
      step.top_logprobs ? static_cast<int64_t>(step.samples.size()) * limits_.top_logprobs : 0;
  if (num_top_[buffer] == 0) return;
  const auto bytes = static_cast<size_t>(num_top_[buffer]) * sizeof(kernels::TopLogprob);
  CUDA_CHECK(cudaMemcpyAsync(pinned_top_[buffer].data(), top_output_.data(), bytes,
                             cudaMemcpyDeviceToHost, stream_));
}

void CudaExecutor::Launch(const Step& step) {
  CHECK_LT(in_flight_, kMaxInFlight);
  CHECK(!step.rows.empty());
  const int buffer = next_;
  next_ = (next_ + 1) % kMaxInFlight;
  UploadCopies(step, buffer);
  UploadIds(step);
  const Extents extents = RoundUp(step);
  const InputLayout layout(extents);
  CHECK_LE(layout.bytes, input_.bytes());
  Fill(step, extents, pinned_input_[buffer].data());
  // Steps of one row a sequence recur and become graphs; prompts come in all sizes.
  const bool decode = step.rows.size() == step.samples.size();
  kernels::cuda::AttentionDivision division;
  if (!decode) division = FillDivision(extents, pinned_input_[buffer].data());
  CUDA_CHECK(cudaMemcpyAsync(input_.data(), pinned_input_[buffer].data(),
                             static_cast<size_t>(layout.bytes), cudaMemcpyHostToDevice, stream_));
  if (decode) {
    RunGraph(extents);
  } else {
    Enqueue(extents, static_cast<int64_t>(division.tiles.size()),
            static_cast<int64_t>(division.lone_rows.size()));
  }
  num_samples_[buffer] = static_cast<int64_t>(step.samples.size());
  if (num_samples_[buffer] > 0) {
    CUDA_CHECK(cudaMemcpyAsync(pinned_output_[buffer].data(), output_.data(),
                               static_cast<size_t>(output_.bytes()), cudaMemcpyDeviceToHost,
                               stream_));
  }
  DownloadRoutedExperts(step, buffer);
  DownloadTopLogprobs(step, buffer);
  CUDA_CHECK(cudaEventRecord(done_[buffer], stream_));
  ++in_flight_;
}

StepResult CudaExecutor::Collect() {
  CHECK_GT(in_flight_, 0);
  const int buffer = (next_ + kMaxInFlight - in_flight_) % kMaxInFlight;
  CUDA_CHECK(cudaEventSynchronize(done_[buffer]));
  --in_flight_;
  const int64_t n = num_samples_[buffer], stride = output_.bytes() / 16;
  const PinnedBuffer& out = pinned_output_[buffer];
  const auto floats = [&](int64_t i) { return out.as<float>(4 * i * stride); };
  const auto ints = [&](int64_t i) { return out.as<int32_t>(4 * i * stride); };
  StepResult result;
  result.token_ids.assign(ints(0), ints(0) + n);
  result.logprobs.assign(floats(1), floats(1) + n);
  result.entropies.assign(floats(2), floats(2) + n);
  result.finite.assign(ints(3), ints(3) + n);
  const auto* top = pinned_top_[buffer].as<kernels::TopLogprob>();
  if (num_top_[buffer] > 0) result.top_logprobs.assign(top, top + num_top_[buffer]);
  const uint8_t* routed = pinned_routed_[buffer].as<uint8_t>();
  if (routed_bytes_[buffer] > 0) {
    result.routed_experts.assign(routed, routed + routed_bytes_[buffer]);
  }
  return result;
}

}  // namespace orrery::rollout::cuda
