#include "orchestrator/commands/memory.h"

#include <unistd.h>

#include <algorithm>

#include "kernels/cpu/thread_pool.h"
#include "orchestrator/base/status.h"
#include "orchestrator/commands/gpu.h"
#include "orchestrator/loop/evaluation.h"
#include "orchestrator/loop/loop.h"
#include "orchestrator/types.h"
#include "rollout/kv_cache.h"
#include "rollout/response_room.h"
#include "trainer/cpu/training_bytes.h"
#include "trainer/model/weight_store.h"

namespace orrery::commands {
namespace {

// What the driver takes for a process before it asks for anything, where no GPU can be asked.
constexpr int64_t kContextBytes = 600'000'000;
// The binary, its libraries and buffers of no consequence.
constexpr int64_t kProgramBytes = int64_t{1} << 30;

int64_t MachineMemory() {
  return static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
}

plan::Offload ToOffload(const std::string& name) {
  if (name == "always") return plan::Offload::kAlways;
  return name == "never" ? plan::Offload::kNever : plan::Offload::kAuto;
}

// Products of large settings stay numbers.
constexpr double kMostBytes = 1e15;
// An episode without its tokens: texts, outcome, the row it answers.
constexpr double kEpisodeBytes = 2048;

// Of a token as the trainer takes it: id, mask, sampler's log-prob, advantage, reference's log-prob
// (types.h, TrainingSequence); id, position, slot, target and its position in its micro-batch
// (trainer/packer.h); old log-prob and entropy.
constexpr int64_t kTrainedTokenBytes = (4 + 1 + 4 + 4 + 4) + (4 + 4 + 4 + 8 + 4) + (4 + 4);

int64_t EpisodesBytes(double episodes, int64_t tokens, int64_t token_bytes) {
  const double bytes =
      episodes * (static_cast<double>(tokens) * static_cast<double>(token_bytes) + kEpisodeBytes);
  return static_cast<int64_t>(std::min(kMostBytes, bytes));
}

// Id, log-prob and version of a sampled token (types.h, Segment), what was likely, and its experts.
int64_t SampledTokenBytes(const MemoryQuestion& q) {
  const configs::Experiment& e = q.experiment;
  int64_t bytes = sizeof(int32_t) + sizeof(float) + sizeof(PolicyVersion) +
                  e.rollout.top_logprobs * static_cast<int64_t>(sizeof(TokenLogprob));
  if (e.trainer.routing_replay == "rollout") {
    bytes += q.spec.num_moe_layers() * q.spec.experts_per_token * q.spec.expert_id_bytes();
  }
  return bytes;
}

plan::MemoryNeeds NeedsOnHost(const MemoryQuestion& q) {
  const int64_t n = model::WeightLayout(q.spec).num_elements;
  const int64_t size = kernels::SizeOf(ToDType(q.experiment.model));
  plan::MemoryNeeds needs;
  needs.host = {{"program and libraries", kProgramBytes},
                {"weights", n * size},
                {"weights, packed for products", n * size}};
  if (HasReference(q)) needs.host.push_back({"reference weights, and packed", 2 * n * size});
  if (q.for_training) {
    needs.host.push_back({"gradients, float32", 4 * n});
    needs.host.push_back({"master weights, float32", 4 * n});
    needs.host.push_back({"moments of AdamW, float32", 8 * n});
    const trainer::CpuTrainingBytes bytes = trainer::TrainingBytesOnCpu(
        q.spec, n, BoundsOf(q), q.experiment.trainer.recompute == "block", kernels::NumThreads());
    needs.host.push_back({"training: activations and gradients", bytes.sum()});
  }
  AddSamples(q, &needs);
  needs.kv = NeedsOfKv(q, rollout::KvCache::BlockBytes(q.spec));
  // Left open, the cache is content with a quarter of the machine.
  if (!needs.kv.fixed) {
    const int64_t fits = MachineMemory() / 4 / needs.kv.block_bytes;
    needs.kv.wanted = std::max<int64_t>(1, std::min(needs.kv.wanted, fits));
  }
  return needs;
}

void AddHostsPart(const MemoryQuestion& q, plan::MemoryNeeds* needs) {
  const int64_t n = model::WeightLayout(q.spec).num_elements;
  const int64_t size = kernels::SizeOf(ToDType(q.experiment.model));
  needs->host = {{"program and libraries", kProgramBytes}, {"weights, for checkpoints", n * size}};
  AddSamples(q, needs);
  if (q.for_training) {
    needs->saving = {{"master weights and moments, while saving", 12 * n}};
  }
}

// Half as long again as the longest prompt seen, and `response`.
int64_t TokensWith(const MemoryQuestion& q, int64_t response) {
  return std::min(q.spec.max_positions, q.longest_prompt * 3 / 2 + response);
}

// The tail of a turn and the tool's words are small.
int64_t SampledTokens(const MemoryQuestion& q) {
  const configs::Experiment& e = q.experiment;
  return TokensWith(q, e.MaxTurns() * (e.sampling.max_new_tokens + 32));
}

}  // namespace

kernels::DType ToDType(const configs::ModelConfig& config) {
  return config.dtype == "bfloat16" ? kernels::DType::kBFloat16 : kernels::DType::kFloat32;
}

bool HasReference(const MemoryQuestion& q) {
  return q.for_training && !q.supervised && q.experiment.algorithm.kl != "none";
}

trainer::BatchBounds BoundsOf(const MemoryQuestion& q) {
  const configs::Experiment& e = q.experiment;
  trainer::BatchBounds bounds;
  bounds.micro_batch_tokens = e.trainer.micro_batch_tokens;
  bounds.sequence_tokens = SequenceTokens(q);
  if (q.supervised) {
    bounds.step_tokens = e.sft.batch_size * bounds.sequence_tokens;
  } else {
    bounds.step_tokens = e.EpisodesPerStep() * bounds.sequence_tokens;
    bounds.prompt_tokens = e.trainer.share_prefix ? q.longest_prompt : 0;
    bounds.samples = e.rollout.samples_per_prompt;
  }
  return bounds;
}

void AddSamples(const MemoryQuestion& q, plan::MemoryNeeds* needs) {
  const configs::Experiment& e = q.experiment;
  std::vector<plan::Item>& items = needs->samples;
  if (q.for_training && !q.supervised) {
    static_assert(kStepsAlive == 2);  // the name says so
    const double episodes = static_cast<double>(kStepsAlive) * static_cast<double>(MostGroups(e)) *
                            static_cast<double>(e.rollout.samples_per_prompt);
    const int64_t refills = MostRounds(e.algorithm) - 1;
    needs->refills = refills > 0;
    items.push_back({refills == 0 ? "samples of two steps, made and written"
                                  : fmt::format("samples of two steps of {} refills each", refills),
                     EpisodesBytes(episodes, SampledTokens(q), SampledTokenBytes(q))});
    items.push_back(
        {"batches of a step, packed", EpisodesBytes(static_cast<double>(e.EpisodesPerStep()),
                                                    SequenceTokens(q), kTrainedTokenBytes)});
  }
  // One portion is made, one written, one waits (Background); of one evaluation after another.
  int64_t portion = 0;
  for (const configs::EvalConfig& eval : e.evals) {
    const int64_t prompts =
        eval.data.limit > 0 ? std::min(eval.data.limit, kPromptsAtOnce) : kPromptsAtOnce;
    const int64_t most = std::max(e.sampling.max_new_tokens, eval.max_new_tokens);
    portion = std::max(portion, EpisodesBytes(static_cast<double>(prompts * eval.samples),
                                              TokensWith(q, e.MaxTurns() * (most + 32)), 16));
  }
  if (portion > 0) items.push_back({"samples of an evaluation, made and written", 3 * portion});
}

int64_t SequenceTokens(const MemoryQuestion& q) {
  return q.supervised ? TokensWith(q, q.longest_solution * 3 / 2) : SampledTokens(q);
}

plan::KvNeeds NeedsOfKv(const MemoryQuestion& q, int64_t block_bytes) {
  const configs::Experiment& e = q.experiment;
  plan::KvNeeds kv;
  kv.block_bytes = block_bytes;
  kv.block_tokens = kernels::kBlockTokens;
  const bool samples = !q.supervised || !e.evals.empty();
  if (e.rollout.preemption == "swap" && samples) {
    kv.swap = rollout::BlocksFor(e.rollout.swap_tokens);
  }
  if (e.rollout.kv_tokens > 0) {
    kv.wanted = rollout::BlocksFor(e.rollout.kv_tokens);
    kv.fixed = true;
    return kv;
  }
  kv.least = rollout::BlocksToRunAlone(SampledTokens(q));
  kv.wanted = e.rollout.max_running * kv.least;
  if (!samples) kv.wanted = kv.least;
  return kv;
}

absl::StatusOr<plan::MemoryPlan> PlanMemory(const MemoryQuestion& q,
                                            const std::optional<kernels::DeviceLimits>& gpu) {
  if (!gpu) return plan::Decide(NeedsOnHost(q), {.host_bytes = MachineMemory()});
  ASSIGN_OR_RETURN(plan::MemoryNeeds needs, NeedsOnGpu(q, *gpu));
  AddHostsPart(q, &needs);
  needs.offload = ToOffload(q.experiment.trainer.optimizer_offload);
  plan::MemoryLimits limits =
      plan::LimitsOfGpu(gpu->architecture, gpu->memory_bytes, GpuPageBytes());
  limits.host_bytes = MachineMemory();
  return plan::Decide(needs, limits);
}

absl::Status AsSettingsMistake(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) return status;
  return InvalidInput("it does not fit: {}", StatusText(status));
}

absl::StatusOr<kernels::DeviceLimits> GpuOfTable(const std::string& name, int64_t memory_bytes) {
  kernels::DeviceLimits gpu;
  if (name == "h200") {
    gpu = kernels::H200Limits();
  } else if (name == "b200") {
    gpu = kernels::B200Limits();
  } else if (name == "rubin") {
    gpu = kernels::RubinLimits();
  } else {
    return InvalidInput("--gpu {}: h200, b200 or rubin", name);
  }
  if (memory_bytes > 0) gpu.memory_bytes = memory_bytes;
  gpu.free_bytes = std::max<int64_t>(0, gpu.memory_bytes - kContextBytes);
  return gpu;
}

}  // namespace orrery::commands
