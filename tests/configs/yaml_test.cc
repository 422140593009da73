#include "configs/yaml.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <set>

#include "configs/fields.h"
#include "configs/paths.h"

namespace orrery::configs {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string ErrorOf(std::string_view text, const std::vector<std::string>& overrides = {}) {
  const auto experiment = ParseExperiment(text, "f.yaml", overrides);
  return experiment.ok() ? "no error" : std::string(experiment.status().message());
}

Experiment Read(std::string_view text, const std::vector<std::string>& overrides = {}) {
  const auto experiment = ParseExperiment(text, "f.yaml", overrides);
  EXPECT_TRUE(experiment.ok()) << experiment.status();
  return experiment.value_or(Experiment{});
}

TEST(ParseTest, ReadsEveryTypeAndKeepsTheRest) {
  const Experiment experiment = Read(R"(
run: {name: a-1, steps: 7}
data:
  source: hf:openai/gsm8k
  chat_variables: {enable_thinking: false, n: 010}
sampling:
  temperature: 1
  stop: ["\n\n", end]
  stop_token_ids: [1, 2]
optimizer: {learning_rate: 1e-6, epsilon: +1.5E-8}
rewards:
  - name: gsm8k_strict
  - {name: regex, weight: -0.5, parameters: {pattern: "a: b"}}
)");
  EXPECT_EQ(experiment.run.name, "a-1");
  EXPECT_EQ(experiment.run.steps, 7);
  EXPECT_EQ(experiment.data.chat_variables.at("enable_thinking"), "false");
  EXPECT_EQ(experiment.data.chat_variables.at("n"), "010");
  EXPECT_EQ(experiment.sampling.stop, (std::vector<std::string>{"\n\n", "end"}));
  EXPECT_EQ(experiment.sampling.stop_token_ids, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(experiment.optimizer.learning_rate, 1e-6);
  EXPECT_EQ(experiment.optimizer.epsilon, 1.5e-8);
  ASSERT_EQ(experiment.rewards.size(), 2u);
  EXPECT_EQ(experiment.rewards[1].weight, -0.5);
  EXPECT_EQ(experiment.rewards[1].parameters.at("pattern"), "a: b");
  EXPECT_EQ(experiment.rollout, RolloutConfig{});
}

TEST(ParseTest, PlacesNameTheLineOfEverySetting) {
  const Experiment experiment =
      Read("run:\n  steps: 7\nrewards:\n  - name: math\n", {"sampling.top_p=0.5"});
  EXPECT_EQ(experiment.Where("run.steps"), "f.yaml:2:10: run.steps");
  EXPECT_EQ(experiment.Where("rewards.0.name"), "f.yaml:4:11: rewards.0.name");
  EXPECT_EQ(experiment.Where("sampling.top_p"), "--set sampling.top_p=0.5: sampling.top_p");
  EXPECT_EQ(experiment.Where("run.seed"), "run.seed");
}

TEST(ParseTest, AnchorsAndAliasesAreCopies) {
  const Experiment experiment = Read(
      "data: &set {source: a.jsonl, limit: 3}\n"
      "evals: [{name: x, data: *set}]\n",
      {"evals.0.data.limit=5"});
  EXPECT_EQ(experiment.data.limit, 3);
  EXPECT_EQ(experiment.evals[0].data.source, "a.jsonl");
  EXPECT_EQ(experiment.evals[0].data.limit, 5);
}

TEST(ParseTest, EmptySectionsAndByteOrderMarkAreFine) {
  EXPECT_EQ(Read("\xef\xbb\xbfrun:\n#  steps: 1\nevals:\n"), Experiment{});
  EXPECT_EQ(Read("run: {steps: 5}\r\nmodel:\r\n  dtype: bfloat16\r\n").model.dtype, "bfloat16");
}

TEST(ParseTest, AllMistakesOfAFileAreReportedInOrder) {
  const std::string error =
      ErrorOf("run:\n  stepz: 3\n  seed: -1\nsampling:\n  top_p: 1.5\nalgorithm:\n  kl: k4\n");
  EXPECT_EQ(error,
            "f.yaml:2:3: run.stepz: there is no such key; did you mean run.steps?\n"
            "f.yaml:3:9: run.seed: -1 should be at least 0\n"
            "f.yaml:5:10: sampling.top_p: 1.5 should be more than 0 and at most 1\n"
            "f.yaml:7:7: algorithm.kl: 'k4' should be one of: none, k1, k2, k3, low_var_kl; did "
            "you mean 'k1'?");
}

struct Mistake {
  const char* text;
  const char* error;  // a part of it, beginning with the place
};

TEST(ParseTest, EveryMistakeNamesPlaceValueAndFix) {
  const Mistake mistakes[] = {
      // Keys.
      {"runn: {}", "f.yaml:1:1: runn: there is no such key; did you mean run?"},
      {"run: {clip_low: 1}",
       "f.yaml:1:7: run.clip_low: there is no such key; did you mean "
       "algorithm.clip_low?"},
      {"run: {qqqqqqqq: 1}", "there are: name, directory, seed, steps, threads"},
      {"run: {steps: 1, steps: 2}",
       "f.yaml:1:17: run.steps: the key is there already "
       "(f.yaml:1:7); remove one"},
      {"run: {}\nrun: {}", "f.yaml:2:1: run: the key is there already (f.yaml:1:1)"},
      {"a: &a {}\nrun:\n  <<: *a", "f.yaml:3:3: run.<<: there is no such key; merge keys"},
      {"? [a]\n: b", "f.yaml:1:3: a key must be a word, this one is a list"},
      {"data: {chat_variables: {a: 1, a: 2}}", "f.yaml:1:31: data.chat_variables.a: the key"},
      // Wrong types.
      {"run: 5", "f.yaml:1:6: run: is '5', should be a map"},
      {"run: [1]", "f.yaml:1:6: run: is a list, should be a map"},
      {"rewards: {name: x}", "f.yaml:1:10: rewards: is a map, should be a list"},
      {"rewards: [math]", "f.yaml:1:11: rewards.0: is 'math', should be a map"},
      {"sampling: {stop: x}", "f.yaml:1:18: sampling.stop: is 'x', should be a list"},
      {"sampling: {stop: [[x]]}", "sampling.stop.0: is a list, should be a text"},
      {"run: {name: [a]}", "f.yaml:1:13: run.name: is a list, should be a text"},
      {"run: {name: }", "f.yaml:1:13: run.name: has no value"},
      {"run: {name: ~}", "run.name: has no value"},
      {"run: {steps: '5'}", "'5' is a text in quotes, should be a whole number; remove the quotes"},
      {"run: !!str 5", "f.yaml:1:6: run: the tag 'tag:yaml.org,2002:str' is not used here"},
      {"run: {steps: !!int 5}", "run.steps: the tag"},
      // Numbers, and what YAML 1.1 makes of them.
      {"run: {steps: 1e3}", "f.yaml:1:14: run.steps: '1e3' should be a whole number; write 1000"},
      {"run: {steps: 10.0}", "'10.0' should be a whole number; write 10"},
      {"run: {steps: 1_000}", "'1_000' should be a whole number; write 1000"},
      {"run: {steps: 0x10}", "'0x10' should be a whole number"},
      {"run: {steps: 010}", "'010' begins with a zero, which some read as octal"},
      {"run: {steps: 1:30}", "'1:30' should be a whole number"},
      {"run: {steps: 10.5}", "'10.5' should be a whole number"},
      {"run: {steps: 99999999999999999999}", "does not fit a 64-bit whole number"},
      {"run: {steps: 2000000000}", "2000000000 should be at least 1 and at most 1000000000"},
      {"run: {steps: 0}", "f.yaml:1:14: run.steps: 0 should be at least 1"},
      {"run: {steps: -}", "should be a whole number"},
      {"optimizer: {beta1: 1.0}", "1.0 should be at least 0 and less than 1"},
      {"optimizer: {beta1: .nan}", "f.yaml:1:20: optimizer.beta1: '.nan' should be a number"},
      {"optimizer: {beta1: nan}", "'nan' should be a number"},
      {"optimizer: {beta1: .inf}", "'.inf' should be a number"},
      {"optimizer: {beta1: 0x1p-3}", "'0x1p-3' should be a number"},
      {"optimizer: {beta1: 1e999}", "'1e999' does not fit"},
      {"optimizer: {epsilon: 1e-999}", "'1e-999' does not fit"},
      {"optimizer: {beta1: 0,9}", "f.yaml:1:22: optimizer.9"},
      {"optimizer: {beta1: .}", "'.' should be a number"},
      {"optimizer: {beta1: 1e}", "'1e' should be a number"},
      {"optimizer: {beta1: 5 %}", "'5 %' should be a number"},
      // Truth values.
      {"data: {shuffle: yes}", "f.yaml:1:17: data.shuffle: 'yes' should be true or false"},
      {"data: {shuffle: off}", "'off' should be true or false"},
      {"data: {shuffle: 1}", "'1' should be true or false"},
      {"data: {shuffle: 'true'}", "is a text in quotes, should be true or false"},
      // Texts.
      {"model: {dtype: float16}",
       "f.yaml:1:16: model.dtype: 'float16' should be one of: float32, "
       "bfloat16; did you mean"},
      {"run: {device: gpu}", "'gpu' should be one of: auto, cpu, cuda; did you mean 'cuda'?"},
      {"run: {device: GPU}", "did you mean 'cuda'?"},
      {"run: {device: cuda:0}", "did you mean 'cuda'?"},
      {"run: {device: cpuu}", "did you mean 'cpu'?"},
      {"rewards: [{name: gsm8k_strikt}]", "f.yaml:1:18: rewards.0.name: 'gsm8k_strikt' should be"},
      {"run: {name: a/b}", "'a/b' should be a name of letters"},
      {"run: {name: ..}", "'..' should be a name"},
      {"run: {name: ''}", "'' should be a name"},
      // Not YAML at all.
      {"", "f.yaml: the file is empty; `orrery config --explain`"},
      {"# nothing\n", "f.yaml: the file is empty"},
      {"---\n", "f.yaml: the file is empty"},
      {"- a", "f.yaml:1:1: the file is a list"},
      {"hello", "f.yaml:1:1: the file is 'hello'"},
      {"run:\n\tsteps: 3\n", "f.yaml:2:1: the line is indented with a tab"},
      {"run:\n  steps: 3\n \tseed: 1\n", "f.yaml:3:2: the line is indented with a tab"},
      {"run: {steps: 3", "not YAML"},
      {"run: [}", "f.yaml:1:7: not YAML"},
      {"run: 'abc", "not YAML"},
      {"a: b: c", "f.yaml:1:5: not YAML"},
      {"run: *nowhere", "f.yaml:1:6: not YAML: the referenced anchor is not defined"},
      {"a: &a [*a]", "f.yaml:1:8: this alias stands inside its own value"},
      {"run: {}\n---\nmodel: {}\n", "f.yaml:3:1: a second document begins here"},
      {"run:\n  name: a\xff\n", "f.yaml:2:10: byte 0xff is not UTF-8"},
      {"run:\n  name: \xed\xa0\x80\n", "f.yaml:2:9: byte 0xed is not UTF-8"},
      {"\xff\xfer\x01", "the file is UTF-16; save it as UTF-8"},
      {"run: {name: a\x04}", "f.yaml:1:14: control character 0x04"},
  };
  for (const Mistake& mistake : mistakes) {
    EXPECT_THAT(ErrorOf(mistake.text), HasSubstr(mistake.error)) << mistake.text;
  }
}

TEST(ParseTest, ZeroByteIsNoEndOfFile) {
  EXPECT_THAT(ErrorOf(std::string_view("run: {}\0\nsteps: 1", 18)),
              HasSubstr("f.yaml:1:8: control character 0x00"));
}

TEST(ParseTest, AliasBombIsRefused) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; ++i) {
    bomb += fmt::format("a{0}: &a{0} [*a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}]\n", i,
                        i - 1);
  }
  EXPECT_THAT(ErrorOf(bomb), AllOf(HasSubstr("f.yaml:"), HasSubstr("use fewer aliases")));
  std::string large = "a: &a " + std::string(900000, 'x') + "\nb: [*a, *a, *a, *a, *a, *a]\n";
  EXPECT_THAT(ErrorOf(large), HasSubstr("use fewer aliases"));
}

TEST(ParseTest, DeepAndLargeFilesAreRefused) {
  EXPECT_THAT(ErrorOf("run: " + std::string(100000, '[')), HasSubstr("not YAML"));
  EXPECT_THAT(ErrorOf("run: " + std::string(2 << 20, 'x')), HasSubstr("too many"));
  std::string nested;
  for (int i = 0; i < 3000; ++i) nested += std::string(static_cast<size_t>(i), ' ') + "a:\n";
  EXPECT_NE(ErrorOf(nested.substr(0, 1 << 20)), "no error");
}

TEST(OverrideTest, SetsScalarsSectionsAndListEntries) {
  const char* text = "rewards: [{name: math}, {name: dapo}]\n";
  EXPECT_EQ(Read(text, {"run.steps=3"}).run.steps, 3);
  EXPECT_EQ(Read(text, {"rewards.1.weight=2"}).rewards[1].weight, 2);
  EXPECT_EQ(Read(text, {"rewards=[{name: exact}]"}).rewards[0].name, "exact");
  EXPECT_EQ(Read(text, {"run={steps: 9}", "run.steps=4"}).run.steps, 4);
  EXPECT_EQ(Read(text, {"data.chat_variables.a=no"}).data.chat_variables.at("a"), "no");
  EXPECT_EQ(Read("data: {source: x}", {"data.source="}).data.source, "");
  EXPECT_EQ(Read(text, {"data.prompt_template=\"Q: {prompt}\\n\""}).data.prompt_template,
            "Q: {prompt}\n");
  EXPECT_EQ(Read(text, {"data.source=a=b"}).data.source, "a=b");
}

TEST(OverrideTest, MistakesNameTheArgument) {
  const auto error = [](const std::string& argument) {
    return ErrorOf("rewards: [{name: math}]\nrun: {steps: 5}\n", {argument});
  };
  EXPECT_EQ(error("run.steps=x"), "--set run.steps=x: run.steps: 'x' should be a whole number");
  EXPECT_THAT(error("run.step=3"), HasSubstr("did you mean run.steps?"));
  EXPECT_EQ(error("nothing"), "--set nothing: there is no '='; write --set key=value");
  EXPECT_THAT(error("=3"), HasSubstr("--set =3: the key has an empty part"));
  EXPECT_THAT(error("run..steps=3"), HasSubstr("the key has an empty part"));
  EXPECT_THAT(error("rewards.1.weight=3"), HasSubstr("there is no entry 1; set the whole list"));
  EXPECT_THAT(error("rewards.x.weight=3"), HasSubstr("'x' should be the number of a list entry"));
  EXPECT_THAT(error("run.steps.x=3"), HasSubstr("'x' stands below '5' (f.yaml:2:14)"));
  EXPECT_THAT(error("rewards=[{name: a"), HasSubstr("--set rewards=[{name: a"));
  EXPECT_THAT(error("run.name=a: b"), HasSubstr("quotes"));
  EXPECT_THAT(error("run.steps="), HasSubstr("--set run.steps=: run.steps: is empty"));
  EXPECT_THAT(error("run.name=\xff"), HasSubstr("is not UTF-8"));
}

Experiment Unusual() {
  Experiment e;
  e.run.name = "true";
  e.run.seed = std::numeric_limits<int64_t>::max();
  e.model.path = "a b: #c\\\"'\n\t\x01\x7f\xc2\x85\xe2\x80\xa8 \xf0\x9f\x98\x80";
  e.data.source = "no";
  e.data.prompt_template = std::string("{prompt}\0x\r\n", 11);
  e.data.chat_variables = {{"", "~"}, {"a.b: c", "null"}, {"<<", "1e3"}};
  e.data.system_prompt = " leading and trailing ";
  e.optimizer.learning_rate = 0.1 + 0.2;
  e.optimizer.epsilon = 5e-324 > 0 ? 2.2250738585072014e-308 : 1;
  e.sampling.stop = {"", "- a", "[x]", "&a", "*a", "!x", "%", "@", "`", "---", "...", "?", "0x10"};
  e.sampling.stop_token_ids = {0, 2147483647};
  e.rewards = {RewardConfig{"regex", -1e-6, {{"k", "v"}}}, RewardConfig{}};
  e.evals.emplace_back().data.source = "story_math";
  e.evals.emplace_back(EvalConfig{.name = "second"}).data.source = "x";
  return e;
}

TEST(PrintTest, ReadsBackEqual) {
  for (const Experiment& experiment : {Experiment{}, Unusual()}) {
    const std::string printed = PrintExperiment(experiment);
    const auto again = ParseExperiment(printed, "printed.yaml");
    ASSERT_TRUE(again.ok()) << again.status() << "\n" << printed;
    EXPECT_EQ(*again, experiment) << printed;
    EXPECT_EQ(PrintExperiment(*again), printed);
  }
}

TEST(AutoTest, ANumberOrTheWord) {
  EXPECT_EQ(Read("algorithm: {clip_low: auto}").algorithm.clip_low, std::nullopt);
  EXPECT_EQ(Read("algorithm: {clip_low: 3e-4}").algorithm.clip_low, 3e-4);
  EXPECT_THAT(PrintExperiment(Read("algorithm: {clip_high: 4e-4}")),
              HasSubstr("clip_low: auto\n  clip_high: 0.0004\n"));
  for (const char* wrong : {"Auto", "[]", "2", "-1", "!x auto", "automatic", "{}", "nan"}) {
    const auto experiment =
        ParseExperiment(std::string("algorithm: {clip_low: ") + wrong + "}", "f.yaml");
    EXPECT_THAT(std::string(experiment.status().message()),
                HasSubstr("f.yaml:1:23: algorithm.clip_low"))
        << wrong;
  }
  EXPECT_THAT(std::string(ParseExperiment("algorithm: {clip_low: x}", "f.yaml").status().message()),
              HasSubstr("should be a number, finite and decimal, like 0.5 or 1e-6, or auto"));
}

TEST(ExplainTest, IsAFileOfTheDefaultsThatNamesEveryKey) {
  const std::string text = ExplainExperiment();
  EXPECT_EQ(Read(text), Experiment{});
  EXPECT_THAT(text, HasSubstr("# the likeliest tokens of this total probability"));
  EXPECT_THAT(text, HasSubstr("or auto, at least 0)\n  clip_high: auto\n"));
  size_t start = 0;
  while (start < text.size()) {
    const size_t end = text.find('\n', start);
    EXPECT_LE(end - start, 104u) << text.substr(start, end - start);
    EXPECT_NE(text[end - 1], ' ');
    start = end + 1;
  }
}

// Every field has a meaning, keys of a section differ, and its default is one that is allowed.
struct FieldChecker {
  std::set<std::string_view> keys = {};

  template <typename T>
  void operator()(T& member, const Field& field) {
    EXPECT_TRUE(keys.insert(field.key).second) << field.key;
    EXPECT_FALSE(field.meaning.empty()) << field.key;
    if constexpr (Section<T>) {
      FieldChecker inner;
      ForEach(member, inner);
    } else if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
      EXPECT_TRUE(Contains(field.range, static_cast<double>(member))) << field.key;
    } else if constexpr (std::is_same_v<T, std::string>) {
      EXPECT_TRUE(field.choices.empty() ||
                  std::count(field.choices.begin(), field.choices.end(), member) == 1)
          << field.key;
    }
  }
};

TEST(FieldsTest, DefaultsAreAllowed) {
  Experiment experiment;
  FieldChecker checker;
  ForEach(experiment, checker);
  RewardConfig reward;
  EvalConfig eval;
  FieldChecker reward_checker, eval_checker;
  ForEach(reward, reward_checker);
  ForEach(eval, eval_checker);
}

// A member that no field lists would be a setting that nobody can set: the sizes of the structs are
// compared with the sum of the listed members, rounded up to the alignment.
struct SizeCounter {
  size_t size = 0;
  template <typename T>
  void operator()(T&, const Field&) {
    size = (size + alignof(T) - 1) / alignof(T) * alignof(T) + sizeof(T);
  }
};

template <typename T>
void ExpectAllListed(size_t unlisted_bytes = 0) {
  T section;
  SizeCounter counter;
  ForEach(section, counter);
  const size_t size = (counter.size + alignof(T) - 1) / alignof(T) * alignof(T);
  EXPECT_EQ(size + unlisted_bytes, sizeof(T)) << typeid(T).name();
}

TEST(FieldsTest, EveryMemberIsListed) {
  ExpectAllListed<RunConfig>();
  ExpectAllListed<ModelConfig>();
  ExpectAllListed<DataConfig>();
  ExpectAllListed<StoryMathConfig>();
  ExpectAllListed<SamplingConfig>();
  ExpectAllListed<RolloutConfig>();
  ExpectAllListed<RewardConfig>();
  ExpectAllListed<AlgorithmConfig>();
  ExpectAllListed<OptimizerConfig>();
  ExpectAllListed<TrainerConfig>();
  ExpectAllListed<CheckpointConfig>();
  ExpectAllListed<EvalConfig>();
  ExpectAllListed<SftConfig>();
  ExpectAllListed<OutputConfig>();
  ExpectAllListed<Experiment>(sizeof(Places));
}

TEST(FieldsTest, NearestFindsTypingErrorsOnly) {
  const std::vector<std::string_view> keys = {"temperature", "top_k", "top_p"};
  EXPECT_EQ(Nearest("temprature", keys), "temperature");
  EXPECT_EQ(Nearest("temp", keys), "temperature");
  EXPECT_EQ(Nearest("top-p", keys), "top_p");
  EXPECT_EQ(Nearest("learning_rate", keys), "");
  EXPECT_EQ(Nearest("", keys), "");
  EXPECT_EQ(Nearest(std::string(100000, 'a'), keys), "");
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
}

class LoadTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/configs_load." + std::to_string(getpid());
    std::filesystem::create_directories(folder_ + "/exp/start");
    std::filesystem::create_directories(folder_ + "/work/other");
    old_ = std::filesystem::current_path();
    std::filesystem::current_path(folder_ + "/work");
  }
  void TearDown() override {
    std::filesystem::current_path(old_);
    std::filesystem::remove_all(folder_);
  }
  std::string Write(const std::string& text) {
    std::ofstream(folder_ + "/exp/f.yaml") << text;
    return folder_ + "/exp/f.yaml";
  }
  std::string folder_;
  std::filesystem::path old_;
};

TEST_F(LoadTest, PathsAreThoseBesideTheFileElseOfTheWorkingDirectory) {
  std::ofstream(folder_ + "/exp/rows.jsonl");
  std::ofstream(folder_ + "/work/story_math");
  const std::string path = Write(
      "model: {path: start}\n"
      "data: {source: other}\n"
      "evals: [{name: a, data: {source: rows.jsonl}}, {name: b, data: {source: hf:o/n}},\n"
      "        {name: c, data: {source: story_math}}, {name: d, data: {source: absent}}]\n");
  const auto experiment = LoadExperiment(path);
  ASSERT_TRUE(experiment.ok()) << experiment.status();
  const std::string root = std::filesystem::canonical(folder_).string();
  EXPECT_EQ(std::filesystem::canonical(experiment->model.path), root + "/exp/start");
  EXPECT_TRUE(std::filesystem::path(experiment->model.path).is_absolute());
  EXPECT_EQ(std::filesystem::canonical(experiment->data.source), root + "/work/other");
  EXPECT_TRUE(std::filesystem::path(experiment->data.source).is_absolute());
  EXPECT_EQ(std::filesystem::canonical(experiment->evals[0].data.source), root + "/exp/rows.jsonl");
  EXPECT_EQ(experiment->evals[1].data.source, "hf:o/n");
  EXPECT_EQ(experiment->evals[2].data.source, "story_math");
  EXPECT_EQ(experiment->evals[3].data.source, "absent");
}

TEST_F(LoadTest, PathsOfOverridesBelongToTheWorkingDirectory) {
  const std::string path = Write("model: {path: other}\n");
  const std::vector<std::string> overrides = {"model.path=start"};
  EXPECT_EQ(LoadExperiment(path, overrides)->model.path, "start");
}

TEST_F(LoadTest, FilesInARewardsCommandAreThoseBesideTheFile) {
  std::ofstream(folder_ + "/exp/grade.py");
  std::filesystem::create_directories(folder_ + "/exp/a b");
  std::ofstream(folder_ + "/exp/a b/tool");
  const std::string path = Write(
      "rewards:\n"
      "- {name: program, parameters: {command: \"python3 grade.py --table 'grade.py' "
      "absent.py\"}}\n"
      "- {name: regex, parameters: {pattern: grade.py}}\n");
  std::filesystem::current_path(folder_);
  const auto experiment = LoadExperiment("exp/f.yaml");
  ASSERT_TRUE(experiment.ok()) << experiment.status();
  const std::string grade = std::filesystem::absolute("exp/grade.py").string();
  EXPECT_EQ(experiment->rewards[0].parameters.at("command"),
            "python3 " + grade + " --table 'grade.py' absent.py");
  EXPECT_EQ(experiment->rewards[1].parameters.at("pattern"), "grade.py");
  const std::vector<std::string> overrides = {"rewards.0.parameters={command: python3 grade.py}"};
  EXPECT_EQ(LoadExperiment("exp/f.yaml", overrides)->rewards[0].parameters.at("command"),
            "python3 grade.py");
}

TEST(ResolveCommandTest, TouchesPlainWordsThatAreFilesAlone) {
  const std::string folder = testing::TempDir() + "/configs_command." + std::to_string(getpid());
  std::filesystem::create_directories(folder + "/a b");
  for (const char* name : {"/run", "/x y", "/a b/run"}) std::ofstream(folder + name);
  const std::string found = std::filesystem::absolute(folder + "/run").lexically_normal().string();
  EXPECT_EQ(ResolveCommand("run run ./run", folder), "run " + found + " " + found);
  EXPECT_EQ(ResolveCommand("./run", folder), found);
  EXPECT_EQ(ResolveCommand("  cat   run  ", folder), "  cat   " + found + "  ");
  for (const char* same : {"", "  ", "cat 'run' \"run\" r\\un", "sh -c 'cat run'", "cat /run gone",
                           "cat 'open", "cat \\", "sh -c \"a \\\" run\" x"}) {
    EXPECT_EQ(ResolveCommand(same, folder), same);
  }
  EXPECT_EQ(
      ResolveCommand("cat run", folder + "/a b"),
      "cat \"" + std::filesystem::absolute(folder + "/a b/run").lexically_normal().string() + "\"");
  std::filesystem::remove_all(folder);
}

TEST_F(LoadTest, UnreadableFilesAreErrorsWithTheirName) {
  EXPECT_THAT(std::string(LoadExperiment("absent.yaml").status().message()),
              AllOf(HasSubstr("absent.yaml"), HasSubstr("No such file")));
  EXPECT_THAT(std::string(LoadExperiment(folder_).status().message()),
              AllOf(HasSubstr(folder_), HasSubstr("directory")));
}

}  // namespace
}  // namespace orrery::configs
