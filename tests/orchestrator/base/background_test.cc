#include "orchestrator/base/background.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <new>
#include <vector>

#include "orchestrator/base/status.h"

namespace orrery {
namespace {

TEST(Background, RunsJobsInOrderAndEndsThemAll) {
  std::vector<int> seen;
  {
    Background background;
    for (int i = 0; i < 50; ++i) {
      ASSERT_TRUE(background
                      .Post([&seen, i] {
                        seen.push_back(i);
                        return absl::OkStatus();
                      })
                      .ok());
      if (i % 10 == 0) {
        ASSERT_TRUE(background.Wait().ok());
        EXPECT_EQ(seen.size(), static_cast<size_t>(i) + 1);
      }
    }
  }
  ASSERT_EQ(seen.size(), 50u);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(seen[i], i);
}

TEST(Background, PostReturnsWhileTheJobRuns) {
  std::promise<void> go;
  Background background;
  const auto waiting = [done = go.get_future().share()] {
    done.wait();
    return absl::OkStatus();
  };
  ASSERT_TRUE(background.Post(waiting).ok());
  ASSERT_TRUE(background.Post(waiting).ok());  // in line
  std::promise<void> posted;
  std::future<void> third = posted.get_future();
  std::thread poster([&] {
    EXPECT_TRUE(background.Post(waiting).ok());
    posted.set_value();
  });
  EXPECT_EQ(third.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout)
      << "a third job waits for its place";
  go.set_value();
  third.wait();
  poster.join();
  EXPECT_TRUE(background.Wait().ok());
}

TEST(Background, AfterAnErrorNothingMoreIsRun) {
  Background background;
  int ran = 0;
  const auto held = std::make_shared<int>(0);
  ASSERT_TRUE(background.Post([] { return Failed("the disk is full"); }).ok());
  // Posted before or after the first one failed: not run, and what it holds is let go.
  (void)background.Post([&ran, held] {
    ++ran;
    return absl::OkStatus();
  });
  EXPECT_EQ(background.Wait().message(), "the disk is full");
  EXPECT_EQ(background.Post([&ran] { return ++ran, absl::OkStatus(); }).message(),
            "the disk is full");
  EXPECT_EQ(background.Wait().message(), "the disk is full");
  EXPECT_EQ(ran, 0);
  EXPECT_EQ(held.use_count(), 1);
}

TEST(Background, NoMemoryIsAnError) {
  Background background;
  ASSERT_TRUE(background.Post([]() -> absl::Status { throw std::bad_alloc(); }).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(background.Wait()));
}

TEST(Background, WhatAJobHoldsIsGoneWhenItIsDone) {
  Background background;
  auto held = std::make_shared<int>(0);
  const std::weak_ptr<int> weak = held;
  ASSERT_TRUE(background.Post([held = std::move(held)] { return absl::OkStatus(); }).ok());
  ASSERT_TRUE(background.Wait().ok());
  EXPECT_TRUE(weak.expired());
}

}  // namespace
}  // namespace orrery
