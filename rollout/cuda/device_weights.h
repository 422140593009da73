// The weights of a model on the GPU: the flat buffer of WeightLayout, row-major and fused, at one
// address for its whole life. Filled from a WeightStore (whose layout is the same) or at random.
// An update is enqueued on a stream: what runs on it before sees the old weights, what runs after
// the new ones.
#pragma once

#include "kernels/cuda/device_buffer.h"
#include "kernels/tensor_view.h"
#include "trainer/model/weight_store.h"

namespace orrery::rollout::cuda {

using kernels::cuda::DeviceBuffer;
using kernels::cuda::PinnedBuffer;

class DeviceWeights {
 public:
  DeviceWeights(const model::ModelSpec& spec, kernels::DType dtype);

  const model::ModelSpec& spec() const { return spec_; }
  const model::WeightLayout& layout() const { return layout_; }
  kernels::DType dtype() const { return dtype_; }
  int64_t bytes() const { return memory_.bytes(); }
  PolicyVersion version() const { return version_; }

  // Device memory, [rows, cols]; data null for kNoParam.
  kernels::TensorView View(model::ParamId id) const;

  // REQUIRES: the same spec and dtype; not in an update.
  void CopyFrom(const model::WeightStore& store, cudaStream_t stream);
  // Matrices uniform with the standard deviation initializer_range, norms 1, biases 0: a function
  // of the seed. For measurements.
  void Randomise(uint64_t seed, cudaStream_t stream);

 private:
  model::ModelSpec spec_;
  model::WeightLayout layout_;
  kernels::DType dtype_;
  DeviceBuffer memory_;
  PolicyVersion version_ = 0;
};

}  // namespace orrery::rollout::cuda
