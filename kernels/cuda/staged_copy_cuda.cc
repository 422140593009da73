#include <algorithm>
#include <cstring>

#include "kernels/cpu/thread_pool.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/staged_copy.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int64_t kPieceBytes = int64_t{32} << 20;
constexpr int64_t kTaskBytes = int64_t{1} << 20;  // of a CPU thread at a time
constexpr int kBuffers = 3;

void CopyInParallel(void* to, const void* from, int64_t bytes) {
  ParallelFor((bytes + kTaskBytes - 1) / kTaskBytes, [&](int64_t i) {
    const int64_t first = i * kTaskBytes;
    std::memcpy(static_cast<char*>(to) + first, static_cast<const char*>(from) + first,
                static_cast<size_t>(std::min(kTaskBytes, bytes - first)));
  });
}

// Pinned buffers in turn, each with the event of its last copy.
class Stages {
 public:
  explicit Stages(cudaStream_t stream) : stream_(stream) {
    for (Stage& stage : stages_) {
      stage.buffer = PinnedBuffer(kPieceBytes);
      CUDA_CHECK(cudaEventCreateWithFlags(&stage.done, cudaEventDisableTiming));
    }
  }
  ~Stages() {
    for (Stage& stage : stages_) cudaEventDestroy(stage.done);
  }
  std::byte* data(int64_t piece) { return stages_[piece % kBuffers].buffer.data(); }
  void Wait(int64_t piece) { CUDA_CHECK(cudaEventSynchronize(stages_[piece % kBuffers].done)); }
  void Copy(int64_t piece, void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream_));
    CUDA_CHECK(cudaEventRecord(stages_[piece % kBuffers].done, stream_));
  }

 private:
  struct Stage {
    PinnedBuffer buffer;
    cudaEvent_t done = nullptr;
  };
  const cudaStream_t stream_;
  Stage stages_[kBuffers];
};

struct Piece {
  int64_t first, bytes;
};
Piece PieceOf(int64_t i, int64_t bytes) {
  return {i * kPieceBytes, std::min(kPieceBytes, bytes - i * kPieceBytes)};
}

void CopyWhole(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind,
               cudaStream_t stream) {
  CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
}

}  // namespace

void CopyToDevice(void* device, const void* host, int64_t bytes, cudaStream_t stream) {
  const int64_t pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
  if (pieces <= 1) return CopyWhole(device, host, bytes, cudaMemcpyHostToDevice, stream);
  Stages stages(stream);
  for (int64_t i = 0; i < pieces; ++i) {
    const Piece piece = PieceOf(i, bytes);
    if (i >= kBuffers) stages.Wait(i);  // of piece i - kBuffers
    CopyInParallel(stages.data(i), static_cast<const char*>(host) + piece.first, piece.bytes);
    stages.Copy(i, static_cast<char*>(device) + piece.first, stages.data(i), piece.bytes,
                cudaMemcpyHostToDevice);
  }
  CUDA_CHECK(cudaStreamSynchronize(stream));
}

void CopyToHost(void* host, const void* device, int64_t bytes, cudaStream_t stream) {
  const int64_t pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
  if (pieces <= 1) return CopyWhole(host, device, bytes, cudaMemcpyDeviceToHost, stream);
  Stages stages(stream);
  const auto ask = [&](int64_t i) {
    const Piece piece = PieceOf(i, bytes);
    stages.Copy(i, stages.data(i), static_cast<const char*>(device) + piece.first, piece.bytes,
                cudaMemcpyDeviceToHost);
  };
  for (int64_t i = 0; i < std::min<int64_t>(kBuffers, pieces); ++i) ask(i);
  for (int64_t i = 0; i < pieces; ++i) {
    const Piece piece = PieceOf(i, bytes);
    stages.Wait(i);
    CopyInParallel(static_cast<char*>(host) + piece.first, stages.data(i), piece.bytes);
    if (i + kBuffers < pieces) ask(i + kBuffers);
  }
}

}  // namespace orrery::kernels::cuda
