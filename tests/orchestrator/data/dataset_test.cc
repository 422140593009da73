#include "orchestrator/data/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

namespace orrery::data {
namespace {

std::vector<int64_t> Epoch(const DatasetOrder& order, int64_t size, int64_t epoch) {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < size; ++i) rows.push_back(order.Index(epoch * size + i));
  return rows;
}

TEST(DatasetOrderTest, EveryEpochIsAPermutationOfItsOwn) {
  constexpr int64_t kSize = 101;
  const DatasetOrder order(kSize, 7, true);
  std::set<std::vector<int64_t>> seen;
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    std::vector<int64_t> rows = Epoch(order, kSize, epoch);
    EXPECT_TRUE(seen.insert(rows).second) << "epoch " << epoch << " repeats";
    std::sort(rows.begin(), rows.end());
    for (int64_t i = 0; i < kSize; ++i) ASSERT_EQ(rows[static_cast<size_t>(i)], i);
  }
}

TEST(DatasetOrderTest, IsAFunctionOfSeedAndPositionAlone) {
  const DatasetOrder forward(50, 3, true), backward(50, 3, true), other(50, 4, true);
  std::vector<int64_t> a, b, c;
  for (int64_t i = 0; i < 200; ++i) a.push_back(forward.Index(i));
  for (int64_t i = 199; i >= 0; --i) b.push_back(backward.Index(i));
  for (int64_t i = 0; i < 200; ++i) c.push_back(other.Index(i));
  std::reverse(b.begin(), b.end());
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
}

// Rows land on every place equally often. Chi-square with 49 degrees of freedom: the 99.99 %
// quantile is 98.
TEST(DatasetOrderTest, EveryRowComesFirstEquallyOften) {
  constexpr int64_t kSize = 50, kEpochs = 5000;
  const DatasetOrder order(kSize, 11, true);
  std::vector<int64_t> counts(kSize);
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    ++counts[static_cast<size_t>(order.Index(epoch * kSize))];
  }
  double chi_square = 0;
  const double expected = double{kEpochs} / kSize;
  for (const int64_t count : counts) {
    const double difference = static_cast<double>(count) - expected;
    chi_square += difference * difference / expected;
  }
  EXPECT_LT(chi_square, 98);
}

TEST(DatasetOrderTest, EpochsMayEndWithinAStep) {
  const DatasetOrder order(3, 1, true);
  std::vector<int> counts(3);
  for (int64_t position = 0; position < 12; ++position) {
    EXPECT_EQ(order.Epoch(position), position / 3);
    ++counts[static_cast<size_t>(order.Index(position))];
  }
  EXPECT_EQ(counts, (std::vector<int>{4, 4, 4}));
}

TEST(DatasetOrderTest, UnshuffledIsTheOrderOfTheFile) {
  const DatasetOrder order(4, 9, false);
  EXPECT_EQ(Epoch(order, 4, 0), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(Epoch(order, 4, 1), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(DatasetOrder(1, 9, true).Index(12345), 0);
}

TEST(DatasetOrderTest, ManyThreadsSeeTheSameOrder) {
  const DatasetOrder shared(64, 5, true), alone(64, 5, true);
  std::vector<int64_t> expected;
  for (int64_t i = 0; i < 640; ++i) expected.push_back(alone.Index(i));
  std::vector<std::vector<int64_t>> seen(4);
  std::vector<std::thread> threads;
  for (auto& mine : seen) {
    threads.emplace_back([&shared, &mine] {
      for (int64_t i = 0; i < 640; ++i) mine.push_back(shared.Index(i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& mine : seen) EXPECT_EQ(mine, expected);
}

Prompt Row(const std::string& text, const std::string& answer) {
  Prompt prompt;
  prompt.text = text;
  prompt.answer = answer;
  return prompt;
}

TEST(MemoryDatasetTest, FingerprintSeesEveryFieldAndTheOrder) {
  const MemoryDataset base({Row("a", "1"), Row("b", "2")});
  EXPECT_EQ(base.Row(1).answer, "2");
  EXPECT_EQ(base.fingerprint(), MemoryDataset({Row("a", "1"), Row("b", "2")}).fingerprint());
  std::set<std::string> prints = {base.fingerprint()};
  Prompt message = Row("a", "1"), turn = Row("a", "1"), meta = Row("a", "1");
  message.messages = {{"user", "x"}};
  turn.solution_messages = {{"user", "x"}};
  meta.metadata["k"] = "v";
  for (const std::vector<Prompt>& rows :
       std::vector<std::vector<Prompt>>{{Row("b", "2"), Row("a", "1")},
                                        {Row("a", "1")},
                                        {Row("a", "12"), Row("b", "")},
                                        {message, Row("b", "2")},
                                        {turn, Row("b", "2")},
                                        {meta, Row("b", "2")}}) {
    EXPECT_TRUE(prints.insert(MemoryDataset(rows).fingerprint()).second);
  }
}

TEST(MemoryDatasetDeathTest, RowsBeyondTheEndAreTheCallersMistake) {
  const MemoryDataset dataset({Row("a", "1")});
  EXPECT_DEATH(dataset.Row(1), "CHECK failed");
  EXPECT_DEATH(dataset.Row(-1), "CHECK failed");
}

}  // namespace
}  // namespace orrery::data
