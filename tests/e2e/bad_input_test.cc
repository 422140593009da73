// Bad input of every kind: exit code 2, one clear error on stderr, nothing on stdout, nothing
// created.
#include <cstring>

#include "tests/e2e/e2e_testing.h"

namespace orrery::e2e {
namespace {

using ::testing::HasSubstr;

// The command fails as a user's mistake should, and its error has `what` in it.
void ExpectRefused(const Words& arguments, const std::string& what) {
  SCOPED_TRACE(::testing::PrintToString(arguments));
  const Ended ended = Orrery(arguments);
  EXPECT_EQ(ended.code, 2) << ended;
  EXPECT_EQ(ended.out, "");
  EXPECT_THAT(ended.err, HasSubstr(what));
  const std::vector<std::string> lines = Lines(ended.err);
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                          [](const std::string& line) { return line.starts_with("orrery: "); }),
            1)
      << ended;
  EXPECT_LE(lines.size(), 3u) << ended;
}

void ExpectRefusedUsage(const Words& arguments, const std::string& what) {
  const Ended ended = Orrery(arguments);
  EXPECT_EQ(ended.code, 2) << ended;
  EXPECT_EQ(ended.out, "");
  EXPECT_THAT(ended.err, HasSubstr(what));
}

class BadInput : public ::testing::Test {
 protected:
  // The run that no refused command may leave behind.
  ~BadInput() override { EXPECT_FALSE(fs::exists(folder_ / "a")) << "a folder was left behind"; }

  std::string Experiment() { return SmallExperiment(folder_, "a", 2); }
  void Refused(const Words& overrides, const std::string& what) {
    Words words = {"run", Experiment()};
    for (const std::string& override : overrides) {
      words.push_back("--set");
      words.push_back(override);
    }
    ExpectRefused(words, what);
  }
  // The start model copied, for a test to damage.
  std::string Model() {
    const std::string copy = folder_ / "model";
    fs::remove_all(copy);
    fs::copy(StartModel(), copy);
    return copy;
  }
  void RefusedModel(const std::string& what) { Refused({"model.path=" + folder_ / "model"}, what); }
  void RefusedData(const std::string& rows, const std::string& what) {
    Put(folder_ / "rows.jsonl", rows);
    Refused({"data.source=" + folder_ / "rows.jsonl", "data.chat=false"}, what);
  }

  TempFolder folder_;
};

// Replaces the first `from` in a file, which must be there.
void Edit(const std::string& path, const std::string& from, const std::string& to) {
  std::string text = Get(path);
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from << " is not in " << path;
  Put(path, text.replace(at, from.size(), to));
}

TEST_F(BadInput, CommandLines) {
  EXPECT_EQ(Orrery({}).code, 2);
  EXPECT_THAT(Orrery({}).err, HasSubstr("--help"));
  ExpectRefused({"frobnicate"}, "frobnicate");
  for (const Words& words :
       {Words{"run"}, Words{"resume"}, Words{"replay", folder_.path()},
        Words{"run", Experiment(), "--set"}, Words{"plot"}, Words{"run", Experiment(), "--frob"}}) {
    const Ended ended = Orrery(words);
    EXPECT_EQ(ended.code, 2) << ::testing::PrintToString(words) << ended;
    EXPECT_FALSE(ended.err.empty());
  }
}

TEST_F(BadInput, FoldersThatAreNoRun) {
  ExpectRefused({"resume", folder_.path()}, "holds no run");
  ExpectRefused({"resume", folder_ / "absent"}, "holds no run");
  ExpectRefused({"replay", folder_.path(), "--step", "1"}, "holds no run");
  ExpectRefused({"inspect", folder_ / "absent"}, "absent");
  ExpectRefused({"plot", folder_ / "absent"}, "absent");
  ExpectRefused({"score", folder_ / "absent", Experiment()}, "absent");
  ExpectRefused({"tokenize", folder_ / "absent", "text"}, "absent");
  for (const char* ids : {"1 x 2", "-1", "512", "99999999999999999999", "1.5"}) {
    ExpectRefused({"tokenize", "--decode", StartModel(), "--", ids}, "ids from 0 to");
  }
  ExpectRefused({"eval", Experiment(), "--checkpoint", folder_ / "absent"}, "absent");
  ExpectRefused({"import", folder_ / "absent.gguf", folder_ / "out"}, "absent");
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(BadInput, AFileWhereAModelsFolderIsWanted) {
  const std::string file = Model() + "/config.json";
  Refused({"model.path=" + file}, "config.json' is a file; name the folder of a model");
  ExpectRefused({"eval", Experiment(), "--checkpoint", file}, "is a file");
}

TEST_F(BadInput, Overrides) {
  Refused({"foo"}, "write --set key=value");
  Refused({"=3"}, "--set");
  Refused({"run.stpes=3"}, "did you mean run.steps");
  Refused({"run.steps=many"}, "whole number");
  Refused({"run.steps=-1"}, "run.steps");
  Refused({"run.steps="}, "run.steps: is empty, should be a whole number");
  Refused({"run.steps=99999999999999999999"}, "run.steps");
  Refused({"optimizer.learning_rate=nan"}, "optimizer.learning_rate");
  Refused({"model.dtype=float8"}, "bfloat16");
  Refused({"sampling.top_p=0.9"}, "training needs 1");
  Refused({"sampling.temperature=0"}, "sampling.temperature");
  Refused({"rollout.samples_per_prompt=1"}, "rollout.samples_per_prompt");
}

TEST_F(BadInput, YamlNamesFileLineAndColumn) {
  const std::string file = Experiment(), good = Get(file);
  ExpectRefused({"run", folder_ / "absent.yaml"}, "absent.yaml");
  for (const auto& [text, what] : std::vector<std::pair<std::string, std::string>>{
           {"run: {name: a\n", "a.yaml:"},
           {"run: [1, 2]\n", "a.yaml:1:"},
           {"", "a.yaml"},
           {"just words\n", "a.yaml:1:"},
           {"rnu: {name: a}\n" + good, "did you mean run"},
           {good + "run: {seed: 2}\n", "a.yaml:"},
           {good + "optimiser: {}\n", "did you mean optimizer"},
           {std::string("run: \xff\xfe\0{\n", 12), "a.yaml:"}}) {
    Put(file, text);
    ExpectRefused({"run", file}, what);
  }
}

TEST_F(BadInput, ModelFolders) {
  Refused({"model.path=" + folder_ / "absent"},
          "model.path: '" + folder_ / "absent': no such file");
  Refused({"model.path=absent"},
          "no such file or folder; it was looked for in the working directory");
  Put(folder_ / "relative.yaml",
      "model: {path: absent}\ndata: {source: story_math}\nrewards: [{name: gsm8k_strict}]\n");
  ExpectRefused({"run", folder_ / "relative.yaml"},
                folder_ /
                    "relative.yaml:1:15: model.path: 'absent': no such file or folder; it was "
                    "looked for beside the YAML file and in the working directory");
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) {
    fs::remove(Model() + "/" + name);
    RefusedModel(name == std::string("model.safetensors") ? "safetensors" : name);
    Put(Model() + "/" + name, "");
    RefusedModel(name);
    Put(Model() + "/" + name, "{ \"a\": [1, 2");
    RefusedModel(name);
  }
}

TEST_F(BadInput, SafetensorsThatLie) {
  const std::string path = Model() + "/model.safetensors", good = Get(path);
  const auto refused = [&](const std::string& bytes) {
    Put(path, bytes);
    RefusedModel("model.safetensors");
  };
  refused(good.substr(0, good.size() / 2));
  refused(good.substr(0, 5));
  refused(std::string(8, '\xff') + good.substr(8));  // a header of 2^64 - 1 bytes
  refused(std::string(8, '\0') + good.substr(8));    // of none
  refused(good.substr(0, 8) + std::string(64, '{') + good.substr(72));
  const std::string offsets = "\"data_offsets\": [196608, 196992]";
  for (const char* lie : {"\"data_offsets\": [196604, 196992]",  // overlaps, and is too long
                          "\"data_offsets\": [196600, 196984]",  // overlaps, of the right length
                          "\"data_offsets\": [196992, 196608]"}) {
    Put(path, good);
    Edit(path, offsets, lie);
    RefusedModel("model.safetensors");
  }
  Put(path, good);
  Edit(path, "\"shape\": [512, 96]", "\"shape\": [511, 96]");
  RefusedModel("model.safetensors");
  Put(path, good);
  Edit(path, "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.x_proj.weight");
  RefusedModel("q_proj");
}

TEST_F(BadInput, WeightsThatAreNotFinite) {
  const std::string path = Model() + "/model.safetensors";
  std::string bytes = Get(path);
  bytes.replace(bytes.size() - 4, 4, std::string("\0\0\xc0\x7f", 4));
  Put(path, bytes);
  RefusedModel("is nan");
}

TEST_F(BadInput, ConfigsOfOtherModels) {
  const auto refused = [&](const char* from, const char* to, const char* what) {
    Edit(Model() + "/config.json", from, to);
    RefusedModel(what);
  };
  refused("\"hidden_size\": 96", "\"hidden_size\": 128", "[512, 128]");
  refused("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4", "model.layers.3");
  refused("\"model_type\": \"qwen3\"", "\"model_type\": \"mamba\"", "mamba");
  refused("Qwen3ForCausalLM", "MambaForCausalLM", "MambaForCausalLM");
  refused("\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "hidden_act");
  refused("\"vocab_size\": 512", "\"vocab_size\": 400", "vocab_size");
  refused("\"num_attention_heads\": 3", "\"num_attention_heads\": 0", "num_attention_heads");
  refused("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 1e400", "config.json");
}

TEST_F(BadInput, ATokenizerWithoutMerges) {
  const std::string path = Model() + "/tokenizer.json";
  std::string text = Get(path);
  const size_t merges = text.find("\"merges\"");
  ASSERT_NE(merges, std::string::npos);
  text.replace(merges, 8, "\"nothing\"");
  Put(path, text);
  RefusedModel("merges");
  ExpectRefused({"tokenize", folder_ / "model", "text"}, "merges");
}

TEST_F(BadInput, Datasets) {
  RefusedData("", "rows.jsonl");
  RefusedData("\n\n", "rows.jsonl");
  RefusedData("{\"prompt\": \"a\", \"answer\": \"1\"}\n{\"prompt\": \n", "rows.jsonl:2");
  RefusedData("{\"question\": \"a\", \"answer\": \"1\"}\n", "prompt");
  RefusedData("{\"prompt\": {\"a\": 17}, \"answer\": \"1\"}\n", "prompt");
  RefusedData("[1, 2]\n", "rows.jsonl");
  Refused({"data.source=" + folder_ / "absent.jsonl"}, "absent.jsonl");
  Put(folder_ / "rows.parquet", "PAR1 is not enough");
  Refused({"data.source=" + folder_ / "rows.parquet"}, "rows.parquet");
  Put(folder_ / "rows.jsonl.gz", "no gzip");
  Refused({"data.source=" + folder_ / "rows.jsonl.gz"}, "rows.jsonl.gz");
}

TEST_F(BadInput, PromptsLongerThanTheContext) {
  std::string words;
  for (int i = 0; i < 400; ++i) words += "word ";
  RefusedData("{\"prompt\": \"short\", \"answer\": \"1\"}\n{\"prompt\": \"" + words +
                  "\", \"answer\": \"1\"}\n",
              "data.overlong_prompts");
}

TEST_F(BadInput, RewardsThatLackWhatTheyNeed) {
  const std::string file = Experiment();
  Edit(file, "rewards: [{name: gsm8k_strict}]", "rewards: [{name: regex}]");
  ExpectRefused({"run", file}, "regex");
  Edit(file, "name: regex", "name: regex, parameters: {pattern: \"(\"}");
  ExpectRefused({"run", file}, "regex");
  Edit(file, "name: regex, parameters: {pattern: \"(\"}", "name: gsm9k");
  ExpectRefused({"run", file}, "gsm8k_strict");
}

TEST_F(BadInput, SftIsAsStrict) {
  ExpectRefused({"sft", Experiment(), "--set", "model.path=" + folder_ / "absent"}, "absent");
  ExpectRefused({"sft", Experiment(), "--set", "sft.batch_size=0"}, "sft.batch_size");
}

TEST_F(BadInput, RowsWithoutASolutionAreRefusedBySft) {
  Put(folder_ / "rows.jsonl", "{\"prompt\": \"1+1\", \"answer\": \"2\"}\n");
  ExpectRefused({"sft", Experiment(), "--set", "data.source=" + folder_ / "rows.jsonl", "--set",
                 "data.chat=false"},
                "has no solution to learn: set data.solution_field");
}

TEST_F(BadInput, ArgumentsThatAreMissingAreNamed) {
  ExpectRefusedUsage({"run"}, "orrery run: FILE is required; `orrery run --help` says more\n");
  ExpectRefusedUsage({"replay", folder_.path()}, "orrery replay: --step is required");
  ExpectRefusedUsage({"run", "x", "--nonsense"},
                     "orrery run: The following argument was not expected");
  ExpectRefusedUsage({}, "orrery: A subcommand is required; `orrery --help` says more");
}

// The number after `before` in a text.
int64_t NumberAfter(const std::string& text, const std::string& before) {
  const size_t at = text.find(before);
  return at == std::string::npos ? -1 : std::atoll(text.c_str() + at + before.size());
}

TEST_F(BadInput, ACacheTooSmallForOneResponseIsRefusedWithTheLeastThatWorks) {
  const std::string file = Experiment();
  const std::string text = Get(file);
  const auto with_kv_tokens = [&](int64_t tokens) {
    const std::string kv = "rollout: {kv_tokens: " + std::to_string(tokens) + ", ";
    Put(file, std::regex_replace(text, std::regex("rollout: \\{"), kv));
    return file;
  };
  const std::string place = "a.yaml:6:22: rollout.kv_tokens: ";
  const Words device = {"--set", "run.device=cpu"};
  for (const char* command : {"run", "plan"}) {
    ExpectRefused(
        {command, with_kv_tokens(16), device[0], device[1]},
        place + "16 is too small for one response: the longest prompt of data.source has");
  }
  const Ended refused = Orrery({"run", with_kv_tokens(16), device[0], device[1]});
  EXPECT_THAT(refused.err, HasSubstr(" allows 26 new ones"));
  EXPECT_THAT(refused.err, HasSubstr(", or to 0 to have it computed, or lower sampling."));
  const int64_t prompt = NumberAfter(refused.err, "data.source has ");
  const int64_t least = NumberAfter(refused.err, "set it to ");
  EXPECT_EQ(least, (prompt + 26 + 15) / 16 * 16 + 16);
  ExpectRefused({"run", with_kv_tokens(least - 16), device[0], device[1]}, "is too small");
  const Ended works = Orrery({"run", with_kv_tokens(least), device[0], device[1]});
  EXPECT_EQ(works.code, 0) << works;
  for (const std::string& line : Lines(Get(folder_ / "a/metrics.jsonl"))) {
    EXPECT_EQ(Metrics(line)["rollout/samples/failed"], 0) << line;
  }
  fs::remove_all(folder_ / "a");
}

TEST_F(BadInput, ACacheTooSmallForAnEvaluationIsRefused) {
  Refused({"rollout.kv_tokens=256", "evals.0.max_new_tokens=250", "run.device=cpu"},
          "--set rollout.kv_tokens=256: rollout.kv_tokens: 256 is too small for one response: the "
          "longest prompt of the evaluation 'greedy' has");
}

TEST_F(BadInput, ACacheThatTheMachineDoesNotGiveIsAnErrorWithItsSize) {
  // More than any machine has: `orrery plan` has the same numbers.
  const Ended ended = Orrery(
      {"run", Experiment(), "--set", "rollout.kv_tokens=1000000000", "--set", "run.device=cpu"});
  EXPECT_EQ(ended.code, 2) << ended;
  EXPECT_THAT(ended.err,
              ::testing::MatchesRegex(
                  "orrery: it does not fit: it takes [0-9.]+ GB of the host's memory, and "
                  "[0-9.]+ GB are there: keys and values of [0-9]+ tokens "
                  "[0-9.]+ GB, .*rollout.kv_tokens.*\n"));
}

}  // namespace
}  // namespace orrery::e2e
