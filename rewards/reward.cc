#include "rewards/reward.h"

#include <fmt/ranges.h>

#include <array>
#include <cmath>

#include "orchestrator/base/status.h"
#include "orchestrator/base/utf8.h"
#include "rewards/factories.h"

namespace orrery::rewards {
namespace {

using Factory = std::unique_ptr<Reward> (*)(Parameters*);

struct Entry {
  std::string_view name;
  Factory make;
};

constexpr auto kRewards = std::to_array<Entry>({
    {"dapo", MakeDapo},
    {"exact", MakeExact},
    {"format", MakeFormat},
    {"gsm8k_flexible", MakeGsm8kFlexible},
    {"gsm8k_strict", MakeGsm8kStrict},
    {"length", MakeLength},
    {"math", MakeMath},
    {"math_miles", MakeMathMiles},
    {"math_slime", MakeMathSlime},
    {"program", MakeProgram},
    {"regex", MakeRegex},
});

}  // namespace

std::vector<std::string_view> RewardNames() {
  std::vector<std::string_view> names;
  for (const Entry& entry : kRewards) names.push_back(entry.name);
  return names;
}

absl::StatusOr<std::unique_ptr<Reward>> MakeReward(const RewardSpec& spec) {
  if (!std::isfinite(spec.weight)) {
    return InvalidInput("reward '{}': weight is {}, must be a finite number", spec.name,
                        spec.weight);
  }
  for (const Entry& entry : kRewards) {
    if (entry.name != spec.name) continue;
    Parameters parameters(spec.name, spec.parameters);
    std::unique_ptr<Reward> reward = entry.make(&parameters);
    RETURN_IF_ERROR(parameters.status());
    return reward;
  }
  const std::string hint = DidYouMean(spec.name, RewardNames());
  return InvalidInput("unknown reward '{}'{} Known: {}", spec.name, hint.empty() ? "." : hint,
                      fmt::join(RewardNames(), ", "));
}

std::string Shorten(std::string_view text) {
  constexpr size_t kShown = 80;
  return ShortenUtf8(text, kShown);
}

}  // namespace orrery::rewards
