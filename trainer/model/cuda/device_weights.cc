#include "trainer/model/cuda/device_weights.h"

#include <cmath>

#include "kernels/cuda/fill.h"
#include "kernels/cuda/staged_copy.h"
#include "orchestrator/base/hash.h"

namespace orrery::model {

using kernels::TensorView;

int64_t RopeBytes(const ModelSpec& spec, int64_t positions) {
  return positions * spec.heads.head_dim * 4;
}

kernels::cuda::DeviceBuffer UploadRope(const ModelSpec& spec, int64_t positions) {
  const kernels::RopeTable table(spec.rope_inv_freq, positions);
  const int64_t bytes = RopeBytes(spec, positions);
  kernels::cuda::DeviceBuffer buffer(bytes);
  CUDA_CHECK(
      cudaMemcpy(buffer.data(), table.Row(0), static_cast<size_t>(bytes), cudaMemcpyHostToDevice));
  return buffer;
}

DeviceWeights::DeviceWeights(const ModelSpec& spec, kernels::DType dtype)
    : DeviceWeights(spec, dtype, kernels::cuda::MakeDevicePool()) {}

DeviceWeights::DeviceWeights(const ModelSpec& spec, kernels::DType dtype,
                             std::shared_ptr<kernels::cuda::PagePool> pool)
    : spec_(spec), layout_(spec), dtype_(dtype), pool_(std::move(pool)), memory_(pool_, bytes()) {
  memory_.Grow(bytes());
}

std::unique_ptr<DeviceWeights> DeviceWeights::Unbacked(const ModelSpec& spec,
                                                       kernels::DType dtype) {
  return std::unique_ptr<DeviceWeights>(
      new DeviceWeights(spec, dtype, kernels::cuda::MakeCountingPool()));
}

void DeviceWeights::Sleep(cudaStream_t stream) {
  CHECK(asleep_.bytes() == 0);
  asleep_ = kernels::cuda::PinnedBuffer(bytes());
  CUDA_CHECK(cudaMemcpyAsync(asleep_.data(), data(), static_cast<size_t>(bytes()),
                             cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  memory_.Shrink(0);
  pool_->Trim();
}

void DeviceWeights::Wake(cudaStream_t stream) {
  CHECK(asleep_.bytes() == bytes());
  memory_.Grow(bytes());
  CUDA_CHECK(cudaMemcpyAsync(data(), asleep_.data(), static_cast<size_t>(bytes()),
                             cudaMemcpyHostToDevice, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  asleep_ = kernels::cuda::PinnedBuffer();
}

std::unique_ptr<DeviceWeights> DeviceWeights::CopyOf(const WeightStore& store) {
  auto weights = std::make_unique<DeviceWeights>(store.spec(), store.dtype());
  weights->CopyFrom(store, /*stream=*/nullptr);
  return weights;
}

TensorView DeviceWeights::View(ParamId id) const {
  if (id == kNoParam) return {};
  const Param& p = layout_.params[id];
  return {memory_.data() + p.offset * kernels::SizeOf(dtype_), dtype_, p.rows, p.cols, p.cols};
}

void DeviceWeights::CopyFrom(const WeightStore& store, cudaStream_t stream) {
  CHECK(!store.in_update() && store.dtype() == dtype_ &&
        store.layout().num_elements == layout_.num_elements);
  // The flat buffer does not change hands: a const store has no other way to its bytes.
  const std::byte* flat = static_cast<const std::byte*>(store.View(0).data) -
                          store.layout().params[0].offset * kernels::SizeOf(dtype_);
  kernels::cuda::CopyToDevice(memory_.data(), flat, bytes(), stream);
  version_ = store.version();
}

void DeviceWeights::CopyTo(WeightStore* store, cudaStream_t stream) const {
  CHECK(store->dtype() == dtype_ && store->layout().num_elements == layout_.num_elements);
  if (store->version() == version_) return;  // the same weights
  store->BeginUpdate();
  kernels::cuda::CopyToHost(store->flat().data(), memory_.data(), bytes(), stream);
  store->Commit(version_);
}

void DeviceWeights::Randomise(uint64_t seed, cudaStream_t stream) {
  const float range = spec_.initializer_range * std::sqrt(3.0f);
  for (size_t i = 0; i < layout_.params.size(); ++i) {
    const Param& p = layout_.params[i];
    const TensorView view = View(static_cast<ParamId>(i));
    const bool bias = p.kind == ParamKind::kQkvBias || p.kind == ParamKind::kOutputBias;
    const float low = p.is_vector() ? (bias ? 0.0f : 1.0f) : -range;
    const float high = p.is_vector() ? low : range;
    kernels::cuda::FillUniform(view.data, view.dtype, view.num_elements(), low, high,
                               HashSeed({seed, i}), stream);
  }
}

}  // namespace orrery::model
