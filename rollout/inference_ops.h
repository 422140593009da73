// The rollout's executor on the CPU: no gradients, keys and values in the paged cache, and a small
// set of buffers that every layer uses again. One thread at a time; several may run on one
// WeightStore and one KvCache as long as their batches write different slots.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "rollout/kv_cache.h"
#include "trainer/model/transformer.h"

namespace orrery::rollout {

class InferenceOps : public model::Ops {
 public:
  // All borrowed.
  InferenceOps(const model::WeightStore* weights, KvCache* cache, const kernels::RopeTable* rope);

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

  // Logits [rows.size(), V] of some rows of the hidden states, rounded to the model's dtype.
  kernels::TensorView Logits(const model::Value& hidden, std::span<const int32_t> rows);

  // Experts chosen in the last Forward: [moe layers, T, top_k].
  const std::vector<int32_t>& routed_experts() const { return routed_experts_; }

 private:
  // What a buffer is for; each is valid until the same role is written again.
  enum Role {
    kResidual,
    kNormed,
    kQkv,
    kAttended,
    kProjected,
    kGateUp,
    kActivated,
    kMlp,
    kRouter,
    kGathered,
    kLogits,
    kNumRoles
  };
  model::Value Buffer(Role role, int64_t rows, int64_t cols);

  const model::WeightStore& weights_;
  const model::ModelSpec& spec_;
  KvCache& cache_;
  const kernels::RopeTable& rope_;
  std::vector<float> buffers_[kNumRoles];
  kernels::Routing routing_;
  kernels::ExpertsState experts_;
  std::vector<int32_t> routed_experts_;
};

}  // namespace orrery::rollout
