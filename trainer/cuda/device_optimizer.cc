#include "trainer/cuda/device_optimizer.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/staged_copy.h"
#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"
#include "trainer/optimizer_file.h"

namespace orrery::trainer {

using kernels::cuda::AdamWPiece;
using kernels::cuda::DeviceBuffer;
using kernels::cuda::PinnedBuffer;
using model::DeviceWeights;

namespace {

std::vector<AdamWPiece> CutIntoPieces(const model::WeightLayout& layout) {
  std::vector<AdamWPiece> pieces;
  for (const model::Param& p : layout.params) {
    for (int64_t at = 0; at < p.num_elements(); at += kernels::cuda::kAdamWPiece) {
      const int64_t count = std::min(kernels::cuda::kAdamWPiece, p.num_elements() - at);
      pieces.push_back({p.offset + at, static_cast<int32_t>(count), p.decay});
    }
  }
  return pieces;
}

// Where element 0 would be, if element `first` is at `data`: pieces say absolute places.
float* Shifted(float* data, int64_t first) {
  return reinterpret_cast<float*>(reinterpret_cast<uintptr_t>(data) -
                                  static_cast<uintptr_t>(4 * first));
}

void* At(const DeviceWeights& weights, int64_t element) {
  return static_cast<std::byte*>(weights.data()) + element * kernels::SizeOf(weights.dtype());
}

int64_t StagedElements(int64_t num_elements, int64_t chunk_elements) {
  return (std::min(num_elements, chunk_elements) + 63) / 64 * 64;
}

}  // namespace

int64_t DeviceOptimizer::StagingBytes(const model::WeightLayout& layout) {
  return int64_t{4} * kBuffers * kParts * StagedElements(layout.num_elements, kChunkElements);
}

int64_t DeviceOptimizer::TableBytes(const model::WeightLayout& layout) {
  const auto pieces = static_cast<int64_t>(CutIntoPieces(layout).size());
  return pieces * static_cast<int64_t>(sizeof(AdamWPiece)) + 8 * (pieces + 1);
}

std::vector<DeviceOptimizer::Chunk> DeviceOptimizer::CutIntoChunks(
    const std::vector<AdamWPiece>& pieces, int64_t chunk_elements) {
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const int64_t end = pieces[i].first + pieces[i].count;
    if (chunks.empty() || end - chunks.back().first > chunk_elements) {
      chunks.push_back({static_cast<int64_t>(i), 0, pieces[i].first, 0});
    }
    ++chunks.back().num_pieces;
    chunks.back().count = end - chunks.back().first;
  }
  return chunks;
}

DeviceOptimizer::DeviceOptimizer(const DeviceWeights& weights, bool on_host, cudaStream_t stream,
                                 int64_t chunk_elements)
    : on_host_(on_host), stream_(stream), num_elements_(weights.layout().num_elements) {
  CHECK_GE(chunk_elements, kernels::cuda::kAdamWPiece);
  const std::vector<AdamWPiece> pieces = CutIntoPieces(weights.layout());
  num_pieces_ = static_cast<int64_t>(pieces.size());
  pieces_ = DeviceBuffer(num_pieces_ * static_cast<int64_t>(sizeof(AdamWPiece)));
  CUDA_CHECK(cudaMemcpy(pieces_.data(), pieces.data(), static_cast<size_t>(pieces_.bytes()),
                        cudaMemcpyHostToDevice));
  sums_ = DeviceBuffer((num_pieces_ + 1) * 8);
  norm_ = PinnedBuffer(8);
  if (!on_host) {
    for (DeviceBuffer& buffer : device_) {
      buffer = DeviceBuffer(4 * num_elements_);
      CUDA_CHECK(cudaMemset(buffer.data(), 0, static_cast<size_t>(buffer.bytes())));
    }
    kernels::cuda::WidenWeights(weights.data(), num_elements_, weights.dtype(), Device(kMaster),
                                stream_);
    CUDA_CHECK(cudaDeviceSynchronize());
    return;
  }
  chunks_ = CutIntoChunks(pieces, chunk_elements);
  staged_elements_ = StagedElements(num_elements_, chunk_elements);
  staging_ = DeviceBuffer(int64_t{4} * kBuffers * kParts * staged_elements_);
  for (PinnedBuffer& buffer : host_) {
    buffer = PinnedBuffer(4 * num_elements_);
    std::memset(buffer.data(), 0, static_cast<size_t>(buffer.bytes()));
  }
  for (cudaStream_t* s : {&in_, &out_}) {
    CUDA_CHECK(cudaStreamCreateWithFlags(s, cudaStreamNonBlocking));
  }
  for (auto* events : {&arrived_, &done_, &gone_}) {
    for (cudaEvent_t& event : *events) {
      CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    }
  }
  CUDA_CHECK(cudaDeviceSynchronize());  // weights may have been written on another stream
  Stream([&](const Chunk& chunk, int buffer) {
    kernels::cuda::WidenWeights(At(weights, chunk.first), chunk.count, weights.dtype(),
                                Staging(buffer, kMaster), stream_);
  });
}

DeviceOptimizer::~DeviceOptimizer() {
  if (!on_host_) return;
  for (cudaStream_t s : {in_, stream_, out_}) cudaStreamSynchronize(s);
  for (const auto* events : {&arrived_, &done_, &gone_}) {
    for (cudaEvent_t event : *events) cudaEventDestroy(event);
  }
  cudaStreamDestroy(in_);
  cudaStreamDestroy(out_);
}

float* DeviceOptimizer::Staging(int buffer, Part part) const {
  return staging_.as<float>() + (buffer * kParts + part) * staged_elements_;
}

// Chunk c is in buffer c % kBuffers: it arrives once the one before it there has gone.
template <typename Work>
void DeviceOptimizer::Stream(const Work& work) {
  for (size_t c = 0; c < chunks_.size(); ++c) {
    const Chunk& chunk = chunks_[c];
    const int b = static_cast<int>(c % kBuffers);
    const auto bytes = static_cast<size_t>(4 * chunk.count);
    if (c >= kBuffers) CUDA_CHECK(cudaStreamWaitEvent(in_, gone_[b]));
    for (const Part part : {kMaster, kMoment1, kMoment2}) {
      CUDA_CHECK(cudaMemcpyAsync(Staging(b, part), Host(part) + chunk.first, bytes,
                                 cudaMemcpyHostToDevice, in_));
    }
    CUDA_CHECK(cudaEventRecord(arrived_[b], in_));
    CUDA_CHECK(cudaStreamWaitEvent(stream_, arrived_[b]));
    work(chunk, b);
    CUDA_CHECK(cudaEventRecord(done_[b], stream_));
    CUDA_CHECK(cudaStreamWaitEvent(out_, done_[b]));
    for (const Part part : {kMaster, kMoment1, kMoment2}) {
      CUDA_CHECK(cudaMemcpyAsync(Host(part) + chunk.first, Staging(b, part), bytes,
                                 cudaMemcpyDeviceToHost, out_));
    }
    CUDA_CHECK(cudaEventRecord(gone_[b], out_));
  }
  CUDA_CHECK(cudaStreamSynchronize(out_));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
}

double DeviceOptimizer::GradNorm(const float* grads) {
  double* norm = sums_.as<double>() + num_pieces_;
  kernels::cuda::GradNorm(grads, pieces_.as<AdamWPiece>(), num_pieces_, sums_.as<double>(), norm,
                          stream_);
  CUDA_CHECK(cudaMemcpyAsync(norm_.data(), norm, 8, cudaMemcpyDeviceToHost, stream_));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
  return *norm_.as<double>();
}

void DeviceOptimizer::Step(const kernels::cuda::AdamWHyperparameters& h, const float* grads,
                           DeviceWeights* weights) {
  if (!on_host_) {
    kernels::cuda::AdamWStep(h, pieces_.as<AdamWPiece>(), num_pieces_, grads, Device(kMaster),
                             Device(kMoment1), Device(kMoment2), weights->data(), weights->dtype(),
                             stream_);
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    return;
  }
  Stream([&](const Chunk& chunk, int buffer) {
    const auto part = [&](Part p) { return Shifted(Staging(buffer, p), chunk.first); };
    kernels::cuda::AdamWStep(h, pieces_.as<AdamWPiece>() + chunk.first_piece, chunk.num_pieces,
                             grads, part(kMaster), part(kMoment1), part(kMoment2), weights->data(),
                             weights->dtype(), stream_);
  });
}

std::vector<float> DeviceOptimizer::Download(Part part) const {
  std::vector<float> values(static_cast<size_t>(num_elements_));
  kernels::cuda::CopyToHost(values.data(), Device(part), 4 * num_elements_, stream_);
  return values;
}

absl::Status DeviceOptimizer::Save(const std::string& folder, int64_t steps) const {
  const auto n = static_cast<size_t>(num_elements_);
  if (on_host_) {
    return SaveOptimizer(folder, {Host(kMaster), n}, {Host(kMoment1), n}, {Host(kMoment2), n},
                         steps);
  }
  return SaveOptimizer(folder, Download(kMaster), Download(kMoment1), Download(kMoment2), steps);
}

absl::StatusOr<int64_t> DeviceOptimizer::Load(const std::string& folder, DeviceWeights* weights) {
  ASSIGN_OR_RETURN(const OptimizerState state,
                   LoadOptimizer(folder, static_cast<size_t>(num_elements_)));
  const std::vector<float>* parts[kParts] = {&state.master, &state.moment1, &state.moment2};
  for (const Part part : {kMaster, kMoment1, kMoment2}) {
    if (on_host_) {
      std::memcpy(Host(part), parts[part]->data(), parts[part]->size() * 4);
    } else {
      kernels::cuda::CopyToDevice(Device(part), parts[part]->data(), 4 * num_elements_, stream_);
    }
  }
  if (on_host_) {
    Stream([&](const Chunk& chunk, int buffer) {
      kernels::cuda::RoundWeights(Staging(buffer, kMaster), chunk.count, At(*weights, chunk.first),
                                  weights->dtype(), stream_);
    });
  } else {
    kernels::cuda::RoundWeights(Device(kMaster), num_elements_, weights->data(), weights->dtype(),
                                stream_);
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }
  return state.steps;
}

}  // namespace orrery::trainer
