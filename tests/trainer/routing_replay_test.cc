// Recorded routing has one entry a layer with experts, and is read so, where dense layers stand
// between (mlp_only_layers, decoder_sparse_step).
#include <gtest/gtest.h>

#include <numeric>

#include "rollout/inference_ops.h"
#include "tests/fakes/tiny_models.h"
#include "trainer/cpu/training_ops.h"
#include "trainer/model/transformer.h"

namespace orrery::trainer {
namespace {

constexpr int32_t kTokens = 6;

// Layers with experts: 1 and 5 of 6 (every second one, but not layer 3).
constexpr char kMixed[] = R"({
  "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 61,
  "hidden_size": 32, "num_hidden_layers": 6, "intermediate_size": 48, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
  "rope_theta": 10000, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
  "norm_topk_prob": true, "decoder_sparse_step": 2, "mlp_only_layers": [3],
  "initializer_range": 0.5})";

class RoutingReplayTest : public testing::Test {
 protected:
  RoutingReplayTest()
      : store_(fakes::MakeRandom(kMixed, 3, kernels::DType::kFloat32)),
        rope_(store_->spec().rope_inv_freq, store_->spec().max_positions) {
    ids_.resize(kTokens);
    std::iota(ids_.begin(), ids_.end(), 7);
    iota_.resize(kTokens);
    std::iota(iota_.begin(), iota_.end(), 0);
    span_.num_rows = kTokens;
    span_.blocks = blocks_;
  }

  model::Batch Batch(std::span<const int32_t> replay) const {
    model::Batch batch;
    batch.token_ids = ids_;
    batch.positions = iota_;
    batch.slots = iota_;
    batch.sequences = {&span_, 1};
    batch.replay_experts = replay;
    return batch;
  }

  // Logits of all rows; the routing that was taken goes to `routed`.
  std::vector<float> Sample(std::span<const int32_t> replay, std::vector<int32_t>* routed) const {
    rollout::KvCache cache(store_->spec(), 1);
    rollout::InferenceOps ops(store_.get(), &cache, &rope_);
    const model::Value hidden =
        model::Forward(store_->spec(), store_->layout(), Batch(replay), ops);
    const kernels::TensorView logits = ops.Logits(hidden, iota_);
    if (routed != nullptr) *routed = ops.routed_experts();
    return {logits.f32(), logits.f32() + logits.rows * logits.cols};
  }

  // Log-probs of the tokens by the trainer's executor.
  std::vector<float> Train(std::span<const int32_t> replay) const {
    TrainingOps ops(store_.get(), &rope_, /*recompute=*/false);
    const model::Batch batch = Batch(replay);
    ops.Begin(batch, 1, nullptr);
    const model::Value hidden = model::Forward(store_->spec(), store_->layout(), batch, ops);
    std::vector<Target> targets;
    for (int32_t t = 0; t + 1 < kTokens; ++t) targets.push_back({t, ids_[t + 1]});
    std::vector<float> logps(targets.size()), entropies(targets.size());
    EXPECT_EQ(ops.Logprobs(hidden, targets, 1, logps, entropies), -1);
    return logps;
  }

  const std::unique_ptr<model::WeightStore> store_;
  const kernels::RopeTable rope_;
  std::vector<int32_t> ids_, iota_, blocks_ = {0};
  kernels::SequenceSpan span_;
};

TEST_F(RoutingReplayTest, RecordsALayerWithExpertsEach) {
  std::vector<int32_t> routed;
  Sample({}, &routed);
  EXPECT_EQ(routed.size(), 2u * kTokens * 2u);  // two layers of six
}

TEST_F(RoutingReplayTest, ReplayedRoutingGivesTheSameBits) {
  std::vector<int32_t> routed, again;
  const std::vector<float> logits = Sample({}, &routed);
  EXPECT_EQ(Sample(routed, &again), logits);
  EXPECT_EQ(again, routed);
  EXPECT_EQ(Train(routed), Train({}));
}

// Each layer reads its own part: another choice in the last layer with experts changes the result,
// in both executors, and that layer alone.
TEST_F(RoutingReplayTest, EveryLayerReadsItsOwnPart) {
  std::vector<int32_t> routed, seen;
  const std::vector<float> logits = Sample({}, &routed);
  for (const size_t layer : {size_t{0}, size_t{1}}) {
    std::vector<int32_t> other = routed;
    int32_t& expert = other[layer * kTokens * 2];
    const int32_t beside = other[layer * kTokens * 2 + 1];
    do {
      expert = (expert + 1) % 6;
    } while (expert == beside || expert == routed[layer * kTokens * 2]);
    EXPECT_NE(Sample(other, &seen), logits);
    EXPECT_EQ(seen, other);
    EXPECT_NE(Train(other), Train({}));
  }
}

}  // namespace
}  // namespace orrery::trainer
