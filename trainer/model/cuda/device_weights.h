// The weights of a model on the GPU: the flat buffer of WeightLayout, row-major and fused, at one
// address for its whole life. Rollout engine and trainer may share them. Filled from a WeightStore
// (whose layout is the same), at random, or by the trainer's steps. An update is enqueued on a
// stream: what runs on it before sees the old weights, what runs after the new ones.
#pragma once

#include <memory>

#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/device_pages.h"
#include "kernels/tensor_view.h"
#include "trainer/model/weight_store.h"

namespace orrery::model {

// The rotation's table on the device: row p has the cosines, then the sines of position p, as
// RopeTable.
kernels::cuda::DeviceBuffer UploadRope(const ModelSpec& spec, int64_t positions);
int64_t RopeBytes(const ModelSpec& spec, int64_t positions);

class DeviceWeights {
 public:
  DeviceWeights(const ModelSpec& spec, kernels::DType dtype);
  // Shapes at made-up addresses, for dry runs.
  static std::unique_ptr<DeviceWeights> Unbacked(const ModelSpec& spec, kernels::DType dtype);
  // A copy, in place when this returns.
  static std::unique_ptr<DeviceWeights> CopyOf(const WeightStore& store);

  const ModelSpec& spec() const { return spec_; }
  const WeightLayout& layout() const { return layout_; }
  kernels::DType dtype() const { return dtype_; }
  int64_t bytes() const { return layout_.num_elements * kernels::SizeOf(dtype_); }
  PolicyVersion version() const { return version_; }
  void* data() const { return memory_.data(); }  // flat

  // Device memory, [rows, cols]; data null for kNoParam.
  kernels::TensorView View(ParamId id) const;

  // In place when it returns. REQUIRES: the same spec and dtype; not in an update.
  void CopyFrom(const WeightStore& store, cudaStream_t stream);
  // The store is committed at this version; one that holds it already is left alone. Waits for the
  // device.
  void CopyTo(WeightStore* store, cudaStream_t stream) const;
  // Who wrote data() itself says what it holds now, once the writes are done.
  void Commit(PolicyVersion version) { version_ = version; }
  // Between the two the weights are in pinned memory of the host and their memory on the device is
  // free; addresses stay. Both wait for the device. REQUIRES: nobody uses them meanwhile.
  void Sleep(cudaStream_t stream);
  void Wake(cudaStream_t stream);
  // Matrices uniform with the standard deviation initializer_range, norms 1, biases 0: a function
  // of the seed. For measurements.
  void Randomise(uint64_t seed, cudaStream_t stream);

 private:
  DeviceWeights(const ModelSpec& spec, kernels::DType dtype,
                std::shared_ptr<kernels::cuda::PagePool> pool);

  ModelSpec spec_;
  WeightLayout layout_;
  kernels::DType dtype_;
  std::shared_ptr<kernels::cuda::PagePool> pool_;  // of the weights alone
  kernels::cuda::PageRange memory_;
  kernels::cuda::PinnedBuffer asleep_;
  PolicyVersion version_ = 0;
};

}  // namespace orrery::model
