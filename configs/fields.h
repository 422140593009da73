// The one list of every setting: key, meaning, unit and allowed values, beside the member it fills.
// Parsing, checking, printing and explaining are visitors of this list; nothing else knows the
// keys.
//
//   ForEach(sampling_config, visitor)  calls  visitor(sampling_config.top_p, Field("top_p", ...))
//   and so on.
//
// A member is a text, a number, a truth value, a list or map of them, a section (a struct that has
// a ForEach) or a list of sections.
#pragma once

#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "configs/experiment.h"

namespace orrery::configs {

// Allowed numbers; an end may be excluded.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_excluded = false;
  bool max_excluded = false;
};

// Counts stay below a billion, so that a product of two never overflows.
inline constexpr double kMaxCount = 1e9;
inline constexpr Range kCount{0, kMaxCount};
inline constexpr Range kPositiveCount{1, kMaxCount};
inline constexpr Range kNotNegative{0};
inline constexpr Range kPositive{.min = 0, .min_excluded = true};
inline constexpr Range kShare{0, 1};
inline constexpr Range kShareBelowOne{.min = 0, .max = 1, .max_excluded = true};

bool Contains(const Range& range, double value);
std::string RangeText(
    const Range& range);  // "at least 1 and at most 100"; empty where all are allowed

// What a text may be besides one of its choices.
enum class TextRule {
  kAny,
  kName,  // one path component, also part of a metric's name: letters, digits, - _ . and no leading
          // dot
};

bool IsName(std::string_view text);  // keeps TextRule::kName

// Levenshtein's distance.
size_t EditDistance(std::string_view a, std::string_view b);
// The candidate that `word` was probably meant to be; empty where none is near.
std::string Nearest(std::string_view word, const std::vector<std::string_view>& candidates);

struct Field {
  std::string_view key;
  std::string_view meaning;
  std::string_view unit;
  Range range;                            // numbers, and the numbers of a list
  std::vector<std::string_view> choices;  // texts; empty: any
  // What people write for a choice though its letters are far from it, or nearer to another.
  std::map<std::string_view, std::string_view> synonyms;
  TextRule rule = TextRule::kAny;

  Field(std::string_view key, std::string_view meaning) : key(key), meaning(meaning) {}
  Field&& Unit(std::string_view text) && {
    unit = text;
    return std::move(*this);
  }
  Field&& In(Range allowed) && {
    range = allowed;
    return std::move(*this);
  }
  Field&& Synonyms(std::map<std::string_view, std::string_view> words) && {
    synonyms = std::move(words);
    return std::move(*this);
  }
  Field&& OneOf(std::vector<std::string_view> texts) && {
    choices = std::move(texts);
    return std::move(*this);
  }
  Field&& Rule(TextRule text_rule) && {
    rule = text_rule;
    return std::move(*this);
  }
};

template <typename V>
void ForEach(RunConfig& c, V& v) {
  v(c.name,
    Field("name", "what the run is called; it lands in directory/name").Rule(TextRule::kName));
  v(c.directory, Field("directory", "folder of the runs, relative to the working directory"));
  v(c.seed, Field("seed", "everything random is derived from it").In({0}));
  v(c.steps, Field("steps", "rollout steps of the run").Unit("steps").In(kPositiveCount));
  v(c.threads, Field("threads", "CPU threads; 0: all cores").Unit("threads").In({0, 4096}));
  v(c.device, Field("device", "where the model samples and learns; auto: a GPU where there is one")
                  .OneOf({"auto", "cpu", "cuda"})
                  .Synonyms({{"gpu", "cuda"}, {"GPU", "cuda"}, {"cuda:0", "cuda"}}));
  v(c.numerics,
    Field("numerics",
          "exact: the trainer's log-probs are the sampler's, bit for bit, whatever else "
          "runs; fast: libraries and split sums on a GPU (a CPU is always exact)")
        .OneOf({"exact", "fast"}));
}

template <typename V>
void ForEach(ModelConfig& c, V& v) {
  v(c.path, Field("path", "checkpoint: a folder, or hf:ORG/NAME[@REVISION]"));
  v(c.dtype, Field("dtype", "of compute and rollout weights; master weights are float32")
                 .OneOf({"float32", "bfloat16"}));
  v(c.initialize, Field("initialize",
                        "checkpoint: read the weights; random: draw them, path then needs only "
                        "config and tokenizer")
                      .OneOf({"checkpoint", "random"}));
}

template <typename V>
void ForEach(DataConfig& c, V& v) {
  v(c.source,
    Field("source",
          "a file (.jsonl, .json, .parquet, also .gz and .zst of the first two), a folder "
          "of them, hf:ORG/NAME[@REVISION], or story_math"));
  v(c.preset,
    Field("preset", "field names and answers of known sets").OneOf({"none", "gsm8k", "math"}));
  v(c.split, Field("split", "which files of a folder are meant; part of a row's name")
                 .Rule(TextRule::kName));
  v(c.prompt_field, Field("prompt_field",
                          "field of the prompt, a text or a list of {role, content}; a.b reaches "
                          "into a field"));
  v(c.answer_field, Field("answer_field", "field of the ground truth; empty: there is none"));
  v(c.solution_field,
    Field("solution_field", "field of a full reference response, for sft; empty: there is none"));
  v(c.prompt_template, Field("prompt_template",
                             "what the model reads: {prompt} and other {field}s are replaced, "
                             "{{name}} gives {name}; empty: the prompt as it is"));
  v(c.system_prompt, Field("system_prompt", "a system message before the prompt; empty: none"));
  v(c.chat, Field("chat", "render the prompt through the checkpoint's chat template"));
  v(c.chat_variables,
    Field("chat_variables", "variables of the chat template, e.g. {enable_thinking: false}"));
  v(c.shuffle, Field("shuffle", "another order each epoch, from the run's seed"));
  v(c.limit, Field("limit", "use only the first rows; 0: all").Unit("rows").In(kCount));
  v(c.max_prompt_tokens, Field("max_prompt_tokens", "longest prompt; 0: what the context allows")
                             .Unit("tokens")
                             .In(kCount));
  v(c.overlong_prompts, Field("overlong_prompts", "what a longer prompt is: an error, or left out")
                            .OneOf({"error", "skip"}));
}

template <typename V>
void ForEach(StoryMathConfig& c, V& v) {
  v(c.templates,
    Field("templates", "how many of the story templates; the first 6 are the easy ones")
        .Unit("templates")
        .In({1, 12}));
  v(c.rows, Field("rows", "size of the generated set").Unit("rows").In(kPositiveCount));
  v(c.noise, Field("noise", "sft: share of solutions that are corrupted").In(kShare));
  v(c.ramble,
    Field("ramble", "sft: share of solutions that ramble on before they answer").In(kShare));
  v(c.tool, Field("tool", "the multi-turn form, in which the model calls a calculator"));
}

template <typename V>
void ForEach(SamplingConfig& c, V& v) {
  v(c.temperature, Field("temperature", "0: greedy; training needs more").In({0, 100}));
  v(c.top_k, Field("top_k", "the k likeliest tokens only; 0: off; not in training")
                 .Unit("tokens")
                 .In(kCount));
  v(c.top_p,
    Field("top_p", "the likeliest tokens of this total probability; 1: off; not in training")
        .In({.min = 0, .max = 1, .min_excluded = true}));
  v(c.min_p,
    Field("min_p", "tokens of at least this share of the likeliest one; 0: off; not in training")
        .In(kShareBelowOne));
  v(c.repetition_penalty,
    Field("repetition_penalty", "divides the logits of tokens seen before; 1: off; not in training")
        .In({.min = 0, .max = 100, .min_excluded = true}));
  v(c.presence_penalty,
    Field("presence_penalty",
          "taken from the logits of tokens sampled before; 0: off; not in training")
        .In({-100, 100}));
  v(c.max_new_tokens,
    Field("max_new_tokens", "longest response, of one turn").Unit("tokens").In(kPositiveCount));
  v(c.min_new_tokens,
    Field("min_new_tokens", "no stop before; 0: off; not in training").Unit("tokens").In(kCount));
  v(c.stop, Field("stop", "texts that end a response"));
  v(c.stop_token_ids,
    Field("stop_token_ids", "tokens that end a response, besides the checkpoint's")
        .In({0, 2147483647}));
}

template <typename V>
void ForEach(RolloutConfig& c, V& v) {
  v(c.prompts_per_step,
    Field("prompts_per_step", "groups sampled each step").Unit("prompts").In(kPositiveCount));
  v(c.samples_per_prompt,
    Field("samples_per_prompt", "size of a group").Unit("episodes").In(kPositiveCount));
  v(c.environment, Field("environment", "what an episode is").OneOf({"single_turn", "calculator"}));
  v(c.max_turns,
    Field("max_turns", "most responses of an episode with tools").Unit("turns").In({1, 10000}));
  v(c.max_running,
    Field("max_running", "sequences decoded together").Unit("sequences").In(kPositiveCount));
  v(c.kv_tokens, Field("kv_tokens", "size of the KV cache; 0: what max_running sequences need")
                     .Unit("tokens")
                     .In(kCount));
  v(c.kv_dtype,
    Field("kv_dtype",
          "keys and values in the cache; auto: as the model; float8: half of that, on a "
          "GPU with run.numerics: fast")
        .OneOf({"auto", "float8"}));
  v(c.preemption,
    Field("preemption",
          "where the KV cache is full, the youngest sequence makes room: its keys and values are "
          "computed again later (recompute), or kept in pinned memory of the host (swap), as far "
          "as swap_tokens of it suffice")
        .OneOf({"recompute", "swap"}));
  v(c.swap_tokens, Field("swap_tokens", "size of the host's memory of preemption: swap")
                       .Unit("tokens")
                       .In(kCount));
  v(c.prefill_chunk_tokens, Field("prefill_chunk_tokens", "prompt tokens computed at a time")
                                .Unit("tokens")
                                .In(kPositiveCount));
  v(c.prefix_sharing, Field("prefix_sharing", "compute a group's prompt once"));
  v(c.top_logprobs,
    Field("top_logprobs",
          "record the most likely tokens at each sampled one's place, with their log-probs "
          "(orrery inspect --top-logprobs)")
        .Unit("tokens")
        .In({0, 20}));
}

template <typename V>
void ForEach(RewardConfig& c, V& v) {
  v(c.name, Field("name", "the grader")
                .OneOf({"gsm8k_strict", "gsm8k_flexible", "math", "math_miles", "math_slime",
                        "dapo", "format", "length", "regex", "exact", "program"}));
  v(c.weight, Field("weight", "factor of its score in the sum").In({-1e6, 1e6}));
  v(c.parameters, Field("parameters",
                        "what this grader needs, e.g. {pattern: ...} for regex, {command: ...} "
                        "for program (files it names are looked up beside this file)"));
}

template <typename V>
void ForEach(AlgorithmConfig& c, V& v) {
  v(c.name, Field("name", "advantages and loss")
                .OneOf({"grpo", "dr_grpo", "dapo", "gspo", "rloo", "reinforce_plus_plus",
                        "reinforce_plus_plus_baseline", "cispo"}));
  v(c.divide_by_std,
    Field("divide_by_std", "grpo, dapo, gspo, cispo: advantages over the group's deviation"));
  v(c.whiten_advantages, Field("whiten_advantages",
                               "to mean 0 and deviation 1 over the batch's tokens, after the "
                               "group; reinforce_plus_plus and its baseline form always are"));
  v(c.aggregation,
    Field("aggregation", "how token losses become one number; auto: as the algorithm says")
        .OneOf({"auto", "token_mean", "seq_mean_token_mean", "seq_mean_token_sum",
                "seq_mean_token_sum_norm", "token_sum"}));
  v(c.horizon, Field("horizon",
                     "what seq_mean_token_sum_norm divides an episode's sum by; 0: the tokens that "
                     "the longest episode may have")
                   .Unit("tokens")
                   .In(kCount));
  v(c.clip_low, Field("clip_low",
                      "the probability ratio is clipped below 1 - clip_low; auto: as published, "
                      "3e-4 for gspo, 1 (no bound) for cispo, 0.2 for the rest")
                    .In(kShare));
  v(c.clip_high,
    Field("clip_high",
          "and above 1 + clip_high; auto: 4e-4 for gspo, 0.28 for dapo and cispo, 0.2 for the rest")
        .In(kNotNegative));
  v(c.dual_clip, Field("dual_clip", "bound of the loss where the advantage is negative; 0: off")
                     .In(kNotNegative));
  v(c.kl, Field("kl", "estimator of the divergence from the reference model, the start checkpoint")
              .OneOf({"none", "k1", "k2", "k3", "low_var_kl"}));
  v(c.kl_in, Field("kl_in", "where the divergence goes").OneOf({"loss", "reward"}));
  v(c.kl_coefficient, Field("kl_coefficient", "factor of the divergence").In(kNotNegative));
  v(c.kl_unbiased,
    Field("kl_unbiased", "in the loss: the estimate times new / old probability (DeepSeek-V3.2)"));
  v(c.entropy_coefficient,
    Field("entropy_coefficient", "factor of the entropy bonus").In(kNotNegative));
  v(c.correction, Field("correction", "for samplers that differ from the trainer")
                      .OneOf({"none", "tis", "icepop", "mis"}));
  v(c.correction_low,
    Field("correction_low", "smallest trainer-to-sampler ratio").In(kNotNegative));
  v(c.correction_high, Field("correction_high", "largest trainer-to-sampler ratio").In(kPositive));
  v(c.correction_level, Field("correction_level",
                              "mis: whose ratio it is: a token's, the product "
                              "or the geometric mean of the sequence's")
                            .OneOf({"token", "sequence", "geometric"}));
  v(c.correction_mode,
    Field("correction_mode",
          "mis: outside the bounds the weight is cut from above, cut on both sides, or the token "
          "is left out")
        .OneOf({"truncate", "clip", "mask"}));
  v(c.correction_reject, Field("correction_reject",
                               "mis: besides, leave out what is outside correction_reject_low and "
                               "_high at this level")
                             .OneOf({"none", "token", "sequence", "geometric"}));
  v(c.correction_reject_low,
    Field("correction_reject_low", "smallest ratio that is kept").In(kNotNegative));
  v(c.correction_reject_high,
    Field("correction_reject_high", "largest ratio that is kept").In(kPositive));
  v(c.correction_veto, Field("correction_veto",
                             "mis: one token with a smaller ratio leaves out "
                             "its whole sequence, e.g. 1e-4; 0: off")
                           .In(kShareBelowOne));
  v(c.correction_normalize,
    Field("correction_normalize", "mis: weights are divided by their mean over the batch"));
  v(c.opsm_delta, Field("opsm_delta",
                        "off-policy sequence masking: tokens of negative advantage are left out "
                        "where the mean of old - new log-prob is above this, e.g. 1e-4; 0: off")
                      .Unit("nats")
                      .In(kNotNegative));
  v(c.truncated, Field("truncated",
                       "responses that the token limit ended: graded as they are, "
                       "scored 0, or not trained")
                     .OneOf({"grade", "zero", "mask"}));
  v(c.drop_zero_std_groups, Field("drop_zero_std_groups",
                                  "groups whose scores are all equal are not trained; "
                                  "reinforce_plus_plus, whose baseline is the batch, trains them"));
  v(c.dynamic_sampling, Field("dynamic_sampling", "put new prompts in their place"));
  v(c.max_refills,
    Field("max_refills", "rounds of new prompts in one step").Unit("rounds").In({1, 10000}));
  v(c.overlong_buffer, Field("overlong_buffer",
                             "soft over-long penalty: it grows over this many tokens before the "
                             "limit; 0: off")
                           .Unit("tokens")
                           .In(kCount));
  v(c.overlong_penalty, Field("overlong_penalty", "its size at the limit").In(kNotNegative));
  v(c.max_logprob_diff,
    Field("max_logprob_diff", "stop when train_rollout_logprob_abs_diff/max passes this; 0: off")
        .Unit("nats")
        .In(kNotNegative));
}

template <typename V>
void ForEach(OptimizerConfig& c, V& v) {
  v(c.learning_rate, Field("learning_rate", "at its peak").In({0, 10}));
  v(c.min_learning_rate, Field("min_learning_rate", "at the end of the decay").In({0, 10}));
  v(c.schedule, Field("schedule", "course of the learning rate after the warm-up")
                    .OneOf({"constant", "linear", "cosine"}));
  v(c.warmup_steps, Field("warmup_steps", "linear rise from 0").Unit("optimizer steps").In(kCount));
  v(c.decay_steps, Field("decay_steps", "length of the decay; 0: to the end of the run")
                       .Unit("optimizer steps")
                       .In(kCount));
  v(c.beta1, Field("beta1", "decay of AdamW's first moment").In(kShareBelowOne));
  v(c.beta2, Field("beta2", "decay of AdamW's second moment").In(kShareBelowOne));
  v(c.epsilon, Field("epsilon", "AdamW's").In(kPositive));
  v(c.weight_decay, Field("weight_decay", "decoupled; norms and biases are spared").In({0, 10}));
  v(c.clip_grad_norm,
    Field("clip_grad_norm", "largest global gradient norm; 0: off").In(kNotNegative));
}

template <typename V>
void ForEach(TrainerConfig& c, V& v) {
  v(c.optimizer_steps_per_rollout,
    Field("optimizer_steps_per_rollout", "parts that a rollout is cut into, one step each")
        .Unit("optimizer steps")
        .In(kPositiveCount));
  v(c.micro_batch_tokens, Field("micro_batch_tokens",
                                "packed together in one forward and backward; no effect on the "
                                "result, only on memory and speed")
                              .Unit("tokens")
                              .In(kPositiveCount));
  v(c.recompute, Field("recompute", "activations are kept, or computed again block by block")
                     .OneOf({"none", "block"}));
  v(c.optimizer_offload,
    Field("optimizer_offload",
          "GPU: float32 weights and moments in the host's memory, streamed through each step; "
          "auto: where they do not fit on the GPU; no effect on the result")
        .OneOf({"auto", "never", "always"}));
  v(c.share_prefix, Field("share_prefix", "compute a group's prompt once"));
  v(c.routing_replay,
    Field("routing_replay",
          "rollout: a model with experts is trained with the experts that its tokens were sampled "
          "with (R3), weighed by its own router; no effect where run.numerics is exact and "
          "optimizer_steps_per_rollout 1")
        .OneOf({"none", "rollout"}));
}

template <typename V>
void ForEach(CheckpointConfig& c, V& v) {
  v(c.every, Field("every", "one each so many steps; 0: only at the end").Unit("steps").In(kCount));
  v(c.keep, Field("keep", "newest ones that are kept; 0: all").Unit("checkpoints").In(kCount));
  v(c.keep_every, Field("keep_every", "besides, those of every so many steps for good; 0: none")
                      .Unit("steps")
                      .In(kCount));
}

template <typename V>
void ForEach(EvalConfig& c, V& v) {
  v(c.name, Field("name", "part of the metric eval/NAME/accuracy").Rule(TextRule::kName));
  v(c.data, Field("data", "the problems; keys as in data, but split is test and shuffle false"));
  v(c.every, Field("every", "one each so many steps; 0: only at the start and the end")
                 .Unit("steps")
                 .In(kCount));
  v(c.samples,
    Field("samples", "responses a problem, n of pass@k").Unit("episodes").In(kPositiveCount));
  v(c.temperature, Field("temperature", "0: greedy").In({0, 100}));
  v(c.max_new_tokens,
    Field("max_new_tokens", "longest response; 0: as in sampling").Unit("tokens").In(kCount));
}

template <typename V>
void ForEach(SftConfig& c, V& v) {
  v(c.steps, Field("steps", "0: as many as epochs need").Unit("optimizer steps").In(kCount));
  v(c.epochs, Field("epochs", "passes over the data, where steps is 0")
                  .Unit("epochs")
                  .In({.min = 0, .max = 1e6, .min_excluded = true}));
  v(c.batch_size, Field("batch_size", "of an optimizer step").Unit("sequences").In(kPositiveCount));
  v(c.loss_on,
    Field("loss_on", "what is learnt: the solution, or the prompt too").OneOf({"solution", "all"}));
}

template <typename V>
void ForEach(OutputConfig& c, V& v) {
  v(c.samples, Field("samples", "write samples/step-N.jsonl.zst"));
  v(c.tensorboard, Field("tensorboard", "write TensorBoard event files to tb/"));
  v(c.report, Field("report", "write report.html"));
  v(c.trace, Field("trace",
                   "write trace.json: when each step generated, graded, trained, synchronised "
                   "and saved, for ui.perfetto.dev or chrome://tracing"));
}

template <typename V>
void ForEach(Experiment& c, V& v) {
  v(c.run, Field("run", "where it writes and what makes it repeat"));
  v(c.model, Field("model", "what is trained"));
  v(c.data, Field("data", "the prompts"));
  v(c.story_math, Field("story_math", "the generated task family (data.source: story_math)"));
  v(c.sampling, Field("sampling", "how responses are drawn"));
  v(c.rollout, Field("rollout", "how much is sampled each step, and the engine that does it"));
  v(c.rewards, Field("rewards", "weighted graders; their sum is the score"));
  v(c.algorithm, Field("algorithm", "from scores to advantages to loss"));
  v(c.optimizer, Field("optimizer", "AdamW with float32 master weights"));
  v(c.trainer, Field("trainer", "how a batch becomes optimizer steps"));
  v(c.checkpoint, Field("checkpoint", "when one is written and which are kept"));
  v(c.evals, Field("evals", "evaluations during the run"));
  v(c.sft, Field("sft", "supervised training on prompts and solutions (orrery sft)"));
  v(c.output, Field("output", "what a run writes besides metrics and checkpoints"));
}

// What a member is, for visitors.
struct AnyVisitor {
  template <typename T>
  void operator()(T&, const Field&) {}
};
template <typename T>
concept Section = requires(T& section, AnyVisitor& visitor) {
  ForEach(section, visitor);
};

}  // namespace orrery::configs
