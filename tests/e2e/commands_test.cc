// The commands that read a run, on one small run: exit code 0, and what they print.
#include "tests/e2e/e2e_testing.h"

namespace orrery::e2e {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

class Commands : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    const Ended ended = Orrery({"run", SmallExperiment(*folder_, "a", 4), "--set",
                                "checkpoint.keep=0", "--set", "checkpoint.every=1"});
    ASSERT_EQ(ended.code, 0) << ended;
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static std::string Output(const Words& arguments) {
    const Ended ended = Orrery(arguments);
    EXPECT_EQ(ended.code, 0) << ::testing::PrintToString(arguments) << ended;
    EXPECT_EQ(ended.out.find('\033'), std::string::npos) << "control codes outside of a terminal";
    return ended.out;
  }
  static std::string run() { return *folder_ / "a"; }
  static std::string experiment() { return *folder_ / "a.yaml"; }

  static TempFolder* folder_;
};
TempFolder* Commands::folder_ = nullptr;

TEST_F(Commands, Inspect) {
  const std::string all = Output({"inspect", run(), "--step", "2", "--limit", "0"});
  EXPECT_THAT(all, AllOf(HasSubstr("####"), HasSubstr("How many")));
  const std::string right =
      Output({"inspect", run(), "--step", "2", "--min-reward", "1", "--limit", "0"});
  const std::string wrong =
      Output({"inspect", run(), "--step", "2", "--max-reward", "0", "--limit", "0"});
  EXPECT_LT(right.size(), all.size());
  EXPECT_LT(wrong.size(), all.size());
  EXPECT_EQ(Orrery({"inspect", run(), "--step", "99"}).code, 2);
  EXPECT_EQ(Orrery({"inspect", run(), "--finish", "sideways"}).code, 2);
}

TEST_F(Commands, Plot) {
  EXPECT_THAT(Output({"plot", run(), run()}), HasSubstr("rollout/raw_reward"));
  const std::string one = Output({"plot", run(), "--metric", "train/grad_norm"});
  EXPECT_THAT(one, AllOf(HasSubstr("train/grad_norm"), Not(HasSubstr("rollout/raw_reward"))));
  const std::string page = *folder_ / "page.html";
  Output({"plot", run(), "--html", page});
  EXPECT_THAT(Get(page), HasSubstr("</html>"));
  const std::string picture = *folder_ / "picture.svg";
  Output({"plot", run(), run(), "--metric", "train/grad_norm", "--svg", picture});
  EXPECT_THAT(Get(picture), AllOf(HasSubstr(">train/grad_norm</text>"), HasSubstr("</svg>")));
  EXPECT_EQ(Orrery({"plot", run(), "--svg", picture, "--html", page}).code, 2);
  const Ended unknown = Orrery({"plot", run(), "--metric", "train/grad_nrm"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("train/grad_norm"));
}

TEST_F(Commands, ScoreWithTheSameRewardChangesNothing) {
  const std::string text = Output({"score", run(), experiment()});
  EXPECT_EQ(Lines(text).size(), 4u);
  for (const std::string& line : Lines(text)) {
    EXPECT_THAT(line, AllOf(HasSubstr("scored 16"), HasSubstr("changed 0")));
  }
  const std::string recorded =
      Output({"score", run() + "/samples/step-1.jsonl.zst", experiment(), "--set",
              "rewards=[{name: regex, parameters: {pattern: nowhere}}]"});
  EXPECT_THAT(recorded, AllOf(HasSubstr("mean 0.0000"), Not(HasSubstr("changed 0"))));
}

TEST_F(Commands, ScoreSaysWhereThereAreNoSamples) {
  TempFolder folder;
  const auto error = [&](const std::string& path) {
    const Ended ended = Orrery({"score", path, experiment()});
    EXPECT_EQ(ended.code, 2) << ended;
    return ended.err;
  };
  EXPECT_THAT(
      error(folder.path()),
      HasSubstr(folder.path() + " holds no run; name the folder of one, or a samples file"));
  EXPECT_THAT(error(folder / "absent"), HasSubstr(folder / "absent"));
  fs::copy(run() + "/experiment.yaml", folder.path());
  EXPECT_THAT(error(folder.path()), HasSubstr("the run has no samples"));
  fs::create_directory(folder / "samples");
  EXPECT_THAT(error(folder.path()), HasSubstr("the run has no samples"));
}

TEST(TopLogprobs, AreWrittenAndShownAndChangeNothing) {
  TempFolder folder;
  ASSERT_EQ(Orrery({"run", SmallExperiment(folder, "plain", 2)}).code, 0);
  const Ended ended =
      Orrery({"run", SmallExperiment(folder, "top", 2), "--set", "rollout.top_logprobs=3"});
  ASSERT_EQ(ended.code, 0) << ended;
  EXPECT_EQ(Curve(folder / "plain"), Curve(folder / "top"));
  const Ended shown = Orrery({"inspect", folder / "top", "--top-logprobs", "--limit", "1"});
  EXPECT_EQ(shown.code, 0) << shown;
  // 'text' log-prob, then three alternatives.
  const std::regex line(R"(  '.*' -?[0-9.]+ *(  '.*' -?[0-9.]+){3})");
  const std::vector<std::string> lines = Lines(shown.out);
  EXPECT_GT(std::count_if(lines.begin(), lines.end(),
                          [&](const std::string& l) { return std::regex_match(l, line); }),
            5)
      << shown.out;
  EXPECT_THAT(Orrery({"replay", folder / "top", "--step", "1"}).out, HasSubstr("bitwise equal"));
  EXPECT_EQ(
      Orrery({"run", SmallExperiment(folder, "much", 2), "--set", "rollout.top_logprobs=21"}).code,
      2);
}

TEST_F(Commands, ReplayIsBitwiseEqual) {
  for (const char* step : {"1", "3"}) {
    EXPECT_THAT(Output({"replay", run(), "--step", step}), HasSubstr("bitwise equal"));
    EXPECT_THAT(Output({"replay", run(), "--step", step, "--rollout"}), HasSubstr("bitwise equal"));
  }
  EXPECT_EQ(Orrery({"replay", run(), "--step", "77"}).code, 2);
  EXPECT_EQ(Orrery({"replay", run(), "--step", "0"}).code, 2);
}

// What the checks above rest on: replay sees a recorded number that was changed in its last digit.
TEST_F(Commands, ReplaySeesAChangedMetric) {
  const std::string copy = *folder_ / "copy";
  fs::copy(run(), copy, fs::copy_options::recursive);
  const std::string path = copy + "/metrics.jsonl";
  std::string text = Get(path);
  const size_t at = text.find("\"train/grad_norm\":", text.find("\"step\":2")) + 18;
  const size_t end = text.find(',', at);
  text[end - 1] = text[end - 1] == '1' ? '3' : '1';
  Put(path, text);
  const Ended ended = Orrery({"replay", copy, "--step", "2"});
  EXPECT_EQ(ended.code, 1) << ended;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("train/grad_norm"), HasSubstr("NOT equal")));
}

TEST_F(Commands, Eval) {
  const Words words = {"eval", experiment(), "--checkpoint", run() + "/checkpoints/step-4"};
  const Ended of_run = Orrery({"eval", experiment(), "--checkpoint", run()});
  EXPECT_EQ(of_run.code, 2) << of_run;
  EXPECT_THAT(of_run.err, HasSubstr("is a run; name one of its checkpoints, such as " + words[3]));
  const std::string text = Output(words);
  EXPECT_THAT(text, AllOf(HasSubstr("greedy"), HasSubstr("accuracy"), HasSubstr("prompts 8")));
  EXPECT_EQ(text, Output(words));
}

// The run's own file of its last step, and the one that eval writes of the same weights: the same
// 8 greedy responses.
TEST_F(Commands, SamplesOfEvaluationsCanBeInspected) {
  const std::string of_run = Output({"inspect", run(), "--eval", "greedy", "--limit", "0"});
  EXPECT_THAT(of_run, AllOf(HasSubstr("step 4"), HasSubstr("8 of 8 samples match")));
  const std::string folder = *folder_ / "eval";
  Output(
      {"eval", experiment(), "--checkpoint", run() + "/checkpoints/step-4", "--samples", folder});
  const std::string of_eval = Output({"inspect", folder + "/greedy.jsonl.zst", "--limit", "0"});
  EXPECT_EQ(std::regex_replace(of_run, std::regex("step 4 "), "step 0 "), of_eval);
  EXPECT_THAT(Output({"inspect", run(), "--eval", "greedy", "--step", "0"}), HasSubstr("step 0"));
  const Ended unknown = Orrery({"inspect", run(), "--eval", "greedily"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("greedily"));
}

TEST_F(Commands, Config) {
  const std::string explained = Output({"config", "--explain"});
  for (const char* key : {"run:", "learning_rate:", "samples_per_prompt:", "checkpoint:"}) {
    EXPECT_THAT(explained, HasSubstr(key));
  }
  for (const Words& more : {Words{experiment()}, Words{"--set", "run.seed=1"}}) {
    Words words = {"config", "--explain"};
    words.insert(words.end(), more.begin(), more.end());
    const Ended refused = Orrery(words);
    EXPECT_EQ(refused.code, 2) << refused;
    EXPECT_EQ(refused.out, "");
    EXPECT_THAT(refused.err, HasSubstr("of no file: leave out " + more[0] + ", or --explain"));
  }
  const std::string resolved = Output({"config", experiment(), "--set", "run.seed=123"});
  EXPECT_THAT(resolved, HasSubstr("seed: 123"));
  Put(*folder_ / "again.yaml", resolved);
  EXPECT_EQ(Output({"config", *folder_ / "again.yaml"}), resolved);
}

TEST_F(Commands, Tokenize) {
  const std::string text = Output({"tokenize", StartModel(), "Amy has 26 books.\n"});
  std::string ids;
  for (const std::string& line : Lines(text)) ids += std::to_string(std::atoi(line.c_str())) + " ";
  EXPECT_EQ(Output({"tokenize", StartModel(), ids, "--decode"}), "Amy has 26 books.\n\n");
}

TEST_F(Commands, TokenizeReadsStandardInputOnlyWhereThereIsNoText) {
  const auto with_input = [](const Words& more) {
    Words words = {"sh", "-c", "echo Amy | \"$@\"", "sh", ORRERY_BINARY, "tokenize", StartModel()};
    words.insert(words.end(), more.begin(), more.end());
    const Ended ended = Process(words).Wait();
    EXPECT_EQ(ended.code, 0) << ended;
    return ended.out;
  };
  EXPECT_EQ(with_input({}), Output({"tokenize", StartModel(), "Amy\n"}));
  EXPECT_NE(with_input({}), "");
  EXPECT_EQ(with_input({""}), "");
  EXPECT_EQ(with_input({"", "--decode"}), "\n");
}

TEST_F(Commands, HelpEverywhere) {
  for (const char* command : {"run", "resume", "sft", "eval", "score", "plot", "inspect", "replay",
                              "tokenize", "import", "doctor", "config"}) {
    EXPECT_THAT(Output({command, "--help"}),
                HasSubstr(command == std::string("doctor") ? "has" : ""));
  }
  EXPECT_THAT(Output({"--help"}), HasSubstr("replay"));
  EXPECT_THAT(Output({"--help"}), HasSubstr("Usage: orrery [OPTIONS] SUBCOMMAND\n"));
  EXPECT_THAT(Output({"plan", "--help"}), HasSubstr("Usage: orrery plan [OPTIONS] FILE\n"));
  EXPECT_FALSE(Output({"doctor"}).empty());
}

// The supervised trainer, killed and resumed, is the same as one that went through.
TEST_F(Commands, SftResumesBitForBit) {
  const Words shared = {"--set", "sft.steps=8",         "--set", "sft.batch_size=8",
                        "--set", "story_math.noise=0.5"};
  const auto sft = [&](const char* name) {
    Words words = {"sft", SmallExperiment(*folder_, name, 4)};
    words.insert(words.end(), shared.begin(), shared.end());
    return words;
  };
  const Ended whole = Orrery(sft("sft_whole"));
  ASSERT_EQ(whole.code, 0) << whole;
  const std::string cut = *folder_ / "sft_cut";
  Process process(OrreryWords(sft("sft_cut")));
  ASSERT_TRUE(Await([&] { return StepsDone(cut) > 2 || !process.Runs(); }));
  process.Signal(SIGKILL);
  process.Wait();
  const Ended rest = Orrery({"resume", cut});
  ASSERT_EQ(rest.code, 0) << rest;
  EXPECT_EQ(Curve(*folder_ / "sft_whole"), Curve(cut));
  ExpectSameFiles(*folder_ / "sft_whole/checkpoints/step-8", cut + "/checkpoints/step-8");
}

}  // namespace
}  // namespace orrery::e2e
