// The rollout's executor on a GPU: the operators of the transformer as kernel launches on one
// stream, over buffers that every layer uses again. Nothing is allocated and nothing waits for the
// device after construction, so a Forward can be captured as a graph.
//
// What a Forward reads of a batch (token ids, positions, slots, block tables) lies on the device at
// fixed addresses, in StepInput; of model::Batch only the number of tokens is used.
#pragma once

#include <memory>
#include <vector>

#include "kernels/attention/attention_cuda.h"
#include "kernels/cuda/device_pages.h"
#include "kernels/experts/routed_experts_cuda.h"
#include "kernels/linear/linear_cuda.h"
#include "kernels/rms_norm/rms_norm_cuda.h"
#include "rollout/cuda/host_kv.h"
#include "trainer/model/cuda/device_weights.h"
#include "trainer/model/transformer.h"

namespace orrery::rollout::cuda {

// Device arrays of one step.
struct StepInput {
  const int32_t* token_ids = nullptr;  // [T]; -1 - j: token j of `previous`
  const int32_t* previous = nullptr;   // tokens that the step before drew
  const int32_t* positions = nullptr;  // [T]; negative: padding
  const int32_t* slots = nullptr;      // [T] block * 16 + offset
  const int32_t* sequence_of = nullptr;
  const int32_t* block_tables = nullptr;
  int64_t table_stride = 0;
  const int32_t* settled = nullptr;  // [T] (AttentionRows), or null
  int64_t max_position = 0;
  // Rows that read keys and values together, and the others (AttentionRows).
  const kernels::cuda::AttentionTile* attention_tiles = nullptr;
  int64_t num_attention_tiles = 0;
  const int32_t* lone_rows = nullptr;
  int64_t num_lone_rows = 0;
  const int32_t* logit_rows = nullptr;  // [n] rows whose logits are wanted; negative: padding
  int64_t num_logit_rows = 0;
  // Routing replay: [layers with experts, T, top_k] ids in place of the router's choice (negative:
  // its own choice for that row), or null.
  const int32_t* replay_experts = nullptr;
};

using kernels::cuda::DeviceBuffer;
using kernels::cuda::KvFormat;
using kernels::cuda::Numerics;
using kernels::cuda::PinnedBuffer;
using model::DeviceWeights;

struct OpsLimits {
  int64_t max_rows = 0;        // T of a step
  int64_t max_samples = 0;     // n of a step
  int64_t max_logit_rows = 0;  // logits at a time; more samples go through the head in turns
  int64_t max_positions = 0;   // of a sequence
  int64_t kv_blocks = 0;
  int64_t swap_blocks = 0;   // of pinned memory of the host (of the executor)
  int64_t top_logprobs = 0;  // most likely tokens that a draw may ask for (of the executor)
  KvFormat kv_format = KvFormat::kModel;
  Numerics numerics = Numerics::kExact;
  std::shared_ptr<kernels::cuda::PagePool> pool;  // of keys and values; null: one of their own
  bool kv_at_once = true;                         // false: from TakeKv on
};

class CudaOps : public model::Ops {
 public:
  // weights is borrowed. All launches go to stream. Fast numerics without cuBLASLt on the machine
  // run on the kernels of exact numerics, with a warning.
  CudaOps(const DeviceWeights* weights, const kernels::DeviceLimits& device,
          const OpsLimits& limits, cudaStream_t stream);

  // Bytes of device memory that construction takes beside keys and values.
  static int64_t BufferBytes(const model::ModelSpec& spec, kernels::DType dtype,
                             const kernels::DeviceLimits& device, const OpsLimits& limits);
  static int64_t KvBytes(const model::ModelSpec& spec, kernels::DType dtype, int64_t kv_blocks,
                         KvFormat format = KvFormat::kModel);

  // The forward pass: normed hidden states [n, d] of the logit rows.
  kernels::TensorView Hidden(const StepInput& input, int64_t num_tokens);
  // Logits of at most max_logit_rows of them, in the model's dtype; valid until the next call.
  kernels::TensorView Head(const kernels::TensorView& hidden);

  // Experts of the last Forward's rows, [rows, layers with experts, top_k] ids as RoutedExperts has
  // them, on the device; not those of padding. Of routed_row_bytes() a row.
  const std::byte* routed_experts() const { return routed_experts_.data(); }
  int64_t routed_row_bytes() const { return RoutedRowBytes(spec_); }

  // Positions [0, count) of blocks to other blocks, in every layer. copies: device [n].
  void CopyKv(const kernels::KvCopy* copies, int64_t n);

  // Keys and values as they are set aside (HostKv); fixed addresses.
  std::vector<KvPlane> Planes() const;

  // Gives the memory of keys and values back to the pool, contents lost, until TakeKv; addresses
  // stay. Both wait for the device. REQUIRES: nothing that reads them is launched in between.
  void GiveBackKv();
  void TakeKv();
  // What is idle of the pool goes back to the driver.
  void TrimPool() { pool_->Trim(); }

  // For measurements: keys and values as if something had been computed.
  void RandomiseKv(uint64_t seed);
  // Experts with at least one row in the last Forward, mean over the layers. Waits for the device.
  double ExpertsTouched() const;

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

 private:
  enum Role {
    kResidual,
    kNormed,
    kQkv,
    kAttended,
    kProjected,
    kActivated,
    kMlp,
    kHeadInput,
    kLogits,
    kRouter,
    kExpertsHidden,
    kExpertsOut,
    kNumRoles
  };
  struct BufferShape {
    int64_t rows, cols;
    kernels::DType dtype;
  };
  static int64_t RoutedRowBytes(const model::ModelSpec& spec) {
    return spec.num_moe_layers() * spec.experts_per_token * spec.expert_id_bytes();
  }
  // Bytes of what routed layers need beside the roles; zeros where there are none.
  struct ExpertBuffers {
    int64_t counts = 0, slots = 0, ids = 0, weights = 0, routed = 0;
  };
  static ExpertBuffers SizesOfExpertBuffers(const model::ModelSpec& spec, const OpsLimits& limits);
  // Largest extents of each role.
  static std::vector<BufferShape> Shapes(const model::ModelSpec& spec, kernels::DType dtype,
                                         const OpsLimits& limits);
  model::Value Buffer(Role role, int64_t rows, int64_t cols) const;
  kernels::cuda::KvBlocks Layer(int64_t layer) const;
  void RandomiseFloat8Kv(uint64_t seed);
  // By this class's numerics.
  void Product(const kernels::TensorView& x, model::ParamId weight, model::ParamId bias,
               const kernels::TensorView& out);
  kernels::cuda::Delta DeltaOf(const model::Value& delta) const;
  kernels::cuda::Routing RoutingOf(int64_t layer) const;
  kernels::cuda::ReplayedRouting ReplayOf(int64_t layer, int64_t rows) const;
  // Where `weight` is the norm before a layer's experts and one kernel pays for norm, router and
  // choice: runs it and remembers the layer as routed.
  bool RouteWithNorm(const model::Stream& stream, model::ParamId weight,
                     const kernels::TensorView& normed);
  void Route(const kernels::TensorView& x, int64_t layer, const kernels::cuda::Routing& routing);

  const DeviceWeights& weights_;
  const model::ModelSpec& spec_;
  const kernels::DeviceLimits device_;
  const OpsLimits limits_;
  const cudaStream_t stream_;
  StepInput input_;            // of the Forward under way
  int64_t routed_layer_ = -1;  // whose experts AddNorm has chosen

  std::unique_ptr<kernels::cuda::LinearLibrary> library_;  // of fast numerics
  DeviceBuffer buffers_[kNumRoles];
  const std::shared_ptr<kernels::cuda::PagePool> pool_;
  kernels::cuda::PageRange kv_;
  DeviceBuffer rope_;
  DeviceBuffer attention_workspace_;
  DeviceBuffer expert_counts_;  // [layers, E], cleared at the start of a Forward
  DeviceBuffer expert_slots_, expert_ids_, expert_weights_, routed_experts_;
};

}  // namespace orrery::rollout::cuda
