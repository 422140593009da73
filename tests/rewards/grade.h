// Grades one response in a test.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "rewards/reward.h"

namespace orrery::rewards {

inline std::unique_ptr<Reward> Make(const std::string& name,
                                    std::map<std::string, std::string> parameters = {}) {
  auto reward = MakeReward({.name = name, .parameters = std::move(parameters)});
  EXPECT_TRUE(reward.ok()) << reward.status().message();
  return reward.ok() ? *std::move(reward) : nullptr;
}

inline Outcome GradeWith(const Reward& reward, std::string_view response, std::string answer,
                         int64_t num_tokens = 0, bool truncated = false) {
  Prompt prompt;
  prompt.id = "test/0";
  prompt.answer = std::move(answer);
  return reward.Grade({prompt, response, truncated, num_tokens});
}

}  // namespace orrery::rewards
