#include "configs/checks.h"

#include <set>
#include <string>
#include <string_view>

#include "orchestrator/base/status.h"

namespace orrery::configs {
namespace {

constexpr std::string_view kStoryMath = "story_math";

class Problems {
 public:
  explicit Problems(const Experiment& experiment) : experiment_(experiment) {}

  template <typename... Args>
  void Add(const std::string& key, fmt::format_string<Args...> format, Args&&... args) {
    if (!text_.empty()) text_ += '\n';
    text_ += experiment_.Where(key) + ": " + fmt::format(format, std::forward<Args>(args)...);
  }

  absl::Status ToStatus() const {
    return text_.empty() ? absl::OkStatus() : absl::InvalidArgumentError(text_);
  }

 private:
  const Experiment& experiment_;
  std::string text_;
};

// Of settings that another command goes by: a file may be for both, a command line is for one.
void CheckOverridesAreFor(std::string_view command, const Experiment& experiment,
                          Problems& problems) {
  for (const auto& [key, place] : experiment.places.by_key) {
    if (!place.starts_with("--set")) continue;
    if (command == "sft" && key == "run.steps") {
      problems.Add(key, "has no effect on `orrery sft`; set sft.steps or sft.epochs");
    } else if (command == "run" && key.starts_with("sft.")) {
      problems.Add(key, "has no effect on `orrery run`; it is for `orrery sft`");
    }
  }
}

void CheckPreset(const DataConfig& data, const std::string& section, Problems& problems) {
  if (data.preset == "none" && data.source != kStoryMath) return;
  const DataConfig defaults;
  const std::string who =
      data.source == kStoryMath ? "data.source story_math" : "data.preset " + data.preset;
  const auto check = [&](const char* key, const std::string& value, const std::string& unset) {
    if (value == unset) return;
    problems.Add(section + "." + key, "'{}' has no effect, {} names the fields itself; remove it",
                 value, who);
  };
  check("prompt_field", data.prompt_field, defaults.prompt_field);
  check("answer_field", data.answer_field, defaults.answer_field);
  check("solution_field", data.solution_field, defaults.solution_field);
  if (data.source == kStoryMath) check("preset", data.preset, defaults.preset);
}

void CheckData(const DataConfig& data, const std::string& section, Problems& problems) {
  CheckPreset(data, section, problems);
  if (data.chat) return;
  if (!data.system_prompt.empty()) {
    problems.Add(section + ".system_prompt",
                 "needs a chat template; set {0}.chat: true, or put the text into "
                 "{0}.prompt_template",
                 section);
  }
  if (!data.chat_variables.empty()) {
    problems.Add(section + ".chat_variables", "has no effect with {}.chat: false; remove it",
                 section);
  }
}

void CheckEvals(const Experiment& experiment, Problems& problems) {
  std::set<std::string> names;
  for (size_t i = 0; i < experiment.evals.size(); ++i) {
    const EvalConfig& eval = experiment.evals[i];
    const std::string section = fmt::format("evals.{}", i);
    CheckData(eval.data, section + ".data", problems);
    if (!names.insert(eval.name).second) {
      problems.Add(section + ".name", "'{}' is another evaluation's name already; choose another",
                   eval.name);
    }
    if (eval.data.source.empty()) {
      problems.Add(section + ".data.source", "is missing; name a file, folder, hf: or story_math");
    }
    if (eval.samples > 1 && eval.temperature == 0) {
      problems.Add(
          section + ".samples",
          "{} greedy responses would all be the same; set {}.temperature: 1, or samples: 1",
          eval.samples, section);
    }
  }
}

void CheckOptimizer(const Experiment& experiment, Problems& problems) {
  const OptimizerConfig& optimizer = experiment.optimizer;
  if (optimizer.min_learning_rate > optimizer.learning_rate) {
    problems.Add("optimizer.min_learning_rate", "{} is above learning_rate {}; make it smaller",
                 optimizer.min_learning_rate, optimizer.learning_rate);
  }
  if (optimizer.schedule != "constant") return;
  if (optimizer.min_learning_rate > 0) {
    problems.Add("optimizer.min_learning_rate",
                 "{} has no effect with schedule: constant; remove it, or set schedule: linear or "
                 "cosine",
                 optimizer.min_learning_rate);
  }
  if (optimizer.decay_steps > 0) {
    problems.Add("optimizer.decay_steps",
                 "{} has no effect with schedule: constant; remove it, or set schedule: linear or "
                 "cosine",
                 optimizer.decay_steps);
  }
}

constexpr int64_t kBlockTokens = 16;  // of the KV cache: kernels/attention

void CheckPreemption(const Experiment& experiment, Problems& problems) {
  const RolloutConfig& rollout = experiment.rollout;
  if (rollout.preemption == "recompute") {
    if (rollout.swap_tokens == 0) return;
    problems.Add("rollout.swap_tokens",
                 "{} has no effect with rollout.preemption: recompute; remove it, or set swap",
                 rollout.swap_tokens);
    return;
  }
  if (rollout.swap_tokens < kBlockTokens) {
    problems.Add("rollout.swap_tokens",
                 "preemption: swap needs room for at least one block of {} tokens, and it has {}; "
                 "set it to what the host has memory for (orrery plan), or preemption: recompute",
                 kBlockTokens, rollout.swap_tokens);
  }
  if (experiment.run.device == "cpu") {
    problems.Add("rollout.preemption",
                 "swap has no use with run.device: cpu, where keys and values lie in the host's "
                 "memory already; raise rollout.kv_tokens, and set recompute");
  }
}

void CheckEngine(const Experiment& experiment, Problems& problems) {
  const RolloutConfig& rollout = experiment.rollout;
  CheckPreemption(experiment, problems);
  if (rollout.kv_tokens > 0 && rollout.kv_tokens < kBlockTokens) {
    problems.Add("rollout.kv_tokens",
                 "{} is less than one block of {} tokens; make it larger, or 0 to have it computed",
                 rollout.kv_tokens, kBlockTokens);
  }
  if (rollout.kv_dtype == "auto") return;
  const auto needs = [&](bool met, std::string_view setting) {
    if (met) return;
    problems.Add("rollout.kv_dtype", "{} needs {}; set that, or rollout.kv_dtype: auto",
                 rollout.kv_dtype, setting);
  };
  needs(experiment.run.device != "cpu", "run.device: cuda");
  needs(experiment.run.numerics == "fast", "run.numerics: fast");
  needs(experiment.model.dtype == "bfloat16", "model.dtype: bfloat16");
}

void CheckSampling(const SamplingConfig& sampling, Problems& problems) {
  constexpr std::string_view kReason =
      "changes the distribution that is sampled from, and the trainer's log-probs would be of "
      "another one";
  const auto refuse = [&](const char* key, bool is_set, double value, const char* off) {
    if (is_set) problems.Add(key, "{} {}; training needs {}", value, kReason, off);
  };
  refuse("sampling.top_p", sampling.top_p < 1, sampling.top_p, "1");
  refuse("sampling.top_k", sampling.top_k > 0, static_cast<double>(sampling.top_k), "0");
  refuse("sampling.min_p", sampling.min_p > 0, sampling.min_p, "0");
  refuse("sampling.repetition_penalty", sampling.repetition_penalty != 1,
         sampling.repetition_penalty, "1");
  refuse("sampling.presence_penalty", sampling.presence_penalty != 0, sampling.presence_penalty,
         "0");
  refuse("sampling.min_new_tokens", sampling.min_new_tokens > 0,
         static_cast<double>(sampling.min_new_tokens), "0");
  if (sampling.temperature == 0) {
    problems.Add("sampling.temperature",
                 "0 makes all responses of a group the same, and nothing is learnt; set 1");
  }
}

void CheckGroups(const Experiment& experiment, Problems& problems) {
  const AlgorithmConfig& algorithm = experiment.algorithm;
  const RolloutConfig& rollout = experiment.rollout;
  const bool batch_baseline =
      algorithm.name == "reinforce_plus_plus" && !algorithm.dynamic_sampling;
  if (rollout.samples_per_prompt < 2 && !batch_baseline) {
    problems.Add("rollout.samples_per_prompt",
                 "{} is too few: {} compares the responses to one prompt; set 2 or more",
                 rollout.samples_per_prompt,
                 algorithm.dynamic_sampling ? "dynamic_sampling" : algorithm.name);
  }
  const bool has_std = algorithm.name == "grpo" || algorithm.name == "dapo" ||
                       algorithm.name == "gspo" || algorithm.name == "cispo";
  if (!algorithm.divide_by_std && !has_std) {
    problems.Add("algorithm.divide_by_std", "false has no effect: {} does not divide; remove it",
                 algorithm.name);
  }
  if (algorithm.dynamic_sampling && !algorithm.drop_zero_std_groups) {
    problems.Add("algorithm.dynamic_sampling",
                 "true refills dropped groups, and none is dropped; set "
                 "algorithm.drop_zero_std_groups: true");
  }
  if (experiment.trainer.optimizer_steps_per_rollout > experiment.EpisodesPerStep()) {
    problems.Add("trainer.optimizer_steps_per_rollout",
                 "{} is more than the {} episodes of a step; make it smaller",
                 experiment.trainer.optimizer_steps_per_rollout, experiment.EpisodesPerStep());
  }
}

// Settings of a correction that the chosen kind does not read.
void CheckCorrection(const AlgorithmConfig& a, Problems& problems) {
  const AlgorithmConfig unset;
  const auto unused = [&](const char* key, bool is_set, const char* fix) {
    if (is_set) problems.Add(std::string("algorithm.") + key, "has no effect here; {}", fix);
  };
  if (a.correction == "none") {
    constexpr char kFix[] = "choose a correction: tis, icepop or mis";
    unused("correction_low", a.correction_low != unset.correction_low, kFix);
    unused("correction_high", a.correction_high != unset.correction_high, kFix);
  } else if (a.correction_low >= a.correction_high) {
    problems.Add("algorithm.correction_low", "{} should be less than correction_high {}",
                 a.correction_low, a.correction_high);
  }
  if (a.correction != "mis") {
    constexpr char kFix[] = "it belongs to correction: mis";
    unused("correction_level", a.correction_level != unset.correction_level, kFix);
    unused("correction_mode", a.correction_mode != unset.correction_mode, kFix);
    unused("correction_reject", a.correction_reject != unset.correction_reject, kFix);
    unused("correction_veto", a.correction_veto != 0, kFix);
    unused("correction_normalize", a.correction_normalize, kFix);
  }
  if (a.correction_reject == "none") {
    constexpr char kFix[] = "set algorithm.correction_reject: token, sequence or geometric";
    unused("correction_reject_low", a.correction_reject_low != unset.correction_reject_low, kFix);
    unused("correction_reject_high", a.correction_reject_high != unset.correction_reject_high,
           kFix);
  } else if (a.correction_reject_low >= a.correction_reject_high) {
    problems.Add("algorithm.correction_reject_low",
                 "{} should be less than correction_reject_high {}", a.correction_reject_low,
                 a.correction_reject_high);
  }
}

void CheckKl(const AlgorithmConfig& algorithm, Problems& problems) {
  if (algorithm.kl != "none" && algorithm.kl_coefficient == 0) {
    problems.Add("algorithm.kl", "'{}' has no effect with kl_coefficient 0; set a coefficient",
                 algorithm.kl);
  }
  if (algorithm.kl == "none" && algorithm.kl_coefficient > 0) {
    problems.Add("algorithm.kl_coefficient",
                 "{} has no effect with algorithm.kl: none; choose k1, k2, k3 or low_var_kl",
                 algorithm.kl_coefficient);
  }
  if (algorithm.kl_unbiased && (algorithm.kl == "none" || algorithm.kl_in != "loss")) {
    problems.Add("algorithm.kl_unbiased",
                 "true has no effect without a divergence in the loss; choose algorithm.kl, with "
                 "kl_in: loss");
  }
}

void CheckLoss(const Experiment& experiment, Problems& problems) {
  const AlgorithmConfig& algorithm = experiment.algorithm;
  if (algorithm.dual_clip != 0 && algorithm.dual_clip <= 1) {
    problems.Add("algorithm.dual_clip", "{} should be more than 1, or 0 for off",
                 algorithm.dual_clip);
  }
  if (algorithm.dual_clip != 0 && algorithm.name == "cispo") {
    problems.Add("algorithm.dual_clip", "{} has no effect with cispo; set 0", algorithm.dual_clip);
  }
  if (algorithm.horizon > 0 && algorithm.aggregation != "seq_mean_token_sum_norm" &&
      !(algorithm.aggregation == "auto" && algorithm.name == "dr_grpo")) {
    problems.Add("algorithm.horizon",
                 "{} has no effect; it belongs to aggregation: seq_mean_token_sum_norm",
                 algorithm.horizon);
  }
  if (algorithm.overlong_buffer > experiment.sampling.max_new_tokens) {
    problems.Add("algorithm.overlong_buffer",
                 "{} tokens are more than sampling.max_new_tokens {}; make it smaller",
                 algorithm.overlong_buffer, experiment.sampling.max_new_tokens);
  }
  if (algorithm.overlong_buffer > 0 && algorithm.overlong_penalty == 0) {
    problems.Add("algorithm.overlong_buffer",
                 "{} has no effect with overlong_penalty 0; set a penalty",
                 algorithm.overlong_buffer);
  }
}

void CheckEnvironment(const Experiment& experiment, Problems& problems) {
  if (experiment.data.source != kStoryMath) return;
  const bool has_calculator = experiment.rollout.environment == "calculator";
  if (experiment.story_math.tool && !has_calculator) {
    problems.Add("story_math.tool",
                 "true asks the model to call a calculator; set rollout.environment: calculator");
  }
  if (!experiment.story_math.tool && has_calculator) {
    problems.Add("rollout.environment",
                 "calculator is what the prompts do not speak of; set story_math.tool: true");
  }
}

void CheckSources(const Experiment& experiment, Problems& problems) {
  if (experiment.model.path.empty()) {
    problems.Add("model.path", "is missing; name a checkpoint folder or hf:ORG/NAME");
  }
  if (experiment.data.source.empty()) {
    problems.Add("data.source", "is missing; name a file, folder, hf: or story_math");
  }
}

}  // namespace

absl::Status CheckExperiment(const Experiment& experiment) {
  Problems problems(experiment);
  CheckData(experiment.data, "data", problems);
  CheckEvals(experiment, problems);
  CheckOptimizer(experiment, problems);
  CheckEngine(experiment, problems);
  return problems.ToStatus();
}

absl::Status CheckForTraining(const Experiment& experiment) {
  Problems problems(experiment);
  CheckOverridesAreFor("run", experiment, problems);
  CheckSources(experiment, problems);
  if (experiment.rewards.empty()) {
    problems.Add("rewards", "is missing; add at least one, like [{{name: gsm8k_strict}}]");
  }
  CheckEnvironment(experiment, problems);
  CheckSampling(experiment.sampling, problems);
  CheckGroups(experiment, problems);
  CheckKl(experiment.algorithm, problems);
  CheckLoss(experiment, problems);
  CheckCorrection(experiment.algorithm, problems);
  return problems.ToStatus();
}

absl::Status CheckForSft(const Experiment& experiment) {
  Problems problems(experiment);
  CheckOverridesAreFor("sft", experiment, problems);
  CheckSources(experiment, problems);
  return problems.ToStatus();
}

}  // namespace orrery::configs
