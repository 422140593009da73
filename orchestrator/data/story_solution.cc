#include "orchestrator/data/story_solution.h"

#include <fmt/format.h>

#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "orchestrator/base/check.h"
#include "orchestrator/data/calculator.h"
#include "orchestrator/data/story_math.h"

namespace orrery::data {
namespace {

enum class Flaw { kNone, kWrongStep, kNoMark, kEarlyStop };

// What is written: the steps, and how the answer stands behind them.
struct Draft {
  std::vector<WorkedStep> steps;
  std::string ending;  // "#### 41", "41", or empty
};

std::optional<int64_t> Compute(int64_t left, char operation, int64_t right) {
  switch (operation) {
    case '+':
      return left + right;
    case '-':
      return left - right;
    case '*':
      return left * right;
    default:
      if (right == 0 || left % right != 0) return std::nullopt;
      return left / right;
  }
}

int64_t Resolve(const Operand& operand, const std::vector<WorkedStep>& steps) {
  if (operand.from_step < 0) return operand.value;
  return steps[static_cast<size_t>(operand.from_step)].result;
}

// Adds `error` to the result of the wrong step, or to its right operand.
std::vector<WorkedStep> WorkOutWrongly(const Story& story, int wrong_step, int64_t error,
                                       bool in_operand) {
  std::vector<WorkedStep> steps;
  for (const Step& step : story.steps) {
    WorkedStep worked{Resolve(step.left, steps), step.operation, Resolve(step.right, steps), 0};
    const bool is_wrong = static_cast<int>(steps.size()) == wrong_step;
    if (is_wrong && in_operand) worked.right += error;
    const std::optional<int64_t> result = Compute(worked.left, worked.operation, worked.right);
    if (!result) return {};
    worked.result = *result + (is_wrong && !in_operand ? error : 0);
    if (worked.result < 0 || worked.right < 0) return {};
    steps.push_back(worked);
  }
  return steps;
}

// Steps with one mistake that changes the answer.
std::vector<WorkedStep> DrawWrongSteps(const Story& story, bool in_operand, RandomStream& random) {
  constexpr int64_t kErrors[] = {-10, -2, -1, 1, 2, 10};
  const int64_t answer = WorkOut(story).back().result;
  for (int attempt = 0; attempt < 50; ++attempt) {
    const int step = static_cast<int>(random.Below(story.steps.size()));
    const int64_t error = kErrors[random.Below(std::size(kErrors))];
    const auto steps = WorkOutWrongly(story, step, error, in_operand);
    if (!steps.empty() && steps.back().result != answer) return steps;
  }
  return WorkOut(story, static_cast<int>(story.steps.size()) - 1, 1);  // always possible
}

std::string Marked(int64_t answer) { return fmt::format("#### {}", answer); }

Flaw DrawFlaw(double noise, RandomStream& random) {
  const bool is_flawed = random.Uniform() < noise;
  const uint64_t kind = random.Below(4);
  if (!is_flawed) return Flaw::kNone;
  return kind < 2 ? Flaw::kWrongStep : kind == 2 ? Flaw::kNoMark : Flaw::kEarlyStop;
}

Draft WriteDraft(const Story& story, Flaw flaw, bool tool, RandomStream& random) {
  Draft draft{WorkOut(story), ""};
  if (flaw == Flaw::kWrongStep) draft.steps = DrawWrongSteps(story, tool, random);
  draft.ending = Marked(draft.steps.back().result);
  if (flaw == Flaw::kNoMark) draft.ending = fmt::format("{}", draft.steps.back().result);
  if (flaw == Flaw::kEarlyStop) {
    // Some of the steps, at least one; the last step alone is dropped with the answer.
    const size_t kept = draft.steps.size() == 1 ? 1 : 1 + random.Below(draft.steps.size() - 1);
    draft.steps.resize(kept);
    draft.ending.clear();
  }
  return draft;
}

// Steps that change nothing: 41+0=41. Six of them pass any limit that fits the solution itself.
void AddIdleSteps(Draft& draft, RandomStream& random) {
  constexpr WorkedStep kIdle[] = {{0, '+', 0, 0}, {0, '-', 0, 0}, {0, '*', 1, 0}};
  const int64_t value = draft.steps.back().result;
  for (uint64_t left = 6 + random.Below(7); left > 0; --left) {
    WorkedStep step = kIdle[random.Below(std::size(kIdle))];
    step.left = step.result = value;
    draft.steps.push_back(step);
  }
}

std::string Expression(const WorkedStep& step) {
  return fmt::format("{}{}{}", step.left, step.operation, step.right);
}

std::string AsText(const Draft& draft) {
  std::string text;
  for (const WorkedStep& step : draft.steps) {
    text += fmt::format("{}{}={}.", text.empty() ? "" : " ", Expression(step), step.result);
  }
  if (!draft.ending.empty()) text += " " + draft.ending;
  return text;
}

std::vector<Message> AsTurns(const Draft& draft) {
  std::vector<Message> turns;
  for (const WorkedStep& step : draft.steps) {
    const std::string expression = Expression(step);
    turns.push_back(
        {"assistant", fmt::format("{}{}{}", kCalculatorOpen, expression, kCalculatorClose)});
    turns.push_back({"tool", CalculatorReply(expression)});
  }
  // An early stop answers with what it has: a dialogue ends with the assistant.
  const std::string ending =
      draft.ending.empty() ? fmt::format("{}", draft.steps.back().result) : draft.ending;
  turns.push_back({"assistant", ending});
  return turns;
}

const char* FlawName(Flaw flaw) {
  switch (flaw) {
    case Flaw::kNone:
      return "none";
    case Flaw::kWrongStep:
      return "wrong_step";
    case Flaw::kNoMark:
      return "no_mark";
    case Flaw::kEarlyStop:
      return "early_stop";
  }
  return "";
}

}  // namespace

std::vector<WorkedStep> WorkOut(const Story& story, int wrong_step, int64_t error) {
  return WorkOutWrongly(story, wrong_step, error, false);
}

void WriteSolution(const Story& story, const configs::StoryMathConfig& config, RandomStream& random,
                   Prompt& prompt) {
  const Flaw flaw = DrawFlaw(config.noise, random);
  const bool rambles = random.Uniform() < config.ramble;
  Draft draft = WriteDraft(story, flaw, config.tool, random);
  if (rambles) AddIdleSteps(draft, random);
  if (config.tool) {
    prompt.solution_messages = AsTurns(draft);
  } else {
    prompt.solution = AsText(draft);
  }
  prompt.metadata["flaw"] =
      rambles ? fmt::format("{}+ramble", FlawName(flaw)) : std::string(FlawName(flaw));
}

}  // namespace orrery::data
