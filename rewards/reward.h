// What a reward is: a function from one finished response to an Outcome. One reward a file; the
// rubric adds several up (rubric.h), the grader runs them over groups (grader.h).
//
// Rewards are immutable after construction and Grade() may be called from any number of threads.
// The response is a model's text: any bytes at all must end in an Outcome. Outcome::Failed is for
// what says nothing about the response (a label that cannot be used, a crashed program); what the
// response itself gets wrong is a score, so that no policy can leave its group's baseline by
// writing nonsense.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "orchestrator/types.h"

namespace orrery::rewards {

// What a reward sees of an episode. Borrows: the prompt and the text outlive the call.
struct RewardInput {
  const Prompt& prompt;
  std::string_view response;
  bool truncated = false;
  int64_t num_tokens = 0;  // tokens the policy wrote, over all turns
};

class Reward {
 public:
  virtual ~Reward() = default;
  virtual Outcome Grade(const RewardInput& input) const = 0;
};

// One entry of a rubric as the experiment file gives it.
struct RewardSpec {
  std::string name;
  double weight = 1;
  std::map<std::string, std::string> parameters;
};

// InvalidArgument for an unknown name (the nearest one is suggested), an unknown parameter, or a
// value out of range.
absl::StatusOr<std::unique_ptr<Reward>> MakeReward(const RewardSpec& spec);

// In alphabetical order, for documentation and messages.
std::vector<std::string_view> RewardNames();

}  // namespace orrery::rewards
