// The training executor's operators on a GPU: in exact numerics the rollout's kernels forward, in
// fast numerics whatever is fastest; a backward for each over what it kept. Weight gradients are
// added, in the order in which operators run backwards, to one flat float32 buffer laid out as the
// weights are. Sums have one order everywhere: a step repeats bit for bit.
//
//   ops.Begin(micro, grads);  hidden = Forward(..., ops);  ops.Logprobs(hidden, temperature, ...);
//   ... the loss turns log-probs into their gradients ...
//   ops.Backward(dlogprobs, dentropies);
//
// One object is used for one micro-batch after another, by one thread, on one stream. Logprobs
// waits for the device; the rest only enqueues.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/attention/attention_grad_cuda.h"
#include "kernels/attention/kv_cache_cuda.h"
#include "kernels/cuda/device_limits.h"
#include "kernels/cuda/device_pages.h"
#include "kernels/experts/routed_experts_cuda.h"
#include "kernels/head/log_softmax_cuda.h"
#include "kernels/linear/linear_cuda.h"
#include "kernels/rope/qk_norm_rope_grad_cuda.h"
#include "trainer/cuda/device_arena.h"
#include "trainer/cuda/device_batch.h"
#include "trainer/model/cuda/device_weights.h"
#include "trainer/recording_ops.h"

namespace orrery::trainer {

struct CudaTrainingOptions {
  kernels::cuda::Numerics numerics = kernels::cuda::Numerics::kExact;
  bool recompute = false;
  // Logits exist for so many bytes of rows at a time; where all of a micro-batch fit they are kept
  // for the gradient.
  int64_t logits_bytes = int64_t{1} << 30;
};

// Device memory of micro-batches, in bytes.
struct TrainingBytes {
  int64_t activations = 0;  // kept from forward to backward, and the gradients that outlive a block
  int64_t block = 0;        // inside the block at hand: gradients, what recompute makes again
  int64_t logits = 0;
  int64_t workspace = 0, attention_workspace = 0;  // of kernels
  int64_t layer_kv = 0;                            // keys and values of one layer
  int64_t fixed = 0;  // what is no matter of the micro-batch: cuBLASLt, the rotation's table
  // Of these, what lies in pages of the pool and can be given back between steps.
  int64_t inputs = 0;  // ids, positions, tables
  int64_t workspaces() const { return workspace + attention_workspace + layer_kv; }
  int64_t in_pages() const { return activations + block + logits + workspaces(); }
  int64_t total() const { return in_pages() + inputs + fixed; }
};

class CudaTrainingOps : public RecordingOps {
 public:
  // pool: where memory comes from; null: a pool of its own. NotFound, with the fix, where cuBLASLt
  // is missing: gradients are its products.
  static absl::StatusOr<std::unique_ptr<CudaTrainingOps>> Create(
      const model::ModelSpec& spec, const kernels::DeviceLimits& device,
      const CudaTrainingOptions& options, cudaStream_t stream,
      std::shared_ptr<kernels::cuda::PagePool> pool = nullptr);

  // What scoring and training these micro-batches takes, by doing all of it but the launches: the
  // same code takes the memory, from a pool that only counts. Needs no GPU.
  static TrainingBytes DryRun(const model::ModelSpec& spec, kernels::DType dtype,
                              const kernels::DeviceLimits& device,
                              const CudaTrainingOptions& options,
                              std::span<const MicroBatch> micros);

  // weights: borrowed until the next Begin. grads: device, flat; Backward adds to it. Null: scores
  // only.
  void Begin(const MicroBatch& micro, const model::DeviceWeights& weights, float* grads);
  // Of the batch that Begin took, as model::Forward wants it.
  const model::Batch& batch() const { return batch_; }

  model::Value Embed(model::ParamId table, const model::Batch& batch) override;
  std::pair<model::Value, model::Value> AddNorm(const model::Stream& stream,
                                                model::ParamId weight) override;
  model::Value Linear(const model::Value& x, model::ParamId weight, model::ParamId bias) override;
  model::Value QkNormRope(const model::Value& qkv, int64_t layer,
                          const model::Batch& batch) override;
  model::Value Attention(const model::Value& qkv, int64_t layer,
                         const model::Batch& batch) override;
  model::Value SwiGlu(const model::Value& gate_up) override;
  model::Value RoutedExperts(const model::Value& x, int64_t layer,
                             const model::Batch& batch) override;

  // Log-prob and entropy of every target. Returns the index of the first whose logits are not
  // finite, or -1. Waits for the device.
  int64_t Logprobs(const model::Value& hidden, float temperature, std::span<float> logprobs,
                   std::span<float> entropies);
  // Of the last Logprobs (TokenScores).
  int64_t differing_routing() const { return differing_routing_; }
  // After Logprobs, with Begin's grads.
  void Backward(std::span<const float> dlogprobs, std::span<const float> dentropies);

  // Device memory held.
  TrainingBytes bytes() const;
  // Takes so much at once: micro-batches that need no more, by a dry run of them, take nothing from
  // here on.
  void Reserve(const TrainingBytes& bytes);
  // Gives pages back to the pool, until the next Begin. Waits for the device.
  void Release();

 private:
  CudaTrainingOps(const model::ModelSpec& spec, const kernels::DeviceLimits& device,
                  const CudaTrainingOptions& options,
                  std::unique_ptr<kernels::cuda::LinearLibrary> library, cudaStream_t stream,
                  std::shared_ptr<kernels::cuda::PagePool> pool);

  // Work on the device: nothing in a dry run. Memory that the arguments take is taken either way.
  template <typename Kernel, typename... Args>
  void Run(Kernel kernel, Args&&... args) {
    if (pool_->real()) kernel(std::forward<Args>(args)...);
  }
  void Zero(const kernels::TensorView& view);
  void GradInput(const kernels::TensorView& dy, model::ParamId weight, bool accumulate,
                 const kernels::TensorView& dx);
  void GradWeight(const kernels::TensorView& dy, const kernels::TensorView& x,
                  model::ParamId weight);

  kernels::TensorView Allocate(Lifetime lifetime, int64_t rows, int64_t cols) override;
  void FreeBlock() override { block_.Reset(); }
  void Copy(const kernels::TensorView& from, const kernels::TensorView& to) override;

  kernels::DType dtype() const { return weights_->dtype(); }
  kernels::TensorView ParamGrad(model::ParamId id) const;
  void GrowZeroed(kernels::cuda::PageRange* range, int64_t bytes);
  void* Workspace(int64_t bytes);
  void Product(const kernels::TensorView& x, model::ParamId weight, model::ParamId bias,
               const kernels::TensorView& out);
  kernels::cuda::QkNormRopeArgs RopeArgs(int64_t layer) const;
  void RotateKeys(const kernels::TensorView& qkv, kernels::cuda::QkNormRopeArgs args,
                  const kernels::TensorView& out);
  void PrepareKv(int64_t num_blocks);
  // What the experts of one layer keep for their backward.
  struct KeptExperts {
    model::Value x, out;
    kernels::TensorView logits, gate_up;
    kernels::cuda::Routing routing;
    int64_t layer = 0;
  };
  kernels::cuda::Routing MakeRouting(int64_t rows);
  // What the layer replays of the micro-batch.
  kernels::cuda::ReplayedRouting ReplayOf(int64_t layer) const;
  void RoutedExpertsBackward(const KeptExperts& kept);
  int64_t HeadRows() const;
  void HeadChunk(int64_t first, int64_t count, kernels::TensorView* logits);
  kernels::cuda::TargetScores ScoresFrom(int64_t first) const;
  void BackwardHead(const float* dlogprobs, const float* dentropies);

  const model::ModelSpec spec_;
  const kernels::DeviceLimits device_;
  const CudaTrainingOptions options_;
  const std::unique_ptr<kernels::cuda::LinearLibrary> library_;
  const cudaStream_t stream_;
  const std::shared_ptr<kernels::cuda::PagePool> pool_;
  const kernels::cuda::DeviceBuffer rope_;

  const model::DeviceWeights* weights_ = nullptr;
  float* grads_ = nullptr;
  model::Batch batch_;
  DeviceBatch input_;
  kernels::cuda::AttentionGradPlan attention_grad_;
  DeviceArena main_, block_;  // by lifetime
  kernels::cuda::PageRange workspace_, attention_workspace_, kv_memory_, logits_;
  kernels::cuda::PinnedBuffer pinned_;  // results of Logprobs, then what Backward sends
  kernels::cuda::KvBlocks kv_;          // of the layer at hand
  model::Value hidden_;                 // the head's input, kept for Backward
  kernels::TensorView head_rows_;       // those of the targets
  kernels::cuda::TargetScores scores_;
  float temperature_ = 1;
  int32_t routed_id_bytes_ = 0;
  kernels::cuda::DeviceBuffer differing_;  // counter of ReplayedRouting
  int64_t differing_routing_ = 0;
};

}  // namespace orrery::trainer
