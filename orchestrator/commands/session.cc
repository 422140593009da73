#include "orchestrator/commands/session.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>

#include "kernels/cpu/thread_pool.h"
#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"
#include "orchestrator/commands/algorithm.h"
#include "orchestrator/commands/checkpoint_check.h"
#include "orchestrator/commands/gpu.h"
#include "orchestrator/commands/machine.h"
#include "orchestrator/data/open_dataset.h"
#include "orchestrator/hub/hub.h"
#include "orchestrator/run/run_directory.h"
#include "orchestrator/run/step_metrics.h"
#include "rewards/grader.h"
#include "rewards/rubric.h"
#include "rollout/kv_cache.h"
#include "rollout/response_room.h"
#include "trainer/cpu/cpu_executor.h"

namespace orrery::commands {
namespace {

constexpr uint64_t kDataStream = 0x64617461;
// Evaluations ask every run the same questions, whatever its seed, so that runs can be compared.
constexpr uint64_t kEvalData = 0x74657374;
constexpr uint64_t kInitStream = 0x696e6974;

absl::StatusOr<std::string> Resolve(const std::string& source, hub::Kind kind,
                                    const std::vector<std::string>& patterns = {}) {
  hub::ResolveOptions options;
  options.kind = kind;
  options.patterns = patterns;
  const bool terminal = ::isatty(STDERR_FILENO) != 0;
  if (terminal) {
    options.progress = [](const hub::Progress& p) {
      std::fprintf(stderr, "\r%.*s  %lld of %lld MB ", static_cast<int>(p.file.size()),
                   p.file.data(), static_cast<long long>(p.done_bytes >> 20),
                   static_cast<long long>(p.total_bytes >> 20));
    };
  }
  absl::StatusOr<std::string> path = hub::Resolve(source, options);
  if (terminal && source.starts_with("hf:")) std::fprintf(stderr, "\n");
  return path;
}

std::vector<std::string> ModelFiles() { return {"*.json", "*.safetensors", "*.jinja"}; }

// A run's folder is named easily where one of its checkpoints is meant, a file where its folder is.
absl::Status CheckIsModelFolder(const std::string& folder) {
  std::error_code error;
  if (std::filesystem::exists(folder, error) && !std::filesystem::is_directory(folder, error)) {
    return InvalidInput(
        "'{}' is a file; name the folder of a model (config.json, tokenizer.json, "
        "model.safetensors), which `orrery import` makes of a GGUF file",
        folder);
  }
  if (!run::HoldsRun(folder)) return absl::OkStatus();
  const run::Checkpoints checkpoints(run::RunPaths(folder).checkpoints());
  ASSIGN_OR_RETURN(const std::optional<int64_t> latest, checkpoints.Latest());
  return InvalidInput("'{}' is a run; name one of its checkpoints, {}", folder,
                      latest ? "such as " + checkpoints.Path(*latest) : "of which it has none yet");
}

absl::StatusOr<std::string> ResolveModelPath(const configs::Experiment& e,
                                             const std::vector<std::string>& patterns) {
  absl::StatusOr<std::string> folder = Resolve(e.model.path, hub::Kind::kModel, patterns);
  const absl::Status status = folder.ok() ? CheckIsModelFolder(*folder) : folder.status();
  if (status.ok()) return folder;
  const std::string where = e.Where("model.path");
  const bool relative = absl::IsNotFound(status) && !e.model.path.starts_with("hf:") &&
                        !e.model.path.starts_with('/');
  if (!relative) return Annotate(status, where);
  return NotFound("{}: {}; it was looked for {}in the working directory", where, StatusText(status),
                  where.starts_with("--") ? "" : "beside the YAML file and ");
}

// REQUIRES: the device is resolved.
model::Packing PackingFor(const configs::Experiment& e) {
  return e.run.device == "cuda" ? model::Packing::kNone : model::Packing::kForCpu;
}

absl::StatusOr<std::unique_ptr<model::WeightStore>> LoadWeights(const configs::ModelConfig& config,
                                                                const model::ModelSpec& spec,
                                                                const std::string& folder,
                                                                uint64_t seed,
                                                                model::Packing packing) {
  const int64_t bytes = model::WeightLayout(spec).num_elements * kernels::SizeOf(ToDType(config));
  const bool packed = packing == model::Packing::kForCpu;
  RETURN_IF_ERROR(CheckMappable(packed ? 2 * bytes : bytes,
                                packed ? "the weights and their packed copy" : "the weights",
                                "use a smaller model, or model.dtype: bfloat16"));
  auto store = std::make_unique<model::WeightStore>(spec, ToDType(config), packing);
  store->BeginUpdate();
  if (config.initialize == "random") {
    store->Randomise(HashSeed({seed, kInitStream}));
  } else {
    RETURN_IF_ERROR(store->LoadCheckpoint(folder));
  }
  store->Commit(0);
  return store;
}

absl::StatusOr<trainer::ScheduleOptions> ToSchedule(const configs::Experiment& e,
                                                    int64_t total_steps) {
  trainer::ScheduleOptions schedule;
  ASSIGN_OR_RETURN(schedule.kind, trainer::ParseScheduleKind(e.optimizer.schedule));
  schedule.learning_rate = e.optimizer.learning_rate;
  schedule.min_learning_rate = e.optimizer.min_learning_rate;
  schedule.warmup_steps = e.optimizer.warmup_steps;
  schedule.decay_steps = e.optimizer.decay_steps;
  if (schedule.decay_steps == 0) {
    schedule.decay_steps = std::max<int64_t>(1, total_steps - schedule.warmup_steps);
  }
  return schedule;
}

int64_t OptimizerSteps(const configs::Experiment& e, bool supervised, int64_t rows) {
  if (!supervised) return e.run.steps * e.trainer.optimizer_steps_per_rollout;
  if (e.sft.steps > 0) return e.sft.steps;
  return std::max<int64_t>(
      1, static_cast<int64_t>(e.sft.epochs * static_cast<double>(rows)) / e.sft.batch_size);
}

MemoryQuestion QuestionOf(const SessionOptions& options, const model::ModelSpec& spec,
                          const Session& session) {
  return {session.experiment,     spec,
          options.for_training,   options.supervised,
          session.longest_prompt, session.longest_solution};
}

absl::StatusOr<std::unique_ptr<trainer::PolicyTrainer>> MakeTrainer(const configs::Experiment& e,
                                                                    const SessionOptions& options,
                                                                    const Session& session) {
  trainer::PolicyTrainerOptions t;
  if (options.supervised) {
    t.loss.algorithm = trainer::Algorithm::kReinforce;
    t.loss.aggregation = trainer::Aggregation::kTokenMean;
  } else {
    RETURN_IF_ERROR(SetPolicyOptions(e, &t));
  }
  t.optimizer.beta1 = e.optimizer.beta1;
  t.optimizer.beta2 = e.optimizer.beta2;
  t.optimizer.epsilon = e.optimizer.epsilon;
  t.optimizer.weight_decay = e.optimizer.weight_decay;
  t.optimizer.clip_grad_norm = e.optimizer.clip_grad_norm;
  ASSIGN_OR_RETURN(t.schedule,
                   ToSchedule(e, OptimizerSteps(e, options.supervised, session.dataset->size())));
  t.micro_batch_tokens = e.trainer.micro_batch_tokens;
  t.share_prefix = e.trainer.share_prefix;
  t.replay_routing = !options.supervised && e.trainer.routing_replay == "rollout";
  t.recompute = e.trainer.recompute == "block";
  t.model_folder = session.model_folder;
  std::unique_ptr<model::WeightStore> reference;
  if (!options.supervised && e.algorithm.kl != "none") {
    ASSIGN_OR_RETURN(reference, LoadWeights(e.model, session.store->spec(), session.model_folder,
                                            static_cast<uint64_t>(e.run.seed), PackingFor(e)));
  }
  if (session.gpu == nullptr) {
    return trainer::MakeCpuTrainer(session.store.get(), std::move(reference), t);
  }
  ASSIGN_OR_RETURN(std::unique_ptr<trainer::Executor> executor,
                   session.gpu->MakeExecutor(t, reference.get(),
                                             QuestionOf(options, session.store->spec(), session)));
  return trainer::PolicyTrainer::Create(std::move(executor), t);
}

// A dataset without the rows at some indices.
class Subset : public data::Dataset {
 public:
  Subset(std::unique_ptr<data::Dataset> all, std::vector<int64_t> kept)
      : all_(std::move(all)), kept_(std::move(kept)) {}
  int64_t size() const override { return static_cast<int64_t>(kept_.size()); }
  Prompt Row(int64_t index) const override { return all_->Row(kept_[index]); }
  const std::string& fingerprint() const override { return all_->fingerprint(); }

 private:
  const std::unique_ptr<data::Dataset> all_;
  const std::vector<int64_t> kept_;
};

// Looks at the length of every prompt, before anything is sampled: a long one is an error that
// names its row, or left out (data.overlong_prompts). Of generated families about `sampled` rows
// are looked at: they are all alike, and there may be a great many. Returns the longest length
// kept.
absl::StatusOr<int64_t> LimitPrompts(const configs::DataConfig& config, const TextCodec& codec,
                                     int64_t context, int64_t sampled,
                                     std::unique_ptr<data::Dataset>* dataset) {
  const bool skip = config.overlong_prompts == "skip";
  const int64_t limit = config.max_prompt_tokens > 0 ? config.max_prompt_tokens : context - 1;
  const int64_t size = (*dataset)->size();
  const bool generated = config.source == "story_math" && !skip;
  const int64_t stride = generated ? std::max<int64_t>(1, size / sampled) : 1;
  const int64_t looked_at = (size + stride - 1) / stride;
  std::vector<int64_t> lengths(static_cast<size_t>(looked_at));
  std::vector<absl::Status> statuses(lengths.size());
  kernels::ParallelFor(looked_at, [&](int64_t i) {
    const absl::StatusOr<std::vector<int32_t>> ids =
        codec.EncodePrompt((*dataset)->Row(i * stride));
    statuses[i] = ids.status();
    if (ids.ok()) lengths[i] = static_cast<int64_t>(ids->size());
  });
  std::vector<int64_t> kept;
  int64_t longest = 0;
  for (int64_t i = 0; i < looked_at; ++i) {
    RETURN_IF_ERROR(statuses[i]);
    if (lengths[i] <= limit) {
      kept.push_back(i);
      longest = std::max(longest, lengths[i]);
    } else if (!skip) {
      return InvalidInput(
          "{}: the prompt of row {} has {} tokens, more than {}; shorten it, set "
          "data.overlong_prompts: skip, or raise {}",
          config.source, (*dataset)->Row(i * stride).id, lengths[i], limit,
          config.max_prompt_tokens > 0 ? "data.max_prompt_tokens" : "the model's context");
    }
  }
  if (!skip || static_cast<int64_t>(kept.size()) == size) return longest;
  if (kept.empty()) {
    return InvalidInput("{}: every prompt is longer than {} tokens", config.source, limit);
  }
  std::fprintf(stderr, "%s: %lld of %lld prompts are longer than %lld tokens and left out\n",
               config.source.c_str(),
               static_cast<long long>(size - static_cast<int64_t>(kept.size())),
               static_cast<long long>(size), static_cast<long long>(limit));
  *dataset = std::make_unique<Subset>(std::move(*dataset), std::move(kept));
  return longest;
}

// Rows of a generated family to look at. Where the size of the cache is given, the longest prompt
// has to be known, not guessed.
int64_t RowsToSample(const configs::Experiment& e) {
  return e.rollout.kv_tokens > 0 ? 1 << 16 : 256;
}

// That a cache of `blocks` holds the longest response to the longest prompt. What the scheduler
// admits by, asked before a run has a folder. `key` set max_new_tokens; `source` has the prompts.
absl::Status CheckHoldsResponse(const configs::Experiment& e, int64_t blocks, int64_t prompt,
                                int64_t max_new_tokens, int64_t max_positions, std::string_view key,
                                std::string_view source) {
  const int64_t tokens = rollout::LongestSequence(prompt, max_new_tokens, max_positions);
  const int64_t least = rollout::BlocksToRunAlone(tokens);
  if (blocks >= least) return absl::OkStatus();
  return InvalidInput(
      "{}: {} is too small for one response: the longest prompt of {} has {} tokens, and {} allows "
      "{} new ones, which takes {} tokens of KV cache (in blocks of {}); set it to {} or more{}, "
      "or "
      "lower {}",
      e.Where("rollout.kv_tokens"), e.rollout.kv_tokens, source, prompt, key, tokens - prompt,
      least * kernels::kBlockTokens, kernels::kBlockTokens, least * kernels::kBlockTokens,
      e.rollout.kv_tokens > 0 ? ", or to 0 to have it computed" : "", key);
}

// Rows spread over the dataset, for sizing memory.
template <typename Use>
absl::Status ForSampledRows(const data::Dataset& dataset, const Use& use) {
  constexpr int64_t kSampled = 256;
  const int64_t stride = std::max<int64_t>(1, dataset.size() / kSampled);
  for (int64_t row = 0; row < dataset.size(); row += stride) RETURN_IF_ERROR(use(dataset.Row(row)));
  return absl::OkStatus();
}

// Tokens of the longest prompt and of the longest solution among them.
absl::Status MeasureRows(bool supervised, Session* session) {
  const rollout::CheckpointCodec& codec = *session->codec;
  return ForSampledRows(*session->dataset, [&](const Prompt& row) {
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids, codec.EncodePrompt(row));
    session->longest_prompt = std::max(session->longest_prompt, static_cast<int64_t>(ids.size()));
    if (!supervised) return absl::OkStatus();
    auto solution = static_cast<int64_t>(codec.Encode(row.solution).size()) + 1;
    for (const Message& m : row.solution_messages) {
      solution += static_cast<int64_t>(codec.Encode(m.content).size()) + 16;  // and its frame
    }
    session->longest_solution = std::max(session->longest_solution, solution);
    return absl::OkStatus();
  });
}

absl::Status CheckKv(const rollout::EngineOptions& options, const model::ModelSpec& spec) {
  const int64_t bytes = rollout::KvCache::BlockBytes(spec);
  RETURN_IF_ERROR(CheckMappable(options.kv_blocks * bytes, "the keys and values",
                                "set a smaller rollout.kv_tokens or rollout.max_running"));
  return CheckMappable(options.scheduler.swap_blocks * bytes, "swapped keys and values",
                       "set a smaller rollout.swap_tokens");
}

rollout::EngineOptions ToEngine(const configs::Experiment& e, const Session& session) {
  rollout::EngineOptions options;
  options.scheduler.max_running = e.rollout.max_running;
  options.scheduler.prefill_chunk_tokens = e.rollout.prefill_chunk_tokens;
  options.scheduler.max_positions = session.store->spec().max_positions;
  options.scheduler.swap_blocks = session.plan.needs.kv.swap;
  options.kv_blocks = session.plan.kv_blocks;
  return options;
}

absl::StatusOr<std::unique_ptr<EpisodeRunner>> MakeRunner(const configs::Experiment& e,
                                                          const Session& session,
                                                          const SamplingOptions& sampling,
                                                          bool recorded) {
  ASSIGN_OR_RETURN(std::unique_ptr<rollout::Environment> environment,
                   rollout::MakeEnvironment(e.rollout.environment));
  rollout::RunnerOptions options;
  options.sampling = sampling;
  options.max_turns = e.MaxTurns();
  options.max_positions = session.store->spec().max_positions;
  options.share_prompt = e.rollout.prefix_sharing;
  options.return_routed_experts = recorded && e.trainer.routing_replay == "rollout";
  options.top_logprobs = recorded ? e.rollout.top_logprobs : 0;
  return std::make_unique<rollout::Runner>(session.engine.get(), session.codec.get(),
                                           std::move(environment), options);
}

absl::StatusOr<EvalTask> MakeEval(const configs::Experiment& e, const configs::EvalConfig& config,
                                  const Session& session) {
  EvalTask task;
  task.name = config.name;
  task.every = config.every;
  task.samples = config.samples;
  task.seed = static_cast<uint64_t>(e.run.seed);
  ASSIGN_OR_RETURN(task.dataset,
                   data::OpenDataset(config.data, e.story_math, HashSeed({kEvalData, kDataStream}),
                                     ResolveDataSource));
  const int64_t context = session.store->spec().max_positions;
  ASSIGN_OR_RETURN(const int64_t longest, LimitPrompts(config.data, *session.codec, context,
                                                       RowsToSample(e), &task.dataset));
  SamplingOptions sampling = ToSampling(e.sampling, session.store->spec());
  sampling.temperature = static_cast<float>(config.temperature);
  const bool own = config.max_new_tokens > 0;
  if (own) sampling.max_new_tokens = config.max_new_tokens;
  RETURN_IF_ERROR(CheckHoldsResponse(e, session.plan.kv_blocks, longest, sampling.max_new_tokens,
                                     context,
                                     own ? "its max_new_tokens" : "sampling.max_new_tokens",
                                     fmt::format("the evaluation '{}'", config.name)));
  ASSIGN_OR_RETURN(task.runner, MakeRunner(e, session, sampling, /*recorded=*/false));
  task.grader = session.grader.get();
  return task;
}

absl::StatusOr<std::unique_ptr<Grader>> MakeGrader(const configs::Experiment& e) {
  std::vector<rewards::RewardSpec> specs;
  for (const configs::RewardConfig& r : e.rewards)
    specs.push_back({r.name, r.weight, r.parameters});
  if (specs.empty()) specs.push_back({"gsm8k_strict", 1.0, {}});
  if (e.algorithm.overlong_buffer > 0) {
    specs.push_back({"length",
                     e.algorithm.overlong_penalty,
                     {{"mode", "dapo"},
                      {"max_length", std::to_string(e.sampling.max_new_tokens)},
                      {"buffer", std::to_string(e.algorithm.overlong_buffer)}}});
  }
  ASSIGN_OR_RETURN(const rewards::TruncationPolicy truncation,
                   rewards::ParseTruncationPolicy(e.algorithm.truncated));
  ASSIGN_OR_RETURN(std::unique_ptr<rewards::Rubric> rubric,
                   rewards::Rubric::Create(specs, truncation));
  return std::make_unique<rewards::RubricGrader>(std::move(rubric), kernels::NumThreads());
}

absl::Status CheckRoutingReplay(const configs::Experiment& e, const model::ModelSpec& spec) {
  if (e.trainer.routing_replay == "none" || spec.has_moe()) return absl::OkStatus();
  return InvalidInput("{}: {} has no experts, so there is no routing to replay; set none",
                      e.Where("trainer.routing_replay"), e.model.path);
}

absl::Status CheckTokenizerFits(const Session& session, const model::ModelSpec& spec) {
  const int64_t tokens = session.codec->tokenizer().vocab_size();
  const int64_t rows = spec.vocab_size;
  if (tokens <= rows) return absl::OkStatus();
  return InvalidInput(
      "{}: the tokenizer has {} ids, the model's vocab_size is {}: they do not belong "
      "together",
      session.model_folder, tokens, rows);
}

// What is read before anything large is allocated: tokenizer, data, the model's configuration; and
// what all of it will take.
absl::StatusOr<model::ModelSpec> Prepare(const SessionOptions& options,
                                         const std::optional<kernels::DeviceLimits>& gpu,
                                         Session* session) {
  const configs::Experiment& e = session->experiment;
  ASSIGN_OR_RETURN(session->codec,
                   rollout::CheckpointCodec::Load(session->model_folder, e.data.chat_variables));
  const uint64_t seed = static_cast<uint64_t>(e.run.seed);
  ASSIGN_OR_RETURN(
      session->dataset,
      data::OpenDataset(e.data, e.story_math, HashSeed({seed, kDataStream}), ResolveDataSource));
  ASSIGN_OR_RETURN(const model::ModelSpec spec, model::LoadModelSpec(session->model_folder));
  RETURN_IF_ERROR(CheckTokenizerFits(*session, spec));
  RETURN_IF_ERROR(CheckRoutingReplay(e, spec));
  ASSIGN_OR_RETURN(const int64_t longest, LimitPrompts(e.data, *session->codec, spec.max_positions,
                                                       RowsToSample(e), &session->dataset));
  RETURN_IF_ERROR(MeasureRows(options.supervised, session));
  ASSIGN_OR_RETURN(session->plan, PlanMemory(QuestionOf(options, spec, *session), gpu));
  const plan::KvNeeds& kv = session->plan.needs.kv;
  if (kv.fixed && options.for_training && !options.supervised) {
    RETURN_IF_ERROR(CheckHoldsResponse(e, kv.wanted, longest, e.sampling.max_new_tokens,
                                       spec.max_positions, "sampling.max_new_tokens",
                                       "data.source"));
  }
  return spec;
}

}  // namespace

absl::StatusOr<std::string> ResolveDataSource(const std::string& source) {
  return Resolve(source, hub::Kind::kDataset);
}

absl::StatusOr<std::string> ResolveModelSource(const std::string& source) {
  return Resolve(source, hub::Kind::kModel, ModelFiles());
}

SamplingOptions ToSampling(const configs::SamplingConfig& config, const model::ModelSpec& spec) {
  SamplingOptions s;
  s.temperature = static_cast<float>(config.temperature);
  s.top_k = config.top_k;
  s.top_p = static_cast<float>(config.top_p);
  s.min_p = static_cast<float>(config.min_p);
  s.repetition_penalty = static_cast<float>(config.repetition_penalty);
  s.presence_penalty = static_cast<float>(config.presence_penalty);
  s.max_new_tokens = config.max_new_tokens;
  s.min_new_tokens = config.min_new_tokens;
  s.stop = config.stop;
  std::set<int32_t> stops(spec.eos_token_ids.begin(), spec.eos_token_ids.end());
  for (const int64_t id : config.stop_token_ids) stops.insert(static_cast<int32_t>(id));
  for (const int32_t id : stops) {
    if (id >= 0 && id < spec.vocab_size) s.stop_token_ids.push_back(id);
  }
  return s;
}

std::function<void(run::StepMetrics*)> MachineMetrics(const Session* session) {
  return [session, turns = 0.0, engine = EngineStats()](run::StepMetrics* metrics) mutable {
    if (session->gpu != nullptr) {
      const GpuMemoryUse use = session->gpu->MemoryUse();
      run::AddGpuMemory({use.peak_bytes, session->plan.gpu_bytes(),
                         use.turn_seconds - std::exchange(turns, use.turn_seconds)},
                        metrics);
    }
    const EngineStats before = std::exchange(engine, session->engine->stats());
    if (engine.steps == before.steps) return;
    run::AddEngineUse({engine.preemptions - before.preemptions, engine.swaps - before.swaps,
                       engine.swapped_out_bytes + engine.swapped_in_bytes -
                           before.swapped_out_bytes - before.swapped_in_bytes},
                      metrics);
  };
}

absl::StatusOr<plan::MemoryPlan> PlanSession(const configs::Experiment& experiment,
                                             const SessionOptions& options,
                                             const std::optional<kernels::DeviceLimits>& gpu) {
  Session session;
  session.experiment = experiment;
  kernels::SetNumThreads(static_cast<int>(experiment.run.threads));
  ASSIGN_OR_RETURN(session.model_folder, ResolveModelPath(experiment, {"*.json", "*.jinja"}));
  RETURN_IF_ERROR(Prepare(options, gpu, &session).status());
  return session.plan;
}

absl::StatusOr<std::unique_ptr<Session>> MakeSession(const configs::Experiment& experiment,
                                                     const SessionOptions& options) {
  auto session = std::make_unique<Session>();
  session->experiment = experiment;
  ResolveDevice(&session->experiment);
  const configs::Experiment& e = session->experiment;
  kernels::SetNumThreads(static_cast<int>(e.run.threads));
  ASSIGN_OR_RETURN(session->model_folder, ResolveModelPath(e, ModelFiles()));
  if (e.model.initialize != "random") {
    RETURN_IF_ERROR(CheckCheckpoint(session->model_folder, CheckpointUse::kModel));
  }
  if (e.run.device != "cuda" && e.rollout.kv_dtype != "auto") {
    return Precondition("rollout.kv_dtype: {} is for a GPU, and there is none: set it to auto",
                        e.rollout.kv_dtype);
  }
  std::optional<kernels::DeviceLimits> gpu;
  if (e.run.device == "cuda") {
    ASSIGN_OR_RETURN(gpu, GpuAtHand());
  }
  ASSIGN_OR_RETURN(const model::ModelSpec spec, Prepare(options, gpu, session.get()));
  RETURN_IF_ERROR(AsSettingsMistake(plan::CheckFits(session->plan)));
  const uint64_t seed = static_cast<uint64_t>(e.run.seed);
  ASSIGN_OR_RETURN(session->store,
                   LoadWeights(e.model, spec, session->model_folder, seed, PackingFor(e)));
  ASSIGN_OR_RETURN(session->grader, MakeGrader(e));
  if (gpu) {
    ASSIGN_OR_RETURN(session->gpu, Gpu::Open(e, session->plan, session->store.get()));
  }
  if (options.for_training) {
    ASSIGN_OR_RETURN(session->trainer, MakeTrainer(e, options, *session));
  }
  if (session->gpu != nullptr) {
    ASSIGN_OR_RETURN(session->engine, session->gpu->MakeEngine(session->codec.get()));
  } else {
    const rollout::EngineOptions engine = ToEngine(e, *session);
    RETURN_IF_ERROR(CheckKv(engine, spec));
    session->engine =
        std::make_unique<rollout::Engine>(session->store.get(), session->codec.get(), engine);
  }
  ASSIGN_OR_RETURN(
      session->runner,
      MakeRunner(e, *session, ToSampling(e.sampling, session->store->spec()), /*recorded=*/true));
  for (const configs::EvalConfig& eval : e.evals) {
    ASSIGN_OR_RETURN(EvalTask task, MakeEval(e, eval, *session));
    session->evals.push_back(std::move(task));
  }
  return session;
}

}  // namespace orrery::commands
