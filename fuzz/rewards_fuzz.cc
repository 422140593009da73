// Fuzz target of the graders: any label and any response must end in a finite score or a reason, in
// bounded time. Input: one byte that picks the reward, the label, a zero byte, the response.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/base/check.h"
#include "rewards/reward.h"

namespace {

using orrery::Outcome;
using orrery::Prompt;
using orrery::rewards::MakeReward;
using orrery::rewards::Reward;
using orrery::rewards::RewardSpec;

std::vector<std::unique_ptr<Reward>> MakeAll() {
  const std::vector<RewardSpec> specs = {
      {.name = "math", .parameters = {{"last_number", "true"}}},
      {.name = "math", .parameters = {{"ordered_lists", "true"}}},
      {.name = "math_miles"},
      {.name = "math_slime"},
      {.name = "dapo"},
      {.name = "gsm8k_strict"},
      {.name = "gsm8k_flexible"},
      {.name = "exact", .parameters = {{"ignore_case", "true"}, {"last_line", "true"}}},
      {.name = "format", .parameters = {{"tags", "think,answer"}, {"nothing_outside", "true"}}},
      {.name = "regex", .parameters = {{"pattern", "(a*)*b|(\\w+\\s?)+$"}, {"group", "1"}}}};
  std::vector<std::unique_ptr<Reward>> rewards;
  for (const RewardSpec& spec : specs) {
    auto reward = MakeReward(spec);
    CHECK(reward.ok()) << reward.status().message();
    rewards.push_back(*std::move(reward));
  }
  return rewards;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* const rewards = new std::vector<std::unique_ptr<Reward>>(MakeAll());
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t zero = input.find('\0');
  Prompt prompt;
  prompt.answer = std::string(input.substr(0, zero));
  const std::string_view response =
      zero == std::string_view::npos ? std::string_view() : input.substr(zero + 1);
  const Outcome outcome =
      (*rewards)[data[0] % rewards->size()]->Grade({prompt, response, false, 1});
  CHECK(std::isfinite(outcome.score));
  CHECK(outcome.kind == Outcome::Kind::kScored || !outcome.why.empty());
  return 0;
}
