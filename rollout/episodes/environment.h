// What a policy turn leads to: another turn, or the end of the episode. One environment a file.
// Immutable; called from the engine's thread, so it must not block.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "orchestrator/types.h"

namespace orrery::rollout {

class Environment {
 public:
  virtual ~Environment() = default;
  // The messages that answer the turn, or none where the episode ends with it.
  virtual std::optional<std::vector<Message>> Reply(std::string_view turn_text) const = 0;
};

// single_turn: the first answer is the last.
class SingleTurn : public Environment {
 public:
  std::optional<std::vector<Message>> Reply(std::string_view) const override {
    return std::nullopt;
  }
};

// calculator: a turn that holds <calc>EXPRESSION</calc> is answered by a tool message with the
// value, or with what is wrong with the expression.
class Calculator : public Environment {
 public:
  std::optional<std::vector<Message>> Reply(std::string_view turn_text) const override;
};

absl::StatusOr<std::unique_ptr<Environment>> MakeEnvironment(const std::string& name);

}  // namespace orrery::rollout
