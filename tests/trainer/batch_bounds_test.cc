// The made-up largest micro-batches against what the packer makes of random batches within the same
// bounds: nothing that is packed is larger.
#include "trainer/batch_bounds.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "orchestrator/base/hash.h"

namespace orrery::trainer {
namespace {

size_t MostRows(const std::vector<MicroBatch>& micros) {
  size_t rows = 0;
  for (const MicroBatch& m : micros) rows = std::max(rows, m.token_ids.size());
  return rows;
}

size_t MostTargets(const std::vector<MicroBatch>& micros) {
  size_t targets = 0;
  for (const MicroBatch& m : micros) targets = std::max(targets, m.targets.size());
  return targets;
}

std::vector<TrainingSequence> Draw(const BatchBounds& b, uint64_t seed) {
  RandomStream random(HashSeed({seed}));
  std::vector<TrainingSequence> sequences;
  for (uint64_t group = 0; group < 6; ++group) {
    for (int64_t i = 0; i < b.samples; ++i) {
      TrainingSequence s;
      const auto response =
          1 + static_cast<int64_t>(random.Uniform() *
                                   static_cast<double>(b.sequence_tokens - b.prompt_tokens - 1));
      s.group_id = group;
      s.shared_prefix = static_cast<int32_t>(b.prompt_tokens);
      s.token_ids.assign(static_cast<size_t>(b.prompt_tokens + response), 1);
      s.loss_mask.assign(s.token_ids.size(), 1);
      std::fill_n(s.loss_mask.begin(), std::max<int64_t>(1, b.prompt_tokens), 0);
      sequences.push_back(std::move(s));
    }
  }
  return sequences;
}

TEST(BatchBoundsTest, NothingThatIsPackedIsLarger) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    RandomStream random(HashSeed({seed, 7}));
    BatchBounds b;
    b.prompt_tokens = static_cast<int64_t>(random.Uniform() * 40) + 1;
    b.sequence_tokens = b.prompt_tokens + 2 + static_cast<int64_t>(random.Uniform() * 60);
    b.samples = 1 + static_cast<int64_t>(random.Uniform() * 8);
    b.micro_batch_tokens = 1 + static_cast<int64_t>(random.Uniform() * 500);
    const std::vector<MicroBatch> bounds = LargestMicroBatches(b);
    for (const bool share : {false, true}) {
      const std::vector<MicroBatch> packed = Pack(Draw(b, seed), b.micro_batch_tokens, share);
      EXPECT_LE(MostRows(packed), MostRows(bounds)) << seed;
      // Samples of one shared row each have a target more than rows.
      EXPECT_LE(MostTargets(packed), MostTargets(bounds) + static_cast<size_t>(b.samples)) << seed;
    }
  }
}

TEST(BatchBoundsTest, RowsAreThoseOfAFullMicroBatch) {
  BatchBounds b;
  b.micro_batch_tokens = 1000;
  b.sequence_tokens = 301;
  EXPECT_EQ(MostRows(LargestMicroBatches(b)), 1000u);
  b.sequence_tokens = 2001;  // one to itself
  EXPECT_EQ(MostRows(LargestMicroBatches(b)), 2000u);
  b.sequence_tokens = 301;
  b.step_tokens = 700;
  EXPECT_EQ(MostRows(LargestMicroBatches(b)), 700u);
}

TEST(BatchBoundsTest, OddBoundsMakeBatches) {
  for (const int64_t micro : {0, 1, 2, 33}) {
    for (const int64_t tokens : {0, 1, 2, 3, 40}) {
      for (const int64_t prompt : {0, 1, 2, 39, 40}) {
        const std::vector<MicroBatch> micros =
            LargestMicroBatches({micro, tokens, prompt, /*samples=*/3, /*step_tokens=*/0});
        for (const MicroBatch& m : micros) {
          EXPECT_GE(m.token_ids.size(), 1u);
          EXPECT_GE(m.targets.size(), 1u) << micro << " " << tokens << " " << prompt;
        }
      }
    }
  }
}

}  // namespace
}  // namespace orrery::trainer
