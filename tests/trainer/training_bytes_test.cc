// The memory that is planned for training on the CPU, against what its operators take.
#include "trainer/cpu/training_bytes.h"

#include <gtest/gtest.h>

#include "orchestrator/base/hash.h"
#include "tests/fakes/tiny_models.h"
#include "trainer/cpu/arena.h"
#include "trainer/cpu/training_ops.h"

namespace orrery::trainer {
namespace {

TEST(Arena, ComesToTheLargestUseWhateverCameBefore) {
  Arena arena;
  int64_t most = 0;
  for (const int64_t rows : {30'000, 50'000, 49'999, 20'000, 50'001, 70'000, 70'000}) {
    int64_t floats = 0;
    for (const int64_t cols : {16, 48, 16, 64, 32, 16}) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.Allocate(rows, cols).data) % 64, 0u);
      floats += rows * cols;
    }
    most = std::max(most, floats);
    arena.Reset();
    EXPECT_EQ(arena.bytes(), most * static_cast<int64_t>(sizeof(float)));
  }
}

class TrainingBytesTest : public ::testing::TestWithParam<const char*> {
 protected:
  // One micro-batch forwards and backwards, as the executor does it.
  static void Learn(const model::WeightStore& store, const MicroBatch& micro, TrainingOps* ops) {
    std::vector<float> grads(static_cast<size_t>(store.layout().num_elements));
    const model::Batch batch = micro.batch();
    ops->Begin(batch, micro.num_blocks, grads.data());
    const model::Value hidden = model::Forward(store.spec(), store.layout(), batch, *ops);
    const size_t n = micro.targets.size();
    std::vector<float> logprobs(n), entropies(n), dlogprobs(n, 0.01f), dentropies(n);
    EXPECT_EQ(ops->Logprobs(hidden, micro.targets, 1, logprobs, entropies), -1);
    ops->Backward(dlogprobs, dentropies);
  }
};

TEST_P(TrainingBytesTest, BoundWhatIsTakenAndNotByMuch) {
  const auto store = fakes::LoadTiny(GetParam(), kernels::DType::kFloat32);
  const model::ModelSpec& spec = store->spec();
  const kernels::RopeTable rope(spec.rope_inv_freq, spec.max_positions);
  for (const bool recompute : {false, true}) {
    TrainingOps ops(store.get(), &rope, recompute);
    BatchBounds bounds;
    bounds.sequence_tokens = 64;
    bounds.prompt_tokens = 16;
    bounds.samples = 4;
    for (const int64_t rows : {1500, 4000, 3990, 4000}) {  // a larger one after a smaller one
      bounds.micro_batch_tokens = rows;
      for (const MicroBatch& micro : LargestMicroBatches(bounds)) Learn(*store, micro, &ops);
    }
    ops.Begin({}, 1, nullptr);  // takes back
    const int64_t bound = ActivationBytes(spec, LargestMicroBatchRows(bounds), recompute);
    EXPECT_LE(ops.activation_bytes(), bound) << recompute;
    // Experts keep most of theirs outside of the arenas.
    EXPECT_GE(ops.activation_bytes(), spec.has_moe() ? bound / 8 : bound / 2) << recompute;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TrainingBytesTest,
                         ::testing::Values("llama", "qwen2", "qwen3", "qwen3_moe"),
                         [](const auto& info) { return std::string(info.param); });

TEST(TrainingBytes, SmallModelsRunOnEveryThread) {
  const auto store = fakes::LoadTiny("qwen3", kernels::DType::kFloat32);
  BatchBounds bounds;
  bounds.micro_batch_tokens = 100;
  bounds.sequence_tokens = 50;
  bounds.step_tokens = 1000;
  const int64_t small = 1 << 20, large = 100 << 20;
  ASSERT_TRUE(RunsMicroBatchesSideBySide(small));
  const auto bytes = [&](int64_t weights, int64_t threads) {
    return TrainingBytesOnCpu(store->spec(), weights, bounds, /*recompute=*/false, threads);
  };
  const int64_t one = ActivationBytes(store->spec(), 100, /*recompute=*/false);
  EXPECT_EQ(bytes(small, 1).activations, one);
  EXPECT_EQ(bytes(small, 8).activations, 8 * one);
  EXPECT_EQ(bytes(small, 64).activations, 20 * one) << "there are no more micro-batches";
  EXPECT_EQ(bytes(small, 8).partial, 20 * 4 * small);
  bounds.step_tokens = 1'000'000'000;
  EXPECT_EQ(bytes(small, 8).partial, MicroBatchesInFlight(8) * 4 * small);
  EXPECT_EQ(bytes(large, 64).activations, one);
  EXPECT_EQ(bytes(large, 64).partial, 0);
}

// As many micro-batches as the packer may make of a step.
TEST(TrainingBytes, NoStepHasMoreMicroBatches) {
  const auto store = fakes::LoadTiny("qwen3", kernels::DType::kFloat32);
  for (uint64_t seed = 0; seed < 300; ++seed) {
    RandomStream random(HashSeed({seed}));
    const auto pick = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(random.Uniform() * static_cast<double>(high - low + 1));
    };
    BatchBounds bounds;
    bounds.micro_batch_tokens = pick(1, 200);
    bounds.sequence_tokens = pick(2, 150);
    std::vector<TrainingSequence> sequences(static_cast<size_t>(pick(1, 60)));
    const int64_t least = pick(2, bounds.sequence_tokens);
    for (TrainingSequence& s : sequences) {
      s.token_ids.assign(static_cast<size_t>(pick(least, bounds.sequence_tokens)), 1);
      s.loss_mask.assign(s.token_ids.size(), 1);
      s.loss_mask[0] = 0;
    }
    bounds.step_tokens = static_cast<int64_t>(sequences.size()) * bounds.sequence_tokens;
    const size_t micros = Pack(sequences, bounds.micro_batch_tokens, false).size();
    const CpuTrainingBytes bytes = TrainingBytesOnCpu(store->spec(), 1, bounds, false, 1);
    const int64_t counted = bytes.partial / 4;
    EXPECT_TRUE(static_cast<int64_t>(micros) <= counted || counted == MicroBatchesInFlight(1))
        << seed;
  }
}

}  // namespace
}  // namespace orrery::trainer
