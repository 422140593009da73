// One YAML file is one experiment, and this is all that one can set: plain structs with their
// defaults. What a key means, its unit, its allowed values and its place in the YAML stand once, in
// the field list of fields.h, which parses, checks, prints and explains them. yaml.h reads a file.
//
// An Experiment does not change after it was loaded. "auto" values are resolved by whoever knows
// the answer into a new value, which is logged and written to the run directory.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace orrery::configs {

// run: where it writes and what makes it repeat.
struct RunConfig {
  std::string name = "run";
  std::string directory = "runs";  // the run lands in directory/name
  int64_t seed = 1;
  int64_t steps = 60;              // rollout steps
  int64_t threads = 0;             // CPU threads; 0: all cores
  std::string device = "auto";     // auto, cpu, cuda: where the model samples and learns
  std::string numerics = "exact";  // exact, fast: of a GPU
  bool operator==(const RunConfig&) const = default;
};

// model: what is trained.
struct ModelConfig {
  std::string path;               // folder, or hf:ORG/NAME[@REVISION]
  std::string dtype = "float32";  // compute and rollout weights: float32, bfloat16
  std::string initialize =
      "checkpoint";  // checkpoint, random (path then holds only config and tokenizer)
  bool operator==(const ModelConfig&) const = default;
};

// data: the prompts.
struct DataConfig {
  std::string source;           // file (.jsonl[.gz|.zst], .parquet), folder, hf:..., or story_math
  std::string preset = "none";  // none, gsm8k, math: field names and prompt of known sets
  std::string split = "train";
  std::string prompt_field = "prompt";
  std::string answer_field = "answer";
  std::string solution_field;   // full reference response, for sft
  std::string prompt_template;  // "{prompt}" is replaced; other {field}s too; empty: as it is
  std::string system_prompt;
  bool chat = true;  // render through the checkpoint's chat template
  std::map<std::string, std::string> chat_variables;  // e.g. enable_thinking: "false"
  bool shuffle = true;
  int64_t limit = 0;  // use the first rows only; 0: all
  int64_t max_prompt_tokens =
      0;  // longer prompts are an error, or left out; 0: what the context allows
  std::string overlong_prompts = "error";  // error, skip
  bool operator==(const DataConfig&) const = default;
};

// story_math: the generated task family (data.source: story_math).
struct StoryMathConfig {
  int64_t templates = 6;  // how many of the 12 story templates
  int64_t rows = 20000;   // size of the generated set
  double noise = 0;       // sft: share of corrupted solutions
  double ramble = 0;      // sft: share of solutions that ramble on before they answer
  bool tool = false;      // the multi-turn form with a calculator
  bool operator==(const StoryMathConfig&) const = default;
};

// sampling: how responses are drawn. Training refuses what changes the distribution besides
// temperature (DESIGN section 5).
struct SamplingConfig {
  double temperature = 1.0;
  int64_t top_k = 0;  // 0: off
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  int64_t max_new_tokens = 256;
  int64_t min_new_tokens = 0;
  std::vector<std::string> stop;        // stop strings
  std::vector<int64_t> stop_token_ids;  // besides the checkpoint's eos ids
  bool operator==(const SamplingConfig&) const = default;
};

// rollout: how much is generated each step, and the engine that does it.
struct RolloutConfig {
  int64_t prompts_per_step = 32;
  int64_t samples_per_prompt = 8;
  std::string environment = "single_turn";  // single_turn, calculator
  int64_t max_turns = 4;
  int64_t max_running = 256;      // sequences decoded together
  int64_t kv_tokens = 0;          // size of the KV cache in tokens; 0: what max_running needs
  std::string kv_dtype = "auto";  // auto: the model's; float8: of a GPU
  // Of a sequence for which the KV cache has no room: recompute, or swap to the host's memory.
  std::string preemption = "recompute";
  int64_t swap_tokens = 0;  // size of that memory in tokens
  int64_t prefill_chunk_tokens = 512;
  bool prefix_sharing = true;
  int64_t top_logprobs = 0;  // of each sampled token, into the samples file
  bool operator==(const RolloutConfig&) const = default;
};

// rewards: a list of weighted graders.
struct RewardConfig {
  std::string name = "gsm8k_strict";
  double weight = 1.0;
  std::map<std::string, std::string> parameters;
  bool operator==(const RewardConfig&) const = default;
};

// algorithm: rewards to advantages to loss.
struct AlgorithmConfig {
  // grpo, dr_grpo, dapo, gspo, rloo, reinforce_plus_plus, reinforce_plus_plus_baseline, cispo
  std::string name = "grpo";
  bool divide_by_std = true;         // grpo's advantages (dapo, gspo and cispo have them too)
  bool whiten_advantages = false;    // over the batch, after the group
  std::string aggregation = "auto";  // auto (by name), token_mean, seq_mean_token_mean,
                                     // seq_mean_token_sum, seq_mean_token_sum_norm, token_sum
  int64_t horizon = 0;  // tokens that seq_mean_token_sum_norm divides by; 0: the longest episode
  std::optional<double> clip_low, clip_high;  // none: auto, as the algorithm was published
  double dual_clip = 0;                       // 0: off
  std::string kl = "none";                    // none, k1, k2, k3, low_var_kl
  std::string kl_in = "loss";                 // loss, reward
  double kl_coefficient = 0;
  bool kl_unbiased = false;  // in loss: times new / old
  double entropy_coefficient = 0;
  std::string correction = "none";  // none, tis, icepop, mis
  double correction_low = 0;
  double correction_high = 2.0;
  // What follows belongs to mis.
  std::string correction_level = "token";    // token, sequence, geometric
  std::string correction_mode = "truncate";  // truncate, clip, mask
  std::string correction_reject = "none";    // none, or the level: token, sequence, geometric
  double correction_reject_low = 0.5;
  double correction_reject_high = 2.0;
  double correction_veto = 0;         // 0: off
  bool correction_normalize = false;  // weights divided by their mean over the batch
  double opsm_delta = 0;              // off-policy sequence masking; 0: off
  std::string truncated = "grade";    // grade, zero, mask
  bool drop_zero_std_groups = true;   // groups without signal are not trained
  bool dynamic_sampling = false;      // refill them with new prompts
  int64_t max_refills = 10;
  int64_t overlong_buffer = 0;  // DAPO soft over-long penalty: tokens before the limit; 0: off
  double overlong_penalty = 1.0;
  double max_logprob_diff = 0;  // stop when train_rollout_logprob_abs_diff/max passes it; 0: off
  bool operator==(const AlgorithmConfig&) const = default;
};

// optimizer: AdamW with float32 master weights.
struct OptimizerConfig {
  double learning_rate = 1e-6;
  double min_learning_rate = 0;
  std::string schedule = "constant";  // constant, linear, cosine
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  // length of the decay after warm-up; 0: to the end of the run
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  double clip_grad_norm = 1.0;  // 0: off
  bool operator==(const OptimizerConfig&) const = default;
};

// trainer: how a batch becomes optimizer steps.
struct TrainerConfig {
  int64_t optimizer_steps_per_rollout = 1;
  int64_t micro_batch_tokens = 4096;
  std::string recompute = "none";  // none, block
  // never, auto (where it does not fit on the GPU), always: master weights and moments in pinned
  // memory of the host
  std::string optimizer_offload = "auto";
  bool share_prefix = true;             // the prompt of a group is computed once
  std::string routing_replay = "none";  // none, rollout: of a model with experts
  bool operator==(const TrainerConfig&) const = default;
};

// checkpoint: when to write one and which to keep.
struct CheckpointConfig {
  int64_t every = 20;      // steps; 0: only at the end
  int64_t keep = 2;        // newest ones kept; 0: all
  int64_t keep_every = 0;  // besides, every so many steps for good; 0: none
  bool operator==(const CheckpointConfig&) const = default;
};

// eval: a list of evaluations.
struct EvalConfig {
  std::string name = "eval";
  DataConfig data = {.split = "test", .shuffle = false};
  int64_t every = 0;           // steps; 0: only at the start and the end
  int64_t samples = 1;         // n of pass@k
  double temperature = 0;      // 0: greedy
  int64_t max_new_tokens = 0;  // 0: as in sampling
  bool operator==(const EvalConfig&) const = default;
};

// sft: supervised training on prompt and solution (orrery sft).
struct SftConfig {
  int64_t steps = 0;  // 0: by epochs
  double epochs = 1;
  int64_t batch_size = 64;           // sequences an optimizer step
  std::string loss_on = "solution";  // solution, all
  bool operator==(const SftConfig&) const = default;
};

// output: what a run writes besides metrics.
struct OutputConfig {
  bool samples = true;
  bool tensorboard = true;
  bool report = true;
  bool trace = false;
  bool operator==(const OutputConfig&) const = default;
};

// Where values came from, by key path: "sampling.top_p" -> "run.yaml:12:10" or "--set ...". Keys
// that nobody set are not in it. Says nothing about the experiment itself, so any two are equal.
struct Places {
  std::map<std::string, std::string> by_key;
  bool operator==(const Places&) const { return true; }
};

struct Experiment {
  RunConfig run;
  ModelConfig model;
  DataConfig data;
  StoryMathConfig story_math;
  SamplingConfig sampling;
  RolloutConfig rollout;
  std::vector<RewardConfig> rewards;
  AlgorithmConfig algorithm;
  OptimizerConfig optimizer;
  TrainerConfig trainer;
  CheckpointConfig checkpoint;
  std::vector<EvalConfig> evals;
  SftConfig sft;
  OutputConfig output;
  Places places;

  // "run.yaml:12:10: sampling.top_p" for the start of an error; the key alone where nobody set it.
  std::string Where(const std::string& key) const {
    const auto found = places.by_key.find(key);
    return found == places.by_key.end() ? key : found->second + ": " + key;
  }

  std::string RunDirectory() const { return run.directory + "/" + run.name; }
  // Responses of an episode at most.
  int64_t MaxTurns() const { return rollout.environment == "single_turn" ? 1 : rollout.max_turns; }
  // Tokens that aggregation seq_mean_token_sum_norm divides an episode by.
  int64_t Horizon() const {
    return algorithm.horizon > 0 ? algorithm.horizon : MaxTurns() * sampling.max_new_tokens;
  }
  // The batch is the baseline of reinforce_plus_plus: a group of equal scores has signal too.
  bool DropsZeroStdGroups() const {
    return algorithm.drop_zero_std_groups && algorithm.name != "reinforce_plus_plus";
  }
  int64_t EpisodesPerStep() const { return rollout.prompts_per_step * rollout.samples_per_prompt; }
  bool operator==(const Experiment&) const = default;
};

}  // namespace orrery::configs
