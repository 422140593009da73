// AdamW over the flat buffers of a model on one GPU: float32 master weights and moments, in the
// GPU's memory or in pinned memory of the host. From there a step streams them through the GPU in
// chunks, what comes in, what is computed and what goes out at the same time; the arithmetic is the
// same kernel over the same pieces, so the result is the same bit for bit.
//
// One thread, one stream; Step and GradNorm wait for the device.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/adamw/adamw_cuda.h"
#include "kernels/cuda/device_buffer.h"
#include "trainer/model/cuda/device_weights.h"

namespace orrery::trainer {

class DeviceOptimizer {
 public:
  static constexpr int64_t kChunkElements = int64_t{8} << 20;

  // Master weights become the weights, moments 0. chunk_elements: of what is streamed, for tests.
  DeviceOptimizer(const model::DeviceWeights& weights, bool on_host, cudaStream_t stream,
                  int64_t chunk_elements = kChunkElements);
  ~DeviceOptimizer();

  // Master weights and moments, wherever they are.
  static int64_t StateBytes(const model::WeightLayout& layout) {
    return 3 * 4 * layout.num_elements;
  }
  // What the GPU holds of them where they are on the host.
  static int64_t StagingBytes(const model::WeightLayout& layout);
  // The table of what a step goes through.
  static int64_t TableBytes(const model::WeightLayout& layout);

  double GradNorm(const float* grads);
  void Step(const kernels::cuda::AdamWHyperparameters& h, const float* grads,
            model::DeviceWeights* weights);

  absl::Status Save(const std::string& folder, int64_t steps) const;
  // Weights are rounded from the master weights. Returns the steps that were taken.
  absl::StatusOr<int64_t> Load(const std::string& folder, model::DeviceWeights* weights);

 private:
  static constexpr int kBuffers = 3;
  enum Part { kMaster, kMoment1, kMoment2, kParts };
  // Consecutive pieces that are streamed together.
  struct Chunk {
    int64_t first_piece = 0, num_pieces = 0;
    int64_t first = 0, count = 0;  // elements
  };
  static std::vector<Chunk> CutIntoChunks(const std::vector<kernels::cuda::AdamWPiece>& pieces,
                                          int64_t chunk_elements);

  float* Host(Part part) const { return host_[part].as<float>(); }
  float* Device(Part part) const { return device_[part].as<float>(); }
  float* Staging(int buffer, Part part) const;
  // All chunks through the GPU: `work` on stream_ has a chunk's parts in staging memory.
  template <typename Work>
  void Stream(const Work& work);
  std::vector<float> Download(Part part) const;

  const bool on_host_;
  const cudaStream_t stream_;
  const int64_t num_elements_;
  int64_t num_pieces_ = 0, staged_elements_ = 0;
  std::vector<Chunk> chunks_;  // of what is on the host
  kernels::cuda::DeviceBuffer pieces_, sums_, staging_;
  kernels::cuda::PinnedBuffer norm_;
  std::array<kernels::cuda::DeviceBuffer, kParts> device_;
  std::array<kernels::cuda::PinnedBuffer, kParts> host_;
  cudaStream_t in_ = nullptr, out_ = nullptr;
  std::array<cudaEvent_t, kBuffers> arrived_ = {}, done_ = {}, gone_ = {};
};

}  // namespace orrery::trainer
