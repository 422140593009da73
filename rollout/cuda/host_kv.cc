#include "rollout/cuda/host_kv.h"

#include <utility>

#include "orchestrator/base/check.h"

namespace orrery::rollout::cuda {

std::vector<PlaneGroup> GroupPlanes(std::span<const KvPlane> planes, int64_t host_blocks) {
  std::vector<PlaneGroup> groups;
  int64_t at = 0;
  for (const KvPlane& plane : planes) {
    const int64_t bytes = plane.block_bytes * host_blocks;
    PlaneGroup* last = groups.empty() ? nullptr : &groups.back();
    // The second of a group says at which distance they lie.
    const bool second = last != nullptr && last->count == 1;
    const int64_t from_last = last == nullptr ? 0 : plane.data - last->device;
    const bool fits = second ? from_last >= plane.block_bytes && from_last <= kMostPitch
                             : last != nullptr && from_last == last->count * last->device_pitch;
    const bool joins = fits && bytes <= kMostPitch && plane.block_bytes == last->block_bytes;
    if (joins) {
      if (second) last->device_pitch = from_last;
      ++last->count;
    } else {
      groups.push_back({plane.data, bytes, at, bytes, plane.block_bytes, 1});
    }
    at += bytes;
  }
  return groups;
}

std::vector<SwapRun> ToRuns(std::span<const KvSwap> swaps) {
  std::vector<SwapRun> runs;
  for (const KvSwap& s : swaps) {
    if (!runs.empty()) {
      SwapRun& last = runs.back();
      const auto n = static_cast<int32_t>(last.count);
      if (s == KvSwap{last.first.block + n, last.first.host_block + n, last.first.out}) {
        ++last.count;
        continue;
      }
    }
    runs.push_back({s, 1});
  }
  return runs;
}

int64_t HostKv::BlockBytes(std::span<const KvPlane> planes) {
  int64_t bytes = 0;
  for (const KvPlane& plane : planes) bytes += plane.block_bytes;
  return bytes;
}

HostKv::HostKv(std::span<const KvPlane> planes, int64_t host_blocks)
    : host_blocks_(host_blocks),
      groups_(GroupPlanes(planes, host_blocks)),
      memory_(BlockBytes(planes) * host_blocks) {}

void HostKv::Swap(std::span<const KvSwap> swaps, cudaStream_t stream) {
  for (const SwapRun& run : ToRuns(swaps)) {
    CHECK_LE(run.first.host_block + run.count, host_blocks_);
    for (const PlaneGroup& group : groups_) Copy(group, run, stream);
  }
}

void HostKv::Copy(const PlaneGroup& g, const SwapRun& run, cudaStream_t stream) {
  std::byte* to = memory_.data() + g.host_offset + run.first.host_block * g.block_bytes;
  std::byte* from = g.device + run.first.block * g.block_bytes;
  int64_t to_pitch = g.host_pitch, from_pitch = g.device_pitch;
  if (!run.first.out) {
    std::swap(to, from);
    std::swap(to_pitch, from_pitch);
  }
  const cudaMemcpyKind kind = run.first.out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
  const auto width = static_cast<size_t>(run.count * g.block_bytes);
  if (g.count == 1) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, width, kind, stream));
  } else {
    CUDA_CHECK(cudaMemcpy2DAsync(to, static_cast<size_t>(to_pitch), from,
                                 static_cast<size_t>(from_pitch), width,
                                 static_cast<size_t>(g.count), kind, stream));
  }
}

}  // namespace orrery::rollout::cuda
