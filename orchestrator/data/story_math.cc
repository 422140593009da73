#include "orchestrator/data/story_math.h"

#include <algorithm>
#include <utility>

#include "orchestrator/base/check.h"
#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"
#include "orchestrator/data/story_solution.h"

namespace orrery::data {
namespace {

constexpr std::string_view kToolMessage =
    "Use <calc>8*6</calc> for each step. End with #### and the number.";

// Streams of one row's seed, by purpose.
enum Purpose : uint64_t { kProblem = 1, kSolution = 2 };

}  // namespace

bool IsTestProblem(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, then mixed: its low bits alone are weak
  for (const unsigned char c : text) hash = (hash ^ c) * 0x100000001b3;
  return Mix64(hash) % 8 == 0;
}

absl::StatusOr<std::unique_ptr<StoryMath>> StoryMath::Make(const configs::StoryMathConfig& config,
                                                           const configs::DataConfig& data,
                                                           uint64_t seed) {
  if (data.split != "train" && data.split != "test") {
    return InvalidInput("data.split: '{}': story_math has the splits train and test", data.split);
  }
  std::unique_ptr<StoryMath> dataset(new StoryMath(config, data, seed));
  RETURN_IF_ERROR(dataset->Generate(0).status());
  return dataset;
}

StoryMath::StoryMath(const configs::StoryMathConfig& config, const configs::DataConfig& data,
                     uint64_t seed)
    : config_(config),
      split_(data.split),
      seed_(seed),
      size_(data.limit > 0 ? std::min(data.limit, config.rows) : config.rows),
      shape_(data) {
  // The rows follow from these; the version changes with the generator.
  fingerprint_ = Sha256(fmt::format(
      "story_math 1 seed {} split {} size {} templates {} noise {} ramble {} tool {} chat {} "
      "template {} system {}",
      seed, split_, size_, config.templates, config.noise, config.ramble, config.tool, data.chat,
      data.prompt_template, data.system_prompt));
}

Prompt StoryMath::Row(int64_t index) const {
  CHECK_GE(index, 0);
  CHECK_LT(index, size_);
  absl::StatusOr<Prompt> prompt = Generate(index);
  CHECK(prompt.ok()) << prompt.status();  // Make has tried; no row differs in form
  return *std::move(prompt);
}

absl::StatusOr<Prompt> StoryMath::Generate(int64_t index) const {
  const uint64_t row_seed =
      HashSeed({seed_, split_ == "test" ? 1u : 0u, static_cast<uint64_t>(index)});
  RandomStream random(HashSeed({row_seed, kProblem}));
  Story story;
  int template_index = 0;
  do {
    template_index = static_cast<int>(random.Below(static_cast<uint64_t>(config_.templates)));
    story = DrawStory(template_index, random);
  } while (IsTestProblem(story.text) != (split_ == "test"));

  Prompt prompt;
  prompt.id = fmt::format("{}/{}", split_, index);
  prompt.answer = fmt::format("{}", WorkOut(story).back().result);
  prompt.metadata["template"] = fmt::format("{}", template_index + 1);
  RETURN_IF_ERROR(ShapePrompt(story, prompt));
  RandomStream flaws(HashSeed({row_seed, kSolution}));
  WriteSolution(story, config_, flaws, prompt);
  return prompt;
}

absl::Status StoryMath::ShapePrompt(const Story& story, Prompt& prompt) const {
  const auto lookup = [](std::string_view) -> absl::StatusOr<std::string> {
    return InvalidInput("rows of story_math have {{prompt}} alone");
  };
  if (!config_.tool) return shape_.FromText(story.text, lookup, prompt);
  return shape_.FromMessages({{"system", std::string(kToolMessage)}, {"user", story.text}}, lookup,
                             prompt);
}

}  // namespace orrery::data
