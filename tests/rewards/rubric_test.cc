// Weighted rewards, truncation, and grading whole groups.
#include "rewards/rubric.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <stdexcept>

#include "rewards/grader.h"
#include "tests/rewards/grade.h"

namespace orrery::rewards {
namespace {

using testing::HasSubstr;
using testing::Pair;

class FakeReward : public Reward {
 public:
  using Function = std::function<Outcome(const RewardInput&)>;
  explicit FakeReward(Function function) : function_(std::move(function)) {}
  Outcome Grade(const RewardInput& input) const override { return function_(input); }

 private:
  Function function_;
};

Rubric::Part Fake(std::string name, double weight, FakeReward::Function function) {
  return {std::move(name), weight, std::make_unique<FakeReward>(std::move(function))};
}

Rubric::Part Constant(std::string name, double weight, double score) {
  return Fake(std::move(name), weight,
              [score](const RewardInput&) { return Outcome::Scored(score, "c"); });
}

template <typename... Parts>
Rubric MakeRubric(TruncationPolicy truncation, Parts... parts) {
  std::vector<Rubric::Part> list;
  (list.push_back(std::move(parts)), ...);
  return Rubric(std::move(list), truncation);
}

Rubric::Verdict GradeText(const Rubric& rubric, std::string_view response, bool truncated) {
  const Prompt prompt;
  return rubric.Grade({prompt, response, truncated, 5});
}

TEST(Rubric, SumsWithWeightsAndKeepsTheParts) {
  const Rubric rubric = MakeRubric(TruncationPolicy::kGrade, Constant("a", 2, 0.5),
                                   Constant("b", -1, 0.25), Constant("a", 0, 9));
  const Rubric::Verdict verdict = GradeText(rubric, "", false);
  EXPECT_EQ(verdict.outcome.score, 0.75);
  EXPECT_THAT(verdict.outcome.parts,
              testing::ElementsAre(Pair("a", 0.5), Pair("b", 0.25), Pair("a#2", 9)));
  EXPECT_EQ(verdict.outcome.why, "a: c; b: c; a#2: c");
}

TEST(Rubric, AFailedPartFailsTheWhole) {
  const Rubric rubric = MakeRubric(
      TruncationPolicy::kGrade, Constant("a", 1, 1),
      Fake("b", 0, [](const RewardInput&) { return Outcome::Failed("no answer from the tests"); }));
  const Outcome outcome = GradeText(rubric, "", false).outcome;
  EXPECT_EQ(outcome.kind, Outcome::Kind::kFailed);
  EXPECT_EQ(outcome.score, 0);
  EXPECT_EQ(outcome.why, "b: no answer from the tests");
}

TEST(Rubric, ScoresThatAreNoNumbersFail) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const Rubric rubric = MakeRubric(TruncationPolicy::kGrade, Constant("a", 1, bad));
    EXPECT_EQ(GradeText(rubric, "", false).outcome.kind, Outcome::Kind::kFailed);
  }
  const Rubric overflow = MakeRubric(TruncationPolicy::kGrade, Constant("a", 10, 1e308));
  EXPECT_EQ(GradeText(overflow, "", false).outcome.kind, Outcome::Kind::kFailed);
}

TEST(Rubric, TruncationPolicies) {
  int calls = 0;
  const auto counting = [&calls](const RewardInput&) {
    ++calls;
    return Outcome::Scored(1, "");
  };
  const Rubric grade = MakeRubric(TruncationPolicy::kGrade, Fake("a", 1, counting));
  EXPECT_EQ(GradeText(grade, "", true).outcome.score, 1);
  EXPECT_TRUE(GradeText(grade, "", true).trained);
  const Rubric mask = MakeRubric(TruncationPolicy::kMask, Fake("a", 1, counting));
  EXPECT_EQ(GradeText(mask, "", true).outcome.score, 1);
  EXPECT_FALSE(GradeText(mask, "", true).trained);
  EXPECT_TRUE(GradeText(mask, "", false).trained);
  calls = 0;
  const Rubric zero = MakeRubric(TruncationPolicy::kZero, Fake("a", 1, counting));
  const Rubric::Verdict verdict = GradeText(zero, "", true);
  EXPECT_EQ(verdict.outcome.kind, Outcome::Kind::kScored);
  EXPECT_EQ(verdict.outcome.score, 0);
  EXPECT_TRUE(verdict.trained);
  EXPECT_THAT(verdict.outcome.parts, testing::ElementsAre(Pair("a", 0)));
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(GradeText(zero, "", false).outcome.score, 1);
}

TEST(Rubric, FromSpecs) {
  const auto rubric = Rubric::Create(
      {{.name = "math"},
       {.name = "length", .weight = 0.5, .parameters = {{"max_length", "4"}, {"buffer", "4"}}}},
      TruncationPolicy::kGrade);
  ASSERT_TRUE(rubric.ok()) << rubric.status().message();
  Prompt prompt;
  prompt.answer = "18";
  const Outcome outcome = (*rubric)->Grade({prompt, "\\boxed{18}", false, 2}).outcome;
  EXPECT_EQ(outcome.score, 0.75);
  EXPECT_FALSE(Rubric::Create({}, TruncationPolicy::kGrade).ok());
  EXPECT_FALSE(Rubric::Create({{.name = "moth"}}, TruncationPolicy::kGrade).ok());
  EXPECT_EQ(ParseTruncationPolicy("mask").value(), TruncationPolicy::kMask);
  EXPECT_FALSE(ParseTruncationPolicy("drop").ok());
}

// --- grading groups
// --------------------------------------------------------------------------------

Episode Finished(std::string text, FinishReason reason = FinishReason::kStop, int num_tokens = 3) {
  Episode episode;
  episode.response_text = std::move(text);
  Sample& sample = episode.samples.emplace_back();
  sample.finish_reason = reason;
  sample.segments.push_back({.author = Author::kPrompt, .token_ids = {1, 2}});
  Segment& policy = sample.segments.emplace_back();
  policy.author = Author::kPolicy;
  policy.token_ids.resize(num_tokens);
  return episode;
}

std::unique_ptr<const Rubric> EchoRubric(TruncationPolicy truncation) {
  std::vector<Rubric::Part> parts;
  parts.push_back(Fake("echo", 1, [](const RewardInput& input) {
    if (input.response == "fail") return Outcome::Failed("told to");
    if (input.response == "throw") throw std::runtime_error("bad alloc");
    return Outcome::Scored(std::stod(std::string(input.response)) + 1000.0 * input.num_tokens,
                           input.prompt.id);
  }));
  return std::make_unique<Rubric>(std::move(parts), truncation);
}

TEST(Grader, FillsOutcomeAndStatus) {
  std::vector<EpisodeGroup> groups(2);
  groups[0].prompt.id = "p0";
  groups[1].prompt.id = "p1";
  groups[0].episodes = {Finished("1"), Finished("fail"), Finished("2", FinishReason::kLength)};
  groups[1].episodes = {Finished("x", FinishReason::kRejected),
                        Finished("x", FinishReason::kAborted), Finished("throw"), Finished("4"),
                        Finished("7")};
  groups[1].episodes[4].status = EpisodeStatus::kFiltered;
  RubricGrader grader(EchoRubric(TruncationPolicy::kMask), 3);
  grader.Grade(&groups);
  const auto& a = groups[0].episodes;
  const auto& b = groups[1].episodes;
  EXPECT_EQ(a[0].status, EpisodeStatus::kScored);
  EXPECT_EQ(a[0].outcome.score, 3001);
  EXPECT_EQ(a[0].outcome.why, "p0");
  EXPECT_TRUE(a[0].trained);
  EXPECT_EQ(a[1].status, EpisodeStatus::kFailed);
  EXPECT_EQ(a[2].status, EpisodeStatus::kScored);
  EXPECT_FALSE(a[2].trained);
  EXPECT_EQ(b[0].status, EpisodeStatus::kFailed);
  EXPECT_EQ(b[1].status, EpisodeStatus::kAborted);
  EXPECT_EQ(b[2].status, EpisodeStatus::kFailed);
  EXPECT_THAT(b[2].outcome.why, HasSubstr("bad alloc"));
  EXPECT_EQ(b[3].outcome.why, "p1");
  EXPECT_EQ(b[4].status, EpisodeStatus::kFiltered);  // not asked for
  EXPECT_EQ(b[4].outcome.why, "");
}

TEST(Grader, TheNumberOfThreadsDoesNotShow) {
  std::vector<EpisodeGroup> groups(40);
  for (size_t g = 0; g < groups.size(); ++g) {
    groups[g].prompt.id = std::to_string(g);
    for (int i = 0; i < 9; ++i) groups[g].episodes.push_back(Finished(std::to_string(g * 10 + i)));
  }
  std::vector<EpisodeGroup> one = groups, many = groups;
  RubricGrader(EchoRubric(TruncationPolicy::kGrade), 1).Grade(&one);
  RubricGrader(EchoRubric(TruncationPolicy::kGrade), 8).Grade(&many);
  for (size_t g = 0; g < groups.size(); ++g) {
    for (int i = 0; i < 9; ++i) {
      EXPECT_EQ(one[g].episodes[i].outcome.score, g * 10 + i + 3000.0);
      EXPECT_EQ(many[g].episodes[i].outcome.score, one[g].episodes[i].outcome.score);
      EXPECT_EQ(many[g].episodes[i].outcome.why, one[g].episodes[i].outcome.why);
    }
  }
  std::vector<EpisodeGroup> none;
  RubricGrader(EchoRubric(TruncationPolicy::kGrade), 4).Grade(&none);
}

}  // namespace
}  // namespace orrery::rewards
