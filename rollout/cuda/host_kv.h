// KV blocks set aside in pinned memory of the host, taken once: the copies of SwapSpace on a GPU.
// One thread calls.
//
// A block lies in as many planes as a model has layers with keys, and again with values: one piece
// a plane, `block_bytes` long. The host holds every plane's pieces beside one another, as the
// device does, so a run of blocks is one stretch of each plane; planes at equal distances, of at
// most kMostPitch, are copied by one call (a two-dimensional copy, a row a plane).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/device_buffer.h"
#include "rollout/swap_space.h"

namespace orrery::rollout::cuda {

// Of a two-dimensional copy: cudaDevAttrMaxPitch of every GPU so far.
inline constexpr int64_t kMostPitch = INT32_MAX;

// Pieces of one kind of all blocks.
struct KvPlane {
  std::byte* data = nullptr;  // on the device
  int64_t block_bytes = 0;
};

// Planes of equal pieces at equal distances, on the device and in the host's memory.
struct PlaneGroup {
  std::byte* device = nullptr;  // of the first
  int64_t device_pitch = 0;     // from one to the next
  int64_t host_offset = 0, host_pitch = 0;
  int64_t block_bytes = 0;
  int64_t count = 0;
};

// In order, the host's planes without gaps.
std::vector<PlaneGroup> GroupPlanes(std::span<const KvPlane> planes, int64_t host_blocks);

// Consecutive blocks of both memories.
struct SwapRun {
  KvSwap first;
  int64_t count = 0;
};
std::vector<SwapRun> ToRuns(std::span<const KvSwap> swaps);

class HostKv {
 public:
  HostKv() = default;
  // Planes stay where they are.
  HostKv(std::span<const KvPlane> planes, int64_t host_blocks);

  static int64_t BlockBytes(std::span<const KvPlane> planes);

  // Enqueues the copies, in order; does not wait.
  void Swap(std::span<const KvSwap> swaps, cudaStream_t stream);

 private:
  void Copy(const PlaneGroup& group, const SwapRun& run, cudaStream_t stream);

  int64_t host_blocks_ = 0;
  std::vector<PlaneGroup> groups_;
  kernels::cuda::PinnedBuffer memory_;
};

}  // namespace orrery::rollout::cuda
