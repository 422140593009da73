// A mixture of experts trained with the routing it was sampled with (trainer.routing_replay).
#include "orchestrator/run/samples.h"
#include "tests/e2e/e2e_testing.h"

namespace orrery::e2e {
namespace {

using ::testing::HasSubstr;

constexpr char kExperts[] = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 512,
  "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 3,
  "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 256, "rms_norm_eps": 1e-06,
  "rope_theta": 10000.0, "hidden_act": "silu", "attention_bias": false,
  "tie_word_embeddings": true, "initializer_range": 0.2, "eos_token_id": 468, "dtype": "float32",
  "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": true,
  "decoder_sparse_step": 1, "mlp_only_layers": [1]})";

// The small experiment over such a model; scores vary with what the untrained model happens to say.
std::string ExpertsExperiment(const TempFolder& folder, const std::string& name, int64_t steps,
                              const std::string& start = StartModel()) {
  const std::string model = folder / "experts";
  fs::create_directories(model);
  for (const auto& file : fs::directory_iterator(start)) {
    if (file.path().extension() == ".safetensors" || file.path().filename() == "config.json") {
      continue;
    }
    fs::copy(file.path(), model / file.path().filename(), fs::copy_options::overwrite_existing);
  }
  Put(model + "/config.json", kExperts);
  const std::string path = SmallExperiment(folder, name, steps);
  std::string text = Get(path);
  text = std::regex_replace(text, std::regex("model: \\{path: [^}]*\\}"),
                            "model: {path: " + model + ", initialize: random}");
  text =
      std::regex_replace(text, std::regex("trainer: \\{"), "trainer: {routing_replay: rollout, ");
  text = std::regex_replace(text, std::regex("rewards: [^\n]*"),
                            "rewards: [{name: regex, parameters: {pattern: \"[3-5]\"}}]");
  text = std::regex_replace(text, std::regex("every: 2"), "every: 2, keep: 0");
  text.resize(text.find("evals:"));
  Put(path, text);
  return path;
}

TEST(RoutingReplay, IsRecordedReplayedAndResumedBitForBit) {
  TempFolder folder;
  const Ended ended = Orrery({"run", ExpertsExperiment(folder, "whole", 6)});
  ASSERT_EQ(ended.code, 0) << ended;
  const std::string run = folder / "whole";
  double trained = 0;
  for (const std::string& line : Lines(Get(run + "/metrics.jsonl"))) {
    const auto metrics = Metrics(line);
    EXPECT_EQ(metrics.at("train/train_rollout_logprob_abs_diff/max"), 0);
    EXPECT_EQ(metrics.at("train/routing_replay/differing"), 0);
    EXPECT_EQ(metrics.at("train/routing_replay/own_routing_kl"), 0);
    EXPECT_EQ(metrics.at("train/routing_replay/replayed_kl"), 0);
    EXPECT_GT(metrics.at("rollout/routed_experts_bytes"), 0);
    trained += metrics.at("train/trained_tokens");
  }
  EXPECT_GT(trained, 0);
  const auto samples = run::ReadSamples(run + "/samples/step-3.jsonl.zst");
  ASSERT_TRUE(samples.ok()) << samples.status();
  for (const EpisodeGroup& group : samples->groups) {
    for (const Episode& episode : group.episodes) {
      const Sample& sample = episode.samples.at(0);
      ASSERT_NE(sample.routed_experts, nullptr);
      EXPECT_EQ(sample.routed_experts->num_layers, 2);
      EXPECT_EQ(sample.routed_experts->top_k, 2);
      EXPECT_EQ(sample.routed_experts->num_positions(),
                static_cast<int64_t>(sample.num_tokens()) - 1);
      EXPECT_EQ(sample.routed_experts->prompt, group.episodes[0].samples[0].routed_experts->prompt);
    }
  }
  for (const Words& words :
       {Words{"replay", run, "--step", "3"}, Words{"replay", run, "--step", "3", "--rollout"}}) {
    const Ended replayed = Orrery(words);
    EXPECT_EQ(replayed.code, 0) << replayed;
    EXPECT_THAT(replayed.out, HasSubstr("bitwise equal"));
  }
  EXPECT_THAT(Orrery({"inspect", run, "--step", "3"}).out,
              HasSubstr("x 2 layers x top 2 recorded"));

  // Cut after three steps, resumed from the checkpoint of the second.
  Process process(OrreryWords({"run", ExpertsExperiment(folder, "cut", 6)}));
  ASSERT_TRUE(Await([&] { return StepsDone(folder / "cut") >= 3 || !process.Runs(); }));
  process.Signal(SIGKILL);
  process.Wait();
  const Ended rest = Orrery({"resume", folder / "cut"});
  ASSERT_EQ(rest.code, 0) << rest;
  ExpectSameRun(run, folder / "cut", 6);
}

// In exact numerics and with one optimizer step, replay learns what its absence learns.
TEST(RoutingReplay, LearnsTheSameWhereNumericsAreExact) {
  TempFolder folder;
  ASSERT_EQ(Orrery({"run", ExpertsExperiment(folder, "with", 4)}).code, 0);
  const Ended without = Orrery(
      {"run", ExpertsExperiment(folder, "without", 4), "--set", "trainer.routing_replay=none"});
  ASSERT_EQ(without.code, 0) << without;
  ExpectSameFiles(folder / "with/checkpoints/step-4", folder / "without/checkpoints/step-4");
}

// What the training step needs was not written: it says so instead of routing by itself.
TEST(RoutingReplay, SamplesWithoutRoutingAreNotTrained) {
  TempFolder folder;
  const Words off = {"run", ExpertsExperiment(folder, "a", 2), "--set",
                     "trainer.routing_replay=none"};
  ASSERT_EQ(Orrery(off).code, 0);
  const std::string file = folder / "a/experiment.yaml";
  Put(file,
      std::regex_replace(Get(file), std::regex("routing_replay: none"), "routing_replay: rollout"));
  const Ended ended = Orrery({"replay", folder / "a", "--step", "1"});
  EXPECT_EQ(ended.code, 2) << ended;
  EXPECT_THAT(ended.err, HasSubstr("no routed experts to replay"));
}

TEST(RoutingReplay, ADenseModelRefusesIt) {
  TempFolder folder;
  const Ended ended =
      Orrery({"run", SmallExperiment(folder, "a", 1), "--set", "trainer.routing_replay=rollout"});
  EXPECT_EQ(ended.code, 2) << ended;
  EXPECT_THAT(ended.err, HasSubstr("trainer.routing_replay: "));
  EXPECT_THAT(ended.err, HasSubstr("has no experts"));
  EXPECT_FALSE(fs::exists(folder / "a/metrics.jsonl"));
}

}  // namespace
}  // namespace orrery::e2e
