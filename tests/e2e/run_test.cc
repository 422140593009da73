// The built binary from YAML to a run directory: what it writes, and that it writes the same again.
#include "tests/e2e/e2e_testing.h"

namespace orrery::e2e {
namespace {

using ::testing::HasSubstr;

const char* const kNames[] = {"step",
                              "rollout/raw_reward",
                              "rollout/reward_std",
                              "rollout/response_len/mean",
                              "rollout/truncated_ratio",
                              "rollout/zero_std_group_ratio",
                              "rollout/entropy",
                              "train/loss",
                              "train/grad_norm",
                              "train/lr",
                              "train/ppo_kl",
                              "train/pg_clipfrac",
                              "train/train_rollout_kl",
                              "train/train_rollout_logprob_abs_diff/mean",
                              "train/train_rollout_logprob_abs_diff/max",
                              "perf/step_s",
                              "perf/rollout_s",
                              "perf/train_s",
                              "perf/sync_s",
                              "perf/reward_s",
                              "perf/eval_s",
                              "perf/other_s",
                              "perf/write_s",
                              "perf/rollout_tokens_per_s",
                              "perf/train_tokens_per_s",
                              "perf/rss_bytes",
                              "perf/preemptions",
                              "perf/swaps",
                              "perf/swapped_bytes",
                              "rollout/samples/submitted",
                              "rollout/samples/scored",
                              "rollout/samples/failed",
                              "rollout/samples/filtered",
                              "rollout/samples/aborted"};

// A line of a step from 1 on: all names, counts that close, sampler and trainer equal.
void CheckStepLine(const std::string& line, double submitted) {
  const auto m = Metrics(line);
  for (const char* name : kNames) EXPECT_TRUE(m.contains(name)) << name << " is not in " << line;
  if (::testing::Test::HasFailure()) return;
  EXPECT_EQ(m.at("train/train_rollout_logprob_abs_diff/max"), 0) << line;
  EXPECT_EQ(m.at("rollout/samples/submitted"), submitted);
  EXPECT_EQ(m.at("rollout/samples/scored") + m.at("rollout/samples/failed") +
                m.at("rollout/samples/filtered") + m.at("rollout/samples/aborted"),
            submitted);
  EXPECT_GT(m.at("perf/step_s"), 0);
  EXPECT_GT(m.at("perf/write_s"), 0);
}

void RunsAndClosesItsBooks(const std::string& dtype) {
  TempFolder folder;
  const Ended ended =
      Orrery({"run", SmallExperiment(folder, "a", 6), "--set", "model.dtype=" + dtype});
  ASSERT_EQ(ended.code, 0) << ended;
  const std::string run = folder / "a";
  const std::vector<std::string> lines = Lines(Get(run + "/metrics.jsonl"));
  ASSERT_EQ(lines.size(), 7u) << "an evaluation before the first step, and 6 steps";
  double trained = 0;
  for (size_t step = 0; step < lines.size(); ++step) {
    SCOPED_TRACE(lines[step]);
    EXPECT_EQ(Metrics(lines[step])["step"], static_cast<double>(step));
    EXPECT_EQ(Metrics(lines[step]).contains("eval/greedy/accuracy"), step % 3 == 0);
    if (step > 0) CheckStepLine(lines[step], 16);
    trained += Metrics(lines[step])["train/trained_tokens"];
  }
  EXPECT_GT(trained, 0) << "no step trained anything: every check above was empty";
  EXPECT_EQ(Files(run + "/samples").size(), 9u) << "6 steps, and 3 evaluations";
  EXPECT_FALSE(Files(run + "/tb").empty());
  EXPECT_THAT(Get(run + "/report.html"), HasSubstr("</html>"));
  EXPECT_TRUE(fs::exists(run + "/checkpoints/step-6/model.safetensors"));
  EXPECT_THAT(ended.out, HasSubstr("step 6/6"));
  EXPECT_EQ(ended.out.find('\033'), std::string::npos) << "control codes outside of a terminal";
}

TEST(Run, WritesEveryMetricAndClosesItsCounts) { RunsAndClosesItsBooks("float32"); }
TEST(Run, WritesEveryMetricAndClosesItsCountsInBFloat16) { RunsAndClosesItsBooks("bfloat16"); }

TEST(Run, RepeatsItselfBitForBit) {
  TempFolder folder;
  for (const char* name : {"a", "b"}) {
    const Ended ended = Orrery({"run", SmallExperiment(folder, name, 8)});
    ASSERT_EQ(ended.code, 0) << ended;
  }
  ExpectSameRun(folder / "a", folder / "b", 8);
}

TEST(Run, DoesNotDependOnTheNumberOfThreads) {
  TempFolder folder;
  for (const char* threads : {"1", "2", "3"}) {
    const Ended ended = Orrery({"run", SmallExperiment(folder, threads, 5), "--set",
                                std::string("run.threads=") + threads});
    ASSERT_EQ(ended.code, 0) << ended;
  }
  for (const char* threads : {"2", "3"}) {
    EXPECT_EQ(Curve(folder / "1"), Curve(folder / threads));
    ExpectSameFiles(folder / "1/samples", folder / (std::string(threads) + "/samples"));
    EXPECT_TRUE(Get(folder / "1/checkpoints/step-5/optimizer.safetensors") ==
                Get(folder / (std::string(threads) + "/checkpoints/step-5/optimizer.safetensors")));
  }
}

// What the comparisons above rest on: another seed is another curve.
TEST(Run, AnotherSeedIsAnotherRun) {
  TempFolder folder;
  ASSERT_EQ(Orrery({"run", SmallExperiment(folder, "a", 3)}).code, 0);
  ASSERT_EQ(Orrery({"run", SmallExperiment(folder, "b", 3), "--set", "run.seed=8"}).code, 0);
  EXPECT_NE(Curve(folder / "a"), Curve(folder / "b"));
}

TEST(Run, TheResolvedExperimentRunsAgain) {
  TempFolder folder;
  ASSERT_EQ(Orrery({"run", SmallExperiment(folder, "a", 3), "--set", "optimizer.beta2=0.9"}).code,
            0);
  const Ended again = Orrery({"run", folder / "a/experiment.yaml", "--set", "run.name=b"});
  ASSERT_EQ(again.code, 0) << again;
  ExpectSameRun(folder / "a", folder / "b", 3);
}

// One row a phase, named; a stretch of each in every step, none overlapping another in its row.
TEST(Run, TraceShowsThePhasesOfEveryStep) {
  TempFolder folder;
  const Ended ended =
      Orrery({"run", SmallExperiment(folder, "a", 4), "--set", "output.trace=true"});
  ASSERT_EQ(ended.code, 0) << ended;
  EXPECT_THAT(ended.out, HasSubstr("a/trace.json"));
  const std::string trace = Get(folder / "a/trace.json");
  EXPECT_EQ(trace.front(), '[');
  EXPECT_EQ(trace.back(), ']');
  const std::regex stretch(
      "\\{\"ph\":\"X\",\"name\":\"([a-z]+)\",\"cat\":\"step\",\"ts\":([0-9]+),\"dur\":([0-9]+),"
      "\"pid\":[0-9]+,\"tid\":([0-9]+),\"args\":\\{\"step\":([0-9]+)\\}\\}");
  std::map<std::string, std::map<int, int64_t>> seen;  // phase -> step -> microseconds
  std::map<std::string, int64_t> end_of_row;
  for (std::sregex_iterator it(trace.begin(), trace.end(), stretch), end; it != end; ++it) {
    const std::string phase = (*it)[1];
    const int64_t begin_us = std::stoll((*it)[2]), duration_us = std::stoll((*it)[3]);
    EXPECT_GE(begin_us, end_of_row[(*it)[4]]) << phase;
    end_of_row[(*it)[4]] = begin_us + duration_us;
    seen[phase][std::stoi((*it)[5])] += duration_us;
    EXPECT_THAT(trace, HasSubstr("\"tid\":" + (*it)[4].str() + ",\"args\":{\"name\":\"" + phase));
  }
  const std::vector<std::string> lines = Lines(Get(folder / "a/metrics.jsonl"));
  for (int step = 1; step <= 4; ++step) {
    for (const char* phase : {"generate", "reward", "train", "sync"}) {
      ASSERT_TRUE(seen[phase].contains(step)) << phase << " of step " << step;
    }
    // As the metrics tell it, but for the clocks' reading.
    const double generate_s = Metrics(lines[static_cast<size_t>(step)])["perf/rollout_s"];
    EXPECT_NEAR(static_cast<double>(seen["generate"][step]) * 1e-6, generate_s, 0.02);
  }
  EXPECT_TRUE(seen["save"].contains(2));
  EXPECT_TRUE(seen["eval"].contains(3));
  ASSERT_EQ(Orrery({"run", SmallExperiment(folder, "b", 1)}).code, 0);
  EXPECT_FALSE(fs::exists(folder / "b/trace.json")) << "only where it is asked for";
}

TEST(Run, ARewardProgramIsFoundBesideTheExperiment) {
  TempFolder folder;
  Put(folder / "grade.py",
      "import json, sys\n"
      "for line in sys.stdin:\n"
      "    print(json.dumps({'score': len(json.loads(line)['response']) % 2}), flush=True)\n");
  const Ended ended = Orrery({"run", SmallExperiment(folder, "a", 2), "--set",
                              "rewards=[{name: program, parameters: {command: absent_for_now}}]"});
  EXPECT_EQ(ended.code, 2) << ended;
  std::string text = Get(folder / "a.yaml");
  const std::string grader = "{name: gsm8k_strict}";
  text.replace(text.find(grader), grader.size(),
               "{name: program, parameters: {command: python3 grade.py}}");
  Put(folder / "a.yaml", text);
  const Ended found = Orrery({"run", folder / "a.yaml"});
  ASSERT_EQ(found.code, 0) << found;
  EXPECT_EQ(Metrics(Lines(Get(folder / "a/metrics.jsonl"))[1])["rollout/samples/failed"], 0);
}

}  // namespace
}  // namespace orrery::e2e
