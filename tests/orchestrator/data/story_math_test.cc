#include "orchestrator/data/story_math.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "orchestrator/data/calculator.h"

namespace orrery::data {
namespace {

using testing::HasSubstr;

struct Options {
  configs::StoryMathConfig story = {.rows = 2000};
  configs::DataConfig data = {.chat = false};
  uint64_t seed = 1;
};

std::unique_ptr<StoryMath> Make(const Options& options) {
  auto dataset = StoryMath::Make(options.story, options.data, options.seed);
  EXPECT_TRUE(dataset.ok()) << dataset.status();
  return *std::move(dataset);
}

std::vector<Prompt> Rows(const Options& options) {
  const auto dataset = Make(options);
  std::vector<Prompt> rows;
  for (int64_t i = 0; i < dataset->size(); ++i) rows.push_back(dataset->Row(i));
  return rows;
}

// Reads "8*6=48. 48-31=17. #### 17" without the code that wrote it: the answer if all steps are
// right, else nothing.
std::optional<std::string> Check(const std::string& solution) {
  std::string_view rest = solution;
  std::string last;
  while (!rest.starts_with("#### ")) {
    const size_t equals = rest.find('='), point = rest.find(". ");
    if (equals == std::string_view::npos || point == std::string_view::npos) return std::nullopt;
    last = rest.substr(equals + 1, point - equals - 1);
    if (CalculatorReply(rest.substr(0, equals)) != last) return std::nullopt;
    rest.remove_prefix(point + 2);
  }
  if (rest.substr(5) != last) return std::nullopt;
  return last;
}

TEST(StoryMathTest, SolutionsAreRightAndShort) {
  Options options;
  options.story.templates = 12;
  std::set<std::string> templates, texts;
  for (const Prompt& row : Rows(options)) {
    EXPECT_EQ(Check(row.solution), row.answer) << row.text << " " << row.solution;
    EXPECT_LE(row.solution.size(), 41u);
    const int answer = std::stoi(row.answer);
    EXPECT_TRUE(0 <= answer && answer <= 99) << row.text;
    EXPECT_EQ(row.text.find("{"), std::string::npos);
    EXPECT_EQ(row.metadata.at("flaw"), "none");
    templates.insert(row.metadata.at("template"));
    texts.insert(row.text);
  }
  EXPECT_EQ(templates.size(), 12u);
  EXPECT_GT(texts.size(), 1990u);  // hardly a repetition
}

// Every number that a right solution mentions lies in 0..99, all words are among few.
TEST(StoryMathTest, NumbersAndWordsAreFew) {
  std::set<std::string> words;
  for (int index = 0; index < kNumStoryTemplates; ++index) {
    RandomStream random(static_cast<uint64_t>(index));
    for (int i = 0; i < 3000; ++i) {
      const Story story = DrawStory(index, random);
      const auto steps = WorkOut(story);
      ASSERT_EQ(steps.size(), story.steps.size()) << story.text;
      for (const WorkedStep& step : steps) {
        for (const int64_t number : {step.left, step.right, step.result}) {
          ASSERT_TRUE(0 <= number && number <= 99) << story.text;
        }
      }
      std::string word;
      for (const char c : story.text + " ") {
        if (std::isalpha(static_cast<unsigned char>(c))) {
          word += c;
        } else if (!word.empty()) {
          words.insert(std::exchange(word, ""));
        }
      }
    }
  }
  EXPECT_LE(words.size(), 100u);  // 25 names, 21 items, 8 containers and the sentences
}

TEST(StoryMathTest, EasyFamilyHasAtMostTwoSteps) {
  Options options;
  for (const Prompt& row : Rows(options)) {
    EXPECT_LE(std::count(row.solution.begin(), row.solution.end(), '='), 2) << row.solution;
    EXPECT_LE(std::stoi(row.metadata.at("template")), 6);
  }
}

TEST(StoryMathTest, RowsAreAPureFunctionOfSeedSplitAndIndex) {
  Options options;
  const auto a = Make(options), b = Make(options);
  EXPECT_EQ(a->fingerprint(), b->fingerprint());
  for (const int64_t i : {1999, 0, 7, 7}) {
    EXPECT_EQ(a->Row(i).text, b->Row(i).text);
    EXPECT_EQ(a->Row(i).id, "train/" + std::to_string(i));
  }
  Options more = options;
  more.story.rows = 5000;
  EXPECT_EQ(Make(more)->Row(3).text, a->Row(3).text) << "size does not change rows";
  Options noisy = options;
  noisy.story.noise = 0.5;
  EXPECT_EQ(Make(noisy)->Row(3).text, a->Row(3).text) << "nor do flaws of the solutions";
  Options other = options;
  other.seed = 2;
  EXPECT_NE(Make(other)->Row(3).text, a->Row(3).text);
  std::set<std::string> prints = {a->fingerprint()};
  for (const Options& changed : {more, noisy, other}) {
    EXPECT_TRUE(prints.insert(Make(changed)->fingerprint()).second);
  }
}

TEST(StoryMathTest, TrainAndTestShareNoProblemWhateverTheSeeds) {
  std::set<std::string> train;
  Options options;
  options.story = {.templates = 12, .rows = 20000};
  for (const Prompt& row : Rows(options)) train.insert(row.text);
  options.data.split = "test";
  options.story.rows = 5000;
  for (const uint64_t seed : {1, 2}) {
    options.seed = seed;
    for (const Prompt& row : Rows(options)) {
      EXPECT_TRUE(IsTestProblem(row.text));
      EXPECT_FALSE(train.contains(row.text)) << row.text;
    }
  }
}

// Of n rows, noise * n +- 5 standard deviations are corrupted, half of them by a wrong step; none
// of those earns the point, all others do.
TEST(StoryMathTest, NoiseCorruptsItsShareOfSolutions) {
  Options options;
  options.story = {.templates = 12, .rows = 4000, .noise = 0.65};
  std::map<std::string, int> flaws;
  for (const Prompt& row : Rows(options)) {
    const std::string flaw = row.metadata.at("flaw");
    ++flaws[flaw];
    const size_t mark = row.solution.find("#### ");
    const std::string given = mark == std::string::npos ? "" : row.solution.substr(mark + 5);
    EXPECT_EQ(given == row.answer, flaw == "none") << row.solution;
    EXPECT_EQ(mark == std::string::npos, flaw == "no_mark" || flaw == "early_stop") << row.solution;
    EXPECT_FALSE(row.solution.empty());
    if (flaw == "wrong_step") {
      EXPECT_EQ(Check(row.solution), std::nullopt) << row.solution;
    }
  }
  const double deviation = std::sqrt(4000 * 0.65 * 0.35);
  EXPECT_NEAR(4000 - flaws["none"], 4000 * 0.65, 5 * deviation);
  EXPECT_NEAR(flaws["wrong_step"], 2600 / 2, 5 * std::sqrt(4000 * 0.325 * 0.675));
  EXPECT_NEAR(flaws["no_mark"], 2600 / 4, 5 * std::sqrt(4000 * 0.1625 * 0.8375));
}

// A wrong result is carried on: the steps after it are right with the wrong number.
TEST(StoryMathTest, WrongResultsAreCarriedOn) {
  Story story;
  story.steps = {{Operand::Number(8), '*', Operand::Number(6)},
                 {Operand::Result(0), '-', Operand::Number(31)},
                 {Operand::Result(1), '+', Operand::Number(24)}};
  const auto steps = WorkOut(story, 0, 2);
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0].result, 50);
  EXPECT_EQ(steps[1].left, 50);
  EXPECT_EQ(steps[1].result, 19);
  EXPECT_EQ(steps[2].result, 43);
  EXPECT_TRUE(WorkOut(story, 0, -40).empty()) << "negative numbers are not written";
}

TEST(StoryMathTest, RamblingComesBeforeTheAnswerAndIsLong) {
  Options options;
  options.story = {.rows = 1000, .ramble = 1};
  for (const Prompt& row : Rows(options)) {
    EXPECT_EQ(Check(row.solution), row.answer) << row.solution;
    EXPECT_GE(std::count(row.solution.begin(), row.solution.end(), '='), 7) << row.solution;
    EXPECT_EQ(row.metadata.at("flaw"), "none+ramble");
  }
}

TEST(StoryMathTest, ToolFormIsADialogueWithTheCalculator) {
  Options options;
  options.story = {.templates = 12, .rows = 500, .tool = true};
  options.data = {};
  for (const Prompt& row : Rows(options)) {
    ASSERT_EQ(row.messages.size(), 2u);
    EXPECT_EQ(row.messages[0].role, "system");
    EXPECT_THAT(row.messages[0].content, HasSubstr("<calc>"));
    EXPECT_TRUE(row.solution.empty());
    const auto& turns = row.solution_messages;
    ASSERT_GE(turns.size(), 3u);
    for (size_t i = 0; i + 1 < turns.size(); i += 2) {
      EXPECT_EQ(turns[i].role, "assistant");
      EXPECT_EQ(turns[i + 1].role, "tool");
      const std::string& call = turns[i].content;
      ASSERT_TRUE(call.starts_with("<calc>") && call.ends_with("</calc>")) << call;
      EXPECT_EQ(turns[i + 1].content, CalculatorReply(call.substr(6, call.size() - 13)));
    }
    EXPECT_EQ(turns.back().role, "assistant");
    EXPECT_EQ(turns.back().content, "#### " + row.answer);
    EXPECT_EQ(turns[turns.size() - 2].content, row.answer);
  }
}

TEST(StoryMathTest, ToolFormHasFlawsToo) {
  Options options;
  options.story = {.templates = 12, .rows = 2000, .noise = 1, .ramble = 0.5, .tool = true};
  options.data = {};
  for (const Prompt& row : Rows(options)) {
    EXPECT_EQ(row.solution_messages.back().role, "assistant");
    EXPECT_NE(row.solution_messages.back().content, "#### " + row.answer);
    EXPECT_FALSE(row.solution_messages.back().content.empty());
  }
}

TEST(StoryMathTest, PromptsTakeTheFormThatDataAsksFor) {
  Options options;
  options.data = {.prompt_template = "Q: {prompt}\nA:", .chat = false, .limit = 3};
  EXPECT_EQ(Make(options)->size(), 3);
  EXPECT_TRUE(Make(options)->Row(0).text.starts_with("Q: "));
  options.data = {.system_prompt = "s"};
  EXPECT_EQ(Make(options)->Row(0).messages.size(), 2u);
}

TEST(StoryMathTest, SettingsThatCannotWorkAreErrors) {
  const auto error = [](const Options& options) {
    return std::string(
        StoryMath::Make(options.story, options.data, options.seed).status().message());
  };
  Options options;
  options.data.split = "validation";
  EXPECT_THAT(error(options), HasSubstr("'validation': story_math has the splits train and test"));
  options.data = {.prompt_template = "{level}"};
  EXPECT_THAT(error(options),
              HasSubstr("asks for {level}: rows of story_math have {prompt} alone"));
  options.data = {.chat = false};
  options.story.tool = true;
  EXPECT_THAT(error(options), HasSubstr("set data.chat: true"));
  options.data = {.system_prompt = "x"};
  EXPECT_THAT(error(options), HasSubstr("remove data.system_prompt"));
}

}  // namespace
}  // namespace orrery::data
