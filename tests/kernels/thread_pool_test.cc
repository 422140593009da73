#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

namespace orrery::kernels {
namespace {

class ThreadPoolTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { SetNumThreads(GetParam()); }
  void TearDown() override { SetNumThreads(0); }
};

void ExpectEachOnce(int64_t n) {
  std::vector<std::atomic<int>> runs(static_cast<size_t>(n));
  ParallelFor(n, [&](int64_t i) { ++runs[i]; });
  for (int64_t i = 0; i < n; ++i) ASSERT_EQ(runs[i], 1) << i << " of " << n;
}

TEST_P(ThreadPoolTest, EveryTaskRunsOnce) {
  EXPECT_EQ(NumThreads(), GetParam());
  for (int repeat = 0; repeat < 200; ++repeat) {
    for (const int64_t n : {0, 1, 2, 3, 7, 64}) ExpectEachOnce(n);
  }
  ExpectEachOnce(20000);
}

TEST_P(ThreadPoolTest, WhatTasksWroteIsSeenAfterwards) {
  std::vector<int64_t> plain(1000);
  for (int64_t round = 1; round < 200; ++round) {
    ParallelFor(1000, [&](int64_t i) { plain[i] += i; });
    ASSERT_EQ(std::accumulate(plain.begin(), plain.end(), int64_t{0}), round * 999 * 500);
  }
}

TEST_P(ThreadPoolTest, InsideATaskItRunsInOrderInTheSameThread) {
  std::atomic<int> total = 0;
  ParallelFor(16, [&](int64_t) {
    const std::thread::id self = std::this_thread::get_id();
    int64_t next = 0;
    ParallelFor(10, [&](int64_t j) {
      EXPECT_EQ(std::this_thread::get_id(), self);
      EXPECT_EQ(j, next++);
      ParallelFor(3, [&](int64_t) { ++total; });
    });
    EXPECT_EQ(next, 10);
  });
  EXPECT_EQ(total, 16 * 10 * 3);
  ExpectEachOnce(50);  // and afterwards it is parallel again
}

// A caller whose coarser division came out as one piece still has all threads inside of it.
TEST_P(ThreadPoolTest, ASingleTaskLeavesThePoolToWhatIsInside) {
  const int together = std::min(GetParam(), 2);
  ParallelFor(1, [&](int64_t) {
    std::atomic<int> inside = 0;
    ParallelFor(2, [&](int64_t) {
      ++inside;
      const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      while (inside < together && std::chrono::steady_clock::now() < give_up)
        std::this_thread::yield();
      EXPECT_GE(inside, together) << "the two tasks do not run at the same time";
    });
  });
}

TEST_P(ThreadPoolTest, ManyCallersAtATime) {
  std::vector<std::thread> callers;
  for (int c = 0; c < 5; ++c) {
    callers.emplace_back([] {
      for (int repeat = 0; repeat < 100; ++repeat) ExpectEachOnce(37);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPoolTest, testing::Values(1, 2, 3, 8));

TEST(ThreadPoolResizeTest, TheNumberMayChangeWhileOthersRun) {
  std::atomic<bool> stop = false;
  std::thread caller([&] {
    while (!stop) ExpectEachOnce(20);
  });
  for (int i = 0; i < 60; ++i) {
    SetNumThreads(1 + i % 5);
    ExpectEachOnce(20);
  }
  stop = true;
  caller.join();
  SetNumThreads(0);
  EXPECT_GE(NumThreads(), 1);
}

}  // namespace
}  // namespace orrery::kernels
