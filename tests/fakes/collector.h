// Collects what an engine delivers and waits for it. Every response must come exactly once.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "orchestrator/interfaces.h"

namespace orrery::fakes {

class Collector {
 public:
  // A callback for `n` responses that are known as `key`.
  RolloutEngine::OnDone Expect(size_t key, size_t n) {
    std::lock_guard lock(mutex_);
    results_[key].resize(n);
    missing_ += n;
    return [this, key](size_t index, Generation generation) {
      std::lock_guard lock(mutex_);
      auto& slot = results_[key].at(index);
      EXPECT_FALSE(slot.has_value()) << "request " << key << " response " << index << " came twice";
      slot = std::move(generation);
      --missing_;
      changed_.notify_all();
    };
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, std::chrono::seconds(120), [&] { return missing_ == 0; }))
        << missing_ << " responses did not come";
  }
  size_t missing() const {
    std::lock_guard lock(mutex_);
    return missing_;
  }
  // After Wait, or after the engine is gone.
  std::vector<Generation> Of(size_t key) const {
    std::lock_guard lock(mutex_);
    std::vector<Generation> out;
    for (const auto& generation : results_.at(key)) {
      EXPECT_TRUE(generation.has_value()) << "request " << key;
      out.push_back(generation.value_or(Generation{}));
    }
    return out;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<size_t, std::vector<std::optional<Generation>>> results_;
  size_t missing_ = 0;
};

}  // namespace orrery::fakes
