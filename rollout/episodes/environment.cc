#include "rollout/episodes/environment.h"

#include "orchestrator/base/status.h"
#include "orchestrator/data/calculator.h"
#include "orchestrator/data/story_math.h"

namespace orrery::rollout {

std::optional<std::vector<Message>> Calculator::Reply(std::string_view turn_text) const {
  const size_t open = turn_text.rfind(data::kCalculatorOpen);
  if (open == std::string_view::npos) return std::nullopt;
  const size_t first = open + data::kCalculatorOpen.size();
  const size_t close = turn_text.find(data::kCalculatorClose, first);
  if (close == std::string_view::npos) return std::nullopt;
  return std::vector<Message>{
      {"tool", data::CalculatorReply(turn_text.substr(first, close - first))}};
}

absl::StatusOr<std::unique_ptr<Environment>> MakeEnvironment(const std::string& name) {
  if (name == "single_turn") return std::make_unique<SingleTurn>();
  if (name == "calculator") return std::make_unique<Calculator>();
  return InvalidInput("rollout.environment: \"{}\" is unknown; known: single_turn, calculator",
                      name);
}

}  // namespace orrery::rollout
