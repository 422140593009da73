#include "orchestrator/loop/evaluation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "orchestrator/base/status.h"

namespace orrery {
namespace {

// By counting: the share of k-subsets of n with at least one of the correct ones.
double PassAtKByCounting(int64_t n, int64_t correct, int64_t k) {
  int64_t hits = 0, all = 0;
  for (uint32_t subset = 0; subset < (1u << n); ++subset) {
    if (__builtin_popcount(subset) != k) continue;
    ++all;
    hits += (subset & ((1u << correct) - 1)) != 0 ? 1 : 0;
  }
  return static_cast<double>(hits) / static_cast<double>(all);
}

TEST(PassAtK, IsTheShareOfSubsetsWithACorrectOne) {
  for (int64_t n = 1; n <= 9; ++n) {
    for (int64_t correct = 0; correct <= n; ++correct) {
      for (int64_t k = 1; k <= n; ++k) {
        EXPECT_NEAR(PassAtK(n, correct, k), PassAtKByCounting(n, correct, k), 1e-14)
            << n << " " << correct << " " << k;
      }
    }
  }
}

// The bounds are where the score test's statistic is exactly z (Wilson 1927).
TEST(WilsonInterval, SolvesItsEquation) {
  for (const auto& [successes, n] : std::vector<std::pair<double, int64_t>>{
           {1, 10}, {5, 10}, {9.5, 10}, {300, 512}, {511, 512}}) {
    const auto [low, high] = WilsonInterval(successes, n);
    const double p = successes / static_cast<double>(n);
    EXPECT_LT(low, p);
    EXPECT_GT(high, p);
    for (const double bound : {low, high}) {
      const double z = (p - bound) / std::sqrt(bound * (1 - bound) / static_cast<double>(n));
      EXPECT_NEAR(std::abs(z), 1.959963984540054, 1e-9) << successes << " of " << n;
    }
  }
}

TEST(WilsonInterval, StaysInsideZeroAndOne) {
  EXPECT_EQ(WilsonInterval(0, 0), (std::pair<double, double>{0, 1}));
  EXPECT_EQ(WilsonInterval(0, 5).first, 0);
  EXPECT_EQ(WilsonInterval(5, 5).second, 1);
}

class Rows : public data::Dataset {
 public:
  explicit Rows(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  Prompt Row(int64_t index) const override {
    Prompt prompt;
    prompt.id = std::to_string(index);
    return prompt;
  }
  const std::string& fingerprint() const override { return fingerprint_; }

 private:
  const int64_t size_;
  const std::string fingerprint_ = "rows";
};

// Answers with two tokens; the last sample of each prompt is cut off. Notes the seeds.
class FakeRunner : public EpisodeRunner {
 public:
  absl::Status Run(std::vector<EpisodeGroup>* groups) override {
    for (EpisodeGroup& group : *groups) {
      for (Episode& episode : group.episodes) {
        seeds.insert(episode.seed);
        Sample sample;
        sample.segments.push_back({Author::kPolicy, {1, 2}, {0, 0}, {0, 0}});
        if (episode.index_in_group == 3) sample.finish_reason = FinishReason::kLength;
        episode.samples = {sample};
      }
    }
    return absl::OkStatus();
  }
  std::set<uint64_t> seeds;
};

// Row r: its first r % 5 samples are right. Row 4's first sample fails instead.
class FakeGrader : public Grader {
 public:
  void Grade(std::vector<EpisodeGroup>* groups) override {
    for (EpisodeGroup& group : *groups) {
      const int64_t row = std::stoll(group.prompt.id);
      for (Episode& episode : group.episodes) {
        episode.status = fail_all || (row == 4 && episode.index_in_group == 0)
                             ? EpisodeStatus::kFailed
                             : EpisodeStatus::kScored;
        episode.outcome = episode.status == EpisodeStatus::kFailed
                              ? Outcome::Failed("the grader is ill")
                              : Outcome::Scored(episode.index_in_group < row % 5 ? 1 : 0, "");
      }
    }
  }
  bool fail_all = false;
};

class EvaluationTest : public ::testing::Test {
 protected:
  EvalTask Task(int64_t rows) {
    EvalTask task;
    task.name = "fake";
    task.samples = 4;
    task.seed = 9;
    task.dataset = std::make_unique<Rows>(rows);
    auto runner = std::make_unique<FakeRunner>();
    runner_ = runner.get();
    task.runner = std::move(runner);
    task.grader = &grader_;
    return task;
  }
  FakeGrader grader_;
  FakeRunner* runner_ = nullptr;
};

TEST_F(EvaluationTest, MeansOverPromptsAndFailuresApart) {
  const EvalTask task = Task(5);
  const absl::StatusOr<EvalResult> result = Evaluate(task);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->prompts, 5);
  EXPECT_EQ(result->failed, 1);
  EXPECT_NEAR(result->accuracy, (0 + 0.25 + 0.5 + 0.75 + 1) / 5, 1e-12);
  EXPECT_NEAR(result->truncated_ratio, 5.0 / 19, 1e-12);
  EXPECT_NEAR(result->response_len, 2, 1e-12);
  ASSERT_EQ(result->pass_at_k.size(), 3u);
  EXPECT_EQ(result->pass_at_k[2].first, 4);
  // Row 0 never; the others have a correct one among all that were scored.
  EXPECT_NEAR(result->pass_at_k[2].second, 4.0 / 5, 1e-12);
  EXPECT_NEAR(result->pass_at_k[0].second, result->accuracy, 1e-12);
  EXPECT_EQ(runner_->seeds.size(), 20u) << "no two samples share a seed";
}

// More prompts than are sampled at once are as many: 2000 of them.
TEST_F(EvaluationTest, ChunksAreNotSeen) {
  const EvalTask task = Task(2000);
  const absl::StatusOr<EvalResult> result = Evaluate(task);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->prompts, 2000);
  EXPECT_EQ(runner_->seeds.size(), 8000u);
  EXPECT_NEAR(result->accuracy, 400 * 2.5 / 2000, 1e-12);
}

TEST_F(EvaluationTest, NothingScoredIsAnError) {
  const EvalTask task = Task(3);
  grader_.fail_all = true;
  EXPECT_EQ(StatusText(Evaluate(task).status()),
            "evaluation fake: none of 12 episodes could be scored; the first: the grader is ill");
}

}  // namespace
}  // namespace orrery
