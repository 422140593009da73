// Runs steps of the rollout engine on a GPU: uploads what the scheduler planned, launches forward
// pass and sampler (decode steps as one graph launch), and brings back the tokens. Two steps may be
// in flight: the second takes its tokens from the first on the device, so the host is never waited
// for.
//
// One thread calls. CUDA errors end the process (kernels/cuda/cuda_check.h).
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "kernels/sampler/sampler_cuda.h"
#include "kernels/sampler/top_logprobs_cuda.h"
#include "rollout/cuda/cuda_ops.h"

namespace orrery::rollout::cuda {

// One step as the scheduler plans it. Rows are tokens to compute, samples are tokens to draw. Keys
// and values of a sequence's positions before its first row are those of earlier steps, swaps and
// copies: no row of the same step writes them.
struct Step {
  struct Row {
    int32_t token_id = 0;  // -1 - j: what sample j of the step before draws
    int32_t position = 0;
    int32_t slot = 0;      // block * 16 + offset
    int32_t sequence = 0;  // index into tables
  };
  struct Sample {
    int32_t row = 0;                   // whose logits
    kernels::cuda::SamplerRow params;  // ids and banned_ids are set by Launch
    int64_t first_id = 0;              // of params.num_ids, then params.num_banned_ids, in `ids`
  };
  std::vector<Row> rows;
  std::vector<Sample> samples;
  std::vector<std::vector<int32_t>> tables;  // KV blocks of each sequence, from position 0
  std::vector<kernels::KvCopy> copies;       // before the step, in every layer
  std::vector<int32_t> ids;                  // that penalties and bans of samples read
  bool routed_experts = false;               // bring back the experts of all rows
  bool top_logprobs = false;  // and OpsLimits::top_logprobs most likely tokens of every sample
};

struct StepResult {
  std::vector<int32_t> token_ids;
  std::vector<float> logprobs;
  std::vector<float> entropies;
  std::vector<int32_t> finite;
  std::vector<uint8_t> routed_experts;  // PassResult::routed_experts
  std::vector<kernels::TopLogprob> top_logprobs;
};

class CudaExecutor {
 public:
  static constexpr int kMaxInFlight = 2;

  // weights is borrowed.
  CudaExecutor(const DeviceWeights* weights, const kernels::DeviceLimits& device,
               const OpsLimits& limits);
  ~CudaExecutor();

  // Device memory that construction takes beside keys and values.
  static int64_t BufferBytes(const model::ModelSpec& spec, kernels::DType dtype,
                             const kernels::DeviceLimits& device, const OpsLimits& limits);
  // Graphs are captured until they take so much; steps of further extents run launch by launch.
  static constexpr int64_t kMostGraphBytes = int64_t{1} << 30;
  int64_t graph_bytes() const { return graph_bytes_; }

  // The memory of keys and values (CudaOps). REQUIRES: no step is in flight.
  void GiveBackKv() { ops_.GiveBackKv(); }
  void TakeKv() { ops_.TakeKv(); }
  void TrimPool() { ops_.TrimPool(); }

  // REQUIRES: fewer than kMaxInFlight steps in flight.
  void Launch(const Step& step);
  // Blocks to the host's memory (swap_blocks of the limits) and back, behind the steps in flight.
  void Swap(std::span<const KvSwap> swaps) { host_kv_.Swap(swaps, stream_); }
  // Waits for the oldest step in flight.
  StepResult Collect();
  int in_flight() const { return in_flight_; }
  // Token of a sample of the newest step in flight. Waits for it.
  int32_t Peek(int64_t sample);

  void RandomiseKv(uint64_t seed) { ops_.RandomiseKv(seed); }
  double ExpertsTouched() const { return ops_.ExpertsTouched(); }

  cudaStream_t stream() const { return stream_; }
  int64_t num_graphs() const { return static_cast<int64_t>(graphs_.size()); }

 private:
  // Extents that a graph is captured for, rounded up; padding is marked on the device.
  struct Extents {
    int64_t rows = 0, samples = 0, sequences = 0, table_stride = 0;
    int64_t top_logprobs = 0;
    auto operator<=>(const Extents&) const = default;
  };
  // Byte offsets of a step's arrays in its input block.
  struct InputLayout {
    explicit InputLayout(const Extents& e);
    int64_t token_ids, positions, slots, sequence_of, settled, logit_rows, sampling,
        attention_tiles, lone_rows, tables, bytes;
  };
  // Bytes of the buffers that construction takes.
  struct BufferSizes {
    BufferSizes(const model::ModelSpec& spec, const kernels::DeviceLimits& device,
                const OpsLimits& limits);
    int64_t input = 0, copies = 0, sampler_workspace = 0, output = 0, top_workspace = 0,
            top_output = 0;
  };
  static Extents Most(const OpsLimits& limits);
  Extents RoundUp(const Step& step) const;
  void Fill(const Step& step, const Extents& extents, std::byte* to) const;
  // Deals the rows of a filled step to the kernels of attention.
  kernels::cuda::AttentionDivision FillDivision(const Extents& extents, std::byte* to) const;
  void UploadCopies(const Step& step, int buffer);
  void UploadIds(const Step& step);
  void DownloadRoutedExperts(const Step& step, int buffer);
  void DownloadTopLogprobs(const Step& step, int buffer);
  // Of samples [first, first + logits.rows).
  void EnqueueTopLogprobs(const kernels::TensorView& logits, const kernels::cuda::SamplerRow* rows,
                          int64_t first);
  // Numbers of attention's tiles and lone rows; no tiles in a graph, where every row goes alone.
  void Enqueue(const Extents& extents, int64_t tiles = 0, int64_t lone_rows = 0);
  void RunGraph(const Extents& extents);

  const model::ModelSpec& spec_;
  const OpsLimits limits_;
  cudaStream_t stream_;
  CudaOps ops_;
  HostKv host_kv_;
  const kernels::DeviceLimits device_;
  DeviceBuffer input_, copies_, ids_, sampler_workspace_, output_;
  DeviceBuffer top_workspace_, top_output_;  // of top log-probs, where they may be asked for
  PinnedBuffer pinned_input_[kMaxInFlight], pinned_copies_[kMaxInFlight],
      pinned_output_[kMaxInFlight];
  cudaEvent_t done_[kMaxInFlight];
  PinnedBuffer pinned_routed_[kMaxInFlight];  // made when first asked for
  int64_t routed_bytes_[kMaxInFlight] = {};
  PinnedBuffer pinned_top_[kMaxInFlight];
  int64_t num_top_[kMaxInFlight] = {};
  int64_t num_samples_[kMaxInFlight] = {};
  int in_flight_ = 0, next_ = 0;
  std::set<Extents> seen_;
  std::map<Extents, cudaGraphExec_t> graphs_;
  int64_t graph_bytes_ = 0;
};

}  // namespace orrery::rollout::cuda
