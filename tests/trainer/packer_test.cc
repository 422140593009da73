#include "trainer/packer.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/trainer/training_data.h"

namespace orrery::trainer {
namespace {

constexpr int64_t kBlock = kernels::kBlockTokens;

// The row of the packed batch that holds a position of the sequence of a span.
int64_t RowOf(const kernels::SequenceSpan& span, int64_t position) {
  return position >= span.first_position ? span.first_row + position - span.first_position
                                         : span.prefix_first_row + position;
}

// Spans: a prefix has one of its own, then one for each sequence. Gives the sequences' spans.
std::vector<const kernels::SequenceSpan*> SpansOfSequences(const MicroBatch& micro) {
  std::set<int64_t> prefixes;
  for (const auto& span : micro.spans) prefixes.insert(span.prefix_first_row);
  std::vector<const kernels::SequenceSpan*> out;
  for (const auto& span : micro.spans) {
    if (span.prefix_first_row >= 0 || !prefixes.contains(span.first_row)) out.push_back(&span);
  }
  return out;
}

void CheckMicroBatch(const MicroBatch& micro, const std::vector<TrainingSequence>& sequences) {
  const int64_t rows = static_cast<int64_t>(micro.token_ids.size());
  ASSERT_EQ(micro.positions.size(), micro.token_ids.size());
  ASSERT_EQ(micro.slots.size(), micro.token_ids.size());
  // Rows belong to one span each, in order; slots are the block table's, each written once.
  int64_t next = 0;
  std::set<int32_t> slots;
  for (const auto& span : micro.spans) {
    ASSERT_EQ(span.first_row, next);
    next += span.num_rows;
    for (int64_t i = 0; i < span.num_rows; ++i) {
      const int64_t position = span.first_position + i;
      EXPECT_EQ(micro.positions[span.first_row + i], position);
      const int32_t slot = micro.slots[span.first_row + i];
      EXPECT_EQ(slot, span.blocks[position / kBlock] * kBlock + position % kBlock);
      EXPECT_LT(slot, micro.num_blocks * kBlock);
      EXPECT_TRUE(slots.insert(slot).second);
    }
  }
  ASSERT_EQ(next, rows);
  for (const auto& copy : micro.copies) {
    for (int32_t i = 0; i < copy.count; ++i) {
      EXPECT_TRUE(slots.contains(copy.from_block * static_cast<int32_t>(kBlock) + i));
      EXPECT_TRUE(slots.insert(copy.to_block * static_cast<int32_t>(kBlock) + i).second);
    }
  }
  const auto spans = SpansOfSequences(micro);
  ASSERT_EQ(spans.size(), micro.sequences.size());
  ASSERT_EQ(micro.target_offsets.size(), micro.sequences.size() + 1);
  for (size_t i = 0; i < spans.size(); ++i) {
    const TrainingSequence& s = sequences[micro.sequences[i]];
    const int64_t n = static_cast<int64_t>(s.token_ids.size()) - 1;
    ASSERT_EQ(spans[i]->first_position + spans[i]->num_rows, n);
    for (int64_t p = 0; p < n; ++p) {
      EXPECT_EQ(micro.token_ids[RowOf(*spans[i], p)], s.token_ids[p]);
      // A key at position p is in the sequence's own table, written or copied.
      EXPECT_TRUE(slots.contains(spans[i]->blocks[p / kBlock] * static_cast<int32_t>(kBlock) +
                                 static_cast<int32_t>(p % kBlock)));
    }
    size_t t = micro.target_offsets[i];
    for (int64_t p = 1; p <= n; ++p) {
      if (!s.loss_mask[p]) continue;
      ASSERT_LT(t, micro.target_offsets[i + 1]);
      EXPECT_EQ(micro.targets[t].row, RowOf(*spans[i], p - 1));
      EXPECT_EQ(micro.targets[t].token_id, s.token_ids[p]);
      EXPECT_EQ(micro.target_positions[t], p);
      ++t;
    }
    EXPECT_EQ(t, micro.target_offsets[i + 1]);
  }
}

int64_t NumTokens(const std::vector<MicroBatch>& micros) {
  int64_t n = 0;
  for (const MicroBatch& m : micros) n += static_cast<int64_t>(m.token_ids.size());
  return n;
}

TEST(PackerTest, RandomBatchesAreCompleteAndConsistent) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const TrainingBatch batch = MakeBatch(50, seed);
    for (const bool share : {false, true}) {
      for (const int64_t max_tokens : {1, 40, 100, 10000}) {
        const auto micros = Pack(batch.sequences, max_tokens, share);
        size_t next = 0;
        for (const MicroBatch& micro : micros) {
          ASSERT_NO_FATAL_FAILURE(CheckMicroBatch(micro, batch.sequences)) << "seed " << seed;
          for (const size_t i : micro.sequences) EXPECT_EQ(i, next++);
          if (micro.sequences.size() > 1) {
            EXPECT_LE(static_cast<int64_t>(micro.token_ids.size()), max_tokens);
          }
        }
        EXPECT_EQ(next, batch.sequences.size());
        if (max_tokens == 10000) {
          EXPECT_EQ(micros.size(), 1u);
        }
        if (max_tokens == 1) {
          EXPECT_EQ(micros.size(), batch.sequences.size());
        }
      }
    }
  }
}

TEST(PackerTest, SharedPromptsAreComputedOnce) {
  TrainingBatch batch = MakeBatch(50, 1, 1, 8);
  const int64_t prompt = batch.sequences[0].shared_prefix;
  const int64_t apart = NumTokens(Pack(batch.sequences, 10000, false));
  EXPECT_EQ(NumTokens(Pack(batch.sequences, 10000, true)), apart - 7 * prompt);
  // Of another group, or with other ids, nothing is shared.
  batch.sequences[3].group_id = 99;
  EXPECT_EQ(NumTokens(Pack(batch.sequences, 10000, true)), apart - (2 + 3) * prompt);
  batch.sequences[3].group_id = 0;
  batch.sequences[3].token_ids[0] ^= 1;
  EXPECT_EQ(NumTokens(Pack(batch.sequences, 10000, true)), apart - (2 + 3) * prompt);
  CheckMicroBatch(Pack(batch.sequences, 10000, true)[0], batch.sequences);
}

TEST(PackerTest, ClaimsLongerThanASequenceAreCutToIt) {
  TrainingBatch batch = MakeBatch(50, 2, 1, 3);
  for (TrainingSequence& s : batch.sequences) s.shared_prefix = 1000;
  const auto micros = Pack(batch.sequences, 10000, true);
  ASSERT_EQ(micros.size(), 1u);
  CheckMicroBatch(micros[0], batch.sequences);
}

TEST(PackerTest, NothingGivesNothing) { EXPECT_TRUE(Pack({}, 100, true).empty()); }

TEST(PackerTest, TheFirstTokenCannotBeTrained) {
  TrainingBatch batch = MakeBatch(50, 3, 1, 1);
  batch.sequences[0].loss_mask[0] = 1;
  EXPECT_DEATH(Pack(batch.sequences, 100, true), "no prediction");
}

}  // namespace
}  // namespace orrery::trainer
