// The loop over fakes: what it waits for where samples take their time to be written.
#include "orchestrator/loop/loop.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>

#include "tests/orchestrator/run/run_testing.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;
using run::TempFolder;
using ::testing::HasSubstr;

// What happens on both threads, in order.
class Story {
 public:
  void Tell(const std::string& what) {
    const std::lock_guard<std::mutex> lock(mutex_);
    told_.push_back(what);
    changed_.notify_all();
  }
  // False where it has not been told within a minute.
  bool Await(const std::string& what) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(1), [&] { return IndexOf(what) >= 0; });
  }
  // -1: never.
  int64_t When(const std::string& what) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return IndexOf(what);
  }

 private:
  int64_t IndexOf(const std::string& what) const {
    const auto it = std::find(told_.begin(), told_.end(), what);
    return it == told_.end() ? -1 : it - told_.begin();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> told_;
};

std::string Of(const char* what, int64_t step) { return what + (" " + std::to_string(step)); }

// Counts what is alive, and the most that ever was. What it gives out fits FakeRunner's samples.
class Census {
 public:
  std::shared_ptr<const RoutedExperts> Enter() {
    const int64_t alive = ++alive_;
    if (alive > most_) most_ = alive;
    return {new RoutedExperts{1, 1, 1, nullptr, {0, 0}}, [this](const RoutedExperts* one) {
              delete one;
              --alive_;
            }};
  }
  int64_t most() const { return most_; }

 private:
  std::atomic<int64_t> alive_{0}, most_{0};
};

// One response of two tokens a sample; the second token is the number of the rollout.
class FakeRunner : public EpisodeRunner {
 public:
  explicit FakeRunner(Story* story) : story_(*story) {}
  absl::Status Run(std::vector<EpisodeGroup>* groups) override {
    story_.Tell(Of("rollout", ++runs_));
    for (EpisodeGroup& group : *groups) {
      for (Episode& episode : group.episodes) {
        Sample sample;
        sample.segments.push_back({Author::kPrompt, {1}, {}, {}});
        sample.segments.push_back({Author::kPolicy, {2, runs_}, {-1, -2}, {0, 0}});
        episode.samples = {sample};
      }
      group.episodes.front().samples.front().routed_experts = groups_.Enter();
    }
    story_.Tell(Of("sampled", runs_));
    return absl::OkStatus();
  }
  const Census& groups() const { return groups_; }

 private:
  Story& story_;
  Census groups_;
  int32_t runs_ = 0;
};

class FakeGrader : public Grader {
 public:
  void Grade(std::vector<EpisodeGroup>* groups) override {
    const bool signal = ++calls_ % signal_every == 0;
    for (EpisodeGroup& group : *groups) {
      for (Episode& episode : group.episodes) {
        episode.status = EpisodeStatus::kScored;
        episode.outcome = Outcome::Scored(signal ? episode.index_in_group % 2 : 1, "");
      }
    }
  }

  int64_t signal_every = 1;  // calls

 private:
  int64_t calls_ = 0;
};

class FakeTrainer : public Trainer, public WeightReceiver {
 public:
  explicit FakeTrainer(Story* story) : story_(*story) {}
  absl::StatusOr<TrainStats> Train(std::vector<TrainingBatch>) override {
    story_.Tell(Of("train", ++steps_));
    if (steps_ == fails_at) return Failed("made up");
    return TrainStats{};
  }
  absl::StatusOr<TrainStats> Measure(const TrainingBatch&) override { return TrainStats{}; }
  absl::Status ScoreReference(TrainingBatch*) override { return absl::OkStatus(); }
  absl::Status Save(const std::string&) override {
    story_.Tell(Of("save", steps_));
    return absl::OkStatus();
  }
  absl::Status Load(const std::string&) override { return absl::OkStatus(); }
  PolicyVersion version() const override { return static_cast<PolicyVersion>(steps_); }
  int64_t optimizer_steps() const override { return steps_; }
  absl::Status BeginUpdate(PolicyVersion) override { return absl::OkStatus(); }
  absl::Status Commit(PolicyVersion) override { return absl::OkStatus(); }

  int64_t fails_at = -1;

 private:
  Story& story_;
  int64_t steps_ = 0;
};

// A step's metrics, and whether its samples were there by then.
class FakeSink : public run::MetricSink {
 public:
  FakeSink(Story* story, std::string run) : story_(*story), paths_(std::move(run)) {}
  absl::Status Write(const run::StepMetrics& metrics) override {
    const bool there = fs::exists(paths_.samples_of(metrics.step()));
    story_.Tell(Of(there ? "metrics" : "metrics without samples", metrics.step()));
    if (metrics.Find("perf/write_s")) story_.Tell(Of("write_s", metrics.step()));
    return absl::OkStatus();
  }
  absl::Status Flush() override { return absl::OkStatus(); }

 private:
  Story& story_;
  const run::RunPaths paths_;
};

class LoopTest : public ::testing::Test {
 protected:
  LoopTest() {
    experiment_.run.steps = 3;
    experiment_.checkpoint.every = 0;
    experiment_.rollout.prompts_per_step = 2;
    experiment_.rollout.samples_per_prompt = 2;
    directory_ = *run::RunDirectory::Create(folder_ / "run", "a: 1\n");
    journal_ = *run::Journal::Open(directory_->paths().events());
    sink_ = std::make_unique<FakeSink>(&story_, directory_->paths().root);
    parts_.dataset = &dataset_;
    parts_.runner = &runner_;
    parts_.grader = &grader_;
    parts_.advantages = [](std::vector<EpisodeGroup>* groups) {
      for (EpisodeGroup& group : *groups) {
        for (Episode& episode : group.episodes) episode.advantage = episode.outcome.score - 0.5;
      }
    };
    parts_.trainer = &trainer_;
    parts_.receiver = &trainer_;
    parts_.evals = &evals_;
    parts_.directory = directory_.get();
    parts_.journal = journal_.get();
    parts_.sinks = {sink_.get()};
    parts_.note = [](std::string_view) {};
    parts_.pieces = run::TestPieces;
  }
  // Calls `before` with the number of the rollout whose samples are about to be made.
  void WhenWriting(const std::function<void(int64_t)>& before) {
    parts_.pieces = [before, told = int64_t{0}](std::span<const int32_t> ids) mutable {
      if (ids.size() == 2 && ids[1] != std::exchange(told, ids[1])) before(ids[1]);
      return run::TestPieces(ids);
    };
  }
  absl::StatusOr<LoopEnd> Run() { return RunLoop(experiment_, {}, parts_); }
  bool HasSamples(int64_t step) { return fs::exists(directory_->paths().samples_of(step)); }

  TempFolder folder_;
  Story story_;
  configs::Experiment experiment_;
  data::MemoryDataset dataset_{std::vector<Prompt>(5)};
  FakeRunner runner_{&story_};
  FakeGrader grader_;
  FakeTrainer trainer_{&story_};
  std::vector<EvalTask> evals_;
  std::unique_ptr<run::RunDirectory> directory_;
  std::unique_ptr<run::Journal> journal_;
  std::unique_ptr<FakeSink> sink_;
  LoopParts parts_;
};

TEST_F(LoopTest, ASlowWriteGoesOnIntoTheNextRolloutAndEndsBeforeTheNextTraining) {
  bool overlapped = true;
  WhenWriting([&](int64_t step) {
    if (step < 3) overlapped &= story_.Await(Of("rollout", step + 1));
  });
  const absl::StatusOr<LoopEnd> end = Run();
  ASSERT_TRUE(end.ok()) << StatusText(end.status());
  EXPECT_EQ(*end, LoopEnd::kDone);
  EXPECT_TRUE(overlapped);
  for (int64_t step = 1; step <= 3; ++step) {
    EXPECT_TRUE(HasSamples(step));
    EXPECT_GE(story_.When(Of("metrics", step)), 0) << "samples first";
    EXPECT_GE(story_.When(Of("write_s", step)), 0);
    if (step < 3) {
      EXPECT_GT(story_.When(Of("metrics", step)), story_.When(Of("rollout", step + 1)));
      EXPECT_LT(story_.When(Of("metrics", step)), story_.When(Of("train", step + 1)))
          << "one step at a time is being written";
    }
  }
  EXPECT_LT(story_.When("metrics 3"), story_.When("save 3"));
}

TEST_F(LoopTest, ACheckpointWaitsForSamplesAndMetrics) {
  experiment_.checkpoint.every = 1;
  WhenWriting([&](int64_t) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
  ASSERT_TRUE(Run().ok());
  for (int64_t step = 1; step <= 3; ++step) {
    EXPECT_GE(story_.When(Of("metrics", step)), 0);
    EXPECT_LT(story_.When(Of("metrics", step)), story_.When(Of("save", step)));
  }
}

TEST_F(LoopTest, AnInterruptedRunHasWrittenItsLastStep) {
  std::atomic<bool> interrupted{true};
  parts_.interrupted = &interrupted;
  WhenWriting([&](int64_t) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
  const absl::StatusOr<LoopEnd> end = Run();
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(*end, LoopEnd::kInterrupted);
  EXPECT_TRUE(HasSamples(1));
  EXPECT_LT(story_.When("metrics 1"), story_.When("save 1"));
  EXPECT_EQ(story_.When("rollout 2"), -1);
}

TEST_F(LoopTest, AWriteThatFailsEndsTheRunWithItsErrorBeforeAnythingMoreIsLearnt) {
  fs::remove_all(directory_->paths().samples());
  const absl::StatusOr<LoopEnd> end = Run();
  EXPECT_THAT(StatusText(end.status()), HasSubstr("cannot create"));
  EXPECT_THAT(StatusText(end.status()), HasSubstr("samples/step-1.jsonl.zst"));
  EXPECT_EQ(story_.When("train 2"), -1);
  EXPECT_EQ(story_.When("metrics without samples 1"), -1) << "no line of what is not there";
  EXPECT_EQ(story_.When("save 1"), -1);
}

TEST_F(LoopTest, AStepThatFailsLeavesTheStepBeforeWritten) {
  trainer_.fails_at = 2;
  WhenWriting([&](int64_t) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
  EXPECT_THAT(StatusText(Run().status()), HasSubstr("made up"));
  EXPECT_TRUE(HasSamples(1));
  EXPECT_GE(story_.When("metrics 1"), 0);
  EXPECT_EQ(story_.When("metrics 2"), -1);
}

TEST_F(LoopTest, WithoutSamplesMetricsAreWrittenAllTheSame) {
  experiment_.output.samples = false;
  ASSERT_TRUE(Run().ok());
  EXPECT_GE(story_.When("metrics without samples 3"), 0);
  EXPECT_EQ(story_.When("write_s 3"), -1);
}

// As many as the plan of memory counts: no signal before the last refill, and a writer that has
// written nothing of a step before all of the next one's are there.
TEST_F(LoopTest, GroupsAliveAtOnceReachTheirBoundAndNoMore) {
  experiment_.algorithm.dynamic_sampling = true;
  experiment_.algorithm.max_refills = 3;
  const int64_t rounds = MostRounds(experiment_.algorithm);
  EXPECT_EQ(rounds, 4);
  grader_.signal_every = rounds;
  bool overlapped = true;
  WhenWriting([&](int64_t rollout) {
    if (rollout % rounds == 1 && rollout < 2 * rounds) {
      overlapped &= story_.Await(Of("sampled", rollout - 1 + 2 * rounds));
    }
  });
  ASSERT_TRUE(Run().ok());
  EXPECT_TRUE(overlapped);
  EXPECT_EQ(story_.When(Of("sampled", 3 * rounds + 1)), -1);
  EXPECT_EQ(MostGroups(experiment_), rounds * 2);
  EXPECT_EQ(runner_.groups().most(), kStepsAlive * MostGroups(experiment_));
}

TEST_F(LoopTest, OneRefillTooManyIsAnError) {
  experiment_.algorithm.dynamic_sampling = true;
  experiment_.algorithm.max_refills = 3;
  grader_.signal_every = MostRounds(experiment_.algorithm) + 1;
  EXPECT_THAT(StatusText(Run().status()), HasSubstr("after 3 refills only 0 of 2 groups"));
  EXPECT_EQ(runner_.groups().most(), MostGroups(experiment_));
}

// A file a step and evaluation, equal to the groups written at once, however many pieces came.
TEST_F(LoopTest, EvaluationsWriteTheirSamples) {
  constexpr int64_t kRows = 1100;  // more than are evaluated at once
  EvalTask task;
  task.name = "odd name/1";
  task.samples = 2;
  std::vector<Prompt> rows(kRows);
  for (int64_t i = 0; i < kRows; ++i) rows[i].id = std::to_string(i);
  task.dataset = std::make_unique<data::MemoryDataset>(rows);
  task.runner = std::make_unique<FakeRunner>(&story_);
  task.grader = &grader_;
  evals_.push_back(std::move(task));
  ASSERT_TRUE(Run().ok());
  const std::string root = directory_->paths().root;
  EXPECT_THAT(run::SampleSteps(root, "odd name/1").value(), ::testing::ElementsAre(0, 3));
  EXPECT_THAT(run::SampleSteps(root).value(), ::testing::ElementsAre(1, 2, 3));
  EXPECT_TRUE(fs::exists(root + "/samples/step-3.eval-odd%20name%2F1.jsonl.zst"));
  const auto read = run::ReadSamples(directory_->paths().eval_samples_of(3, "odd name/1"));
  ASSERT_TRUE(read.ok()) << StatusText(read.status());
  EXPECT_EQ(read->step, 3);
  ASSERT_EQ(read->groups.size(), static_cast<size_t>(kRows));
  for (int64_t i = 0; i < kRows; ++i) {
    EXPECT_EQ(read->groups[i].prompt.id, std::to_string(i));
    EXPECT_EQ(read->groups[i].episodes.size(), 2u);
  }
  EXPECT_EQ(read->groups[0].episodes[1].outcome.score, 1);
  // A resumed run begins without what came after its checkpoint.
  ASSERT_TRUE(directory_->TruncateAfter(2).ok());
  EXPECT_THAT(run::SampleSteps(root, "odd name/1").value(), ::testing::ElementsAre(0));
}

}  // namespace
}  // namespace orrery
