// The training executor: the same forward kernels as the rollout, and a backward for each operator
// over what it saved. Weights are no autograd leaves: their gradients are added, in the order in
// which operators run backwards, to one flat float32 buffer laid out as the WeightStore is.
//
// One object is used for one micro-batch after another, by one thread:
//
//   ops.Begin(batch, grads);  hidden = Forward(..., ops);  ops.Logprobs(hidden, targets, ...);
//   ... the loss turns log-probs into their gradients ...
//   ops.Backward(dlogprobs, dentropies);
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/head/log_softmax.h"
#include "trainer/cpu/arena.h"
#include "trainer/model/transformer.h"
#include "trainer/packer.h"
#include "trainer/recording_ops.h"

namespace orrery::trainer {

class TrainingOps : public RecordingOps {
 public:
  // Borrowed.
  TrainingOps(const model::WeightStore* weights, const kernels::RopeTable* rope, bool recompute);

  // num_blocks: KV blocks that the batch's slots and sequences name. grads: flat gradient buffer
  // that Backward adds to, or null to score only (nothing is saved).
  void Begin(const model::Batch& batch, int64_t num_blocks, float* grads);

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

  // Log-prob and entropy of every target at a temperature. Returns the index of the first target
  // whose logits are not finite, or -1.
  int64_t Logprobs(const model::Value& hidden, std::span<const Target> targets,
                   float inverse_temperature, std::span<float> logprobs,
                   std::span<float> entropies);

  // After Logprobs, with Begin's grads: adds the gradient of all weights.
  void Backward(std::span<const float> dlogprobs, std::span<const float> dentropies);

  // Of the last forward (TokenScores).
  int64_t differing_routing() const { return differing_routing_; }
  // Bytes held for activations.
  int64_t activation_bytes() const { return main_.bytes() + scratch_.bytes(); }

 private:
  kernels::TensorView Allocate(Lifetime lifetime, int64_t rows, int64_t cols) override {
    return (lifetime == Lifetime::kMicroBatch ? main_ : scratch_).Allocate(rows, cols);
  }
  void FreeBlock() override { scratch_.Reset(); }
  void Copy(const kernels::TensorView& from, const kernels::TensorView& to) override;

  kernels::TensorView ParamGrad(model::ParamId id) const;
  kernels::QkNormRopeArgs RopeArgs(int64_t layer, const model::Batch& batch) const;
  void BackwardHead(std::span<const float> dlogprobs, std::span<const float> dentropies);

  const model::WeightStore& weights_;
  const model::ModelSpec& spec_;
  const kernels::RopeTable& rope_;

  float* grads_ = nullptr;
  Arena main_, scratch_;  // by lifetime
  kernels::KvBlocks kv_;  // of the layer at hand
  std::vector<float> kv_memory_;

  model::Value hidden_;  // the head's input and targets, kept for Backward
  std::vector<Target> targets_;
  std::vector<kernels::LogSoftmaxStats> stats_;
  float inverse_temperature_ = 1;
  int64_t differing_routing_ = 0;
};

}  // namespace orrery::trainer
