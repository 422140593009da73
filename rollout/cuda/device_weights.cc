#include "rollout/cuda/device_weights.h"

#include <cmath>

#include "kernels/cuda/fill.h"
#include "orchestrator/base/hash.h"

namespace orrery::rollout::cuda {

using kernels::TensorView;

DeviceWeights::DeviceWeights(const model::ModelSpec& spec, kernels::DType dtype)
    : spec_(spec),
      layout_(spec),
      dtype_(dtype),
      memory_(layout_.num_elements * kernels::SizeOf(dtype)) {}

TensorView DeviceWeights::View(model::ParamId id) const {
  if (id == model::kNoParam) return {};
  const model::Param& p = layout_.params[id];
  return {memory_.data() + p.offset * kernels::SizeOf(dtype_), dtype_, p.rows, p.cols, p.cols};
}

void DeviceWeights::CopyFrom(const model::WeightStore& store, cudaStream_t stream) {
  CHECK(!store.in_update() && store.dtype() == dtype_ &&
        store.layout().num_elements == layout_.num_elements);
  // The flat buffer does not change hands: a const store has no other way to its bytes.
  const std::byte* flat = static_cast<const std::byte*>(store.View(0).data) -
                          store.layout().params[0].offset * kernels::SizeOf(dtype_);
  CUDA_CHECK(cudaMemcpyAsync(memory_.data(), flat, static_cast<size_t>(memory_.bytes()),
                             cudaMemcpyHostToDevice, stream));
  version_ = store.version();
}

void DeviceWeights::Randomise(uint64_t seed, cudaStream_t stream) {
  const float range = spec_.initializer_range * std::sqrt(3.0f);
  for (size_t i = 0; i < layout_.params.size(); ++i) {
    const model::Param& p = layout_.params[i];
    const TensorView view = View(static_cast<model::ParamId>(i));
    const bool bias =
        p.kind == model::ParamKind::kQkvBias || p.kind == model::ParamKind::kOutputBias;
    const float low = p.is_vector() ? (bias ? 0.0f : 1.0f) : -range;
    const float high = p.is_vector() ? low : range;
    kernels::cuda::FillUniform(view.data, view.dtype, view.num_elements(), low, high,
                               HashSeed({seed, i}), stream);
  }
}

}  // namespace orrery::rollout::cuda
