#include "kernels/cuda/memory_turns.h"

#include <gtest/gtest.h>

#include <thread>

#include "kernels/cuda/page_pool.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int64_t kPage = PagePool::kPageBytes;

// A user whose memory is a range of a pool that may never hold both users'.
class Side {
 public:
  Side(MemoryTurns* turns, MemoryTurns::User user, const std::shared_ptr<PagePool>& pool,
       int64_t bytes)
      : turns_(*turns), user_(user), range_(pool, bytes), bytes_(bytes) {
    turns_.Register(user, {[this] { range_.Shrink(0); }, [this] { range_.Grow(bytes_); }});
  }
  ~Side() { turns_.Register(user_, {}); }
  void Work(const Side& other) {
    const auto turn = turns_.Take(user_);
    EXPECT_EQ(range_.bytes(), bytes_);
    EXPECT_EQ(other.range_.bytes(), 0);
  }

 private:
  MemoryTurns& turns_;
  const MemoryTurns::User user_;
  PageRange range_;
  const int64_t bytes_;
};

TEST(MemoryTurnsTest, OneHasIt) {
  const auto pool = std::make_shared<PagePool>(std::make_unique<CountingDriver>());
  MemoryTurns turns;
  Side rollout(&turns, MemoryTurns::kRollout, pool, 5 * kPage);
  Side training(&turns, MemoryTurns::kTraining, pool, 3 * kPage);
  for (int step = 0; step < 4; ++step) {
    rollout.Work(training);
    rollout.Work(training);  // keeps it
    training.Work(rollout);
  }
  EXPECT_EQ(turns.changes(), 8);
  EXPECT_GE(turns.seconds(), 0);
  EXPECT_EQ(pool->peak_bytes(), 5 * kPage);
}

TEST(MemoryTurnsTest, AUserThatIsGoneIsNotAsked) {
  const auto pool = std::make_shared<PagePool>(std::make_unique<CountingDriver>());
  MemoryTurns turns;
  Side training(&turns, MemoryTurns::kTraining, pool, 3 * kPage);
  {
    Side rollout(&turns, MemoryTurns::kRollout, pool, 5 * kPage);
    rollout.Work(training);
  }
  const auto turn = turns.Take(MemoryTurns::kTraining);
  EXPECT_EQ(turns.changes(), 2);
}

TEST(MemoryTurnsTest, ThreadsWaitForEachOther) {
  const auto pool = std::make_shared<PagePool>(std::make_unique<CountingDriver>());
  MemoryTurns turns;
  Side rollout(&turns, MemoryTurns::kRollout, pool, 5 * kPage);
  Side training(&turns, MemoryTurns::kTraining, pool, 3 * kPage);
  std::thread other([&] {
    for (int i = 0; i < 200; ++i) rollout.Work(training);
  });
  for (int i = 0; i < 200; ++i) training.Work(rollout);
  other.join();
  EXPECT_EQ(pool->peak_bytes(), 5 * kPage);
}

}  // namespace
}  // namespace orrery::kernels::cuda
