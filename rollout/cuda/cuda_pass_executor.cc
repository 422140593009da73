#include "rollout/cuda/cuda_pass_executor.h"

#include <algorithm>

#include "orchestrator/base/status.h"
#include "rollout/response_room.h"

namespace orrery::rollout::cuda {

using kernels::kBlockTokens;
using kernels::cuda::MemoryTurns;

OpsLimits CudaPassExecutor::ToOpsLimits(const CudaPassExecutorOptions& options) {
  const SchedulerLimits& s = options.scheduler;
  OpsLimits limits;
  // Each running response may bring one row beyond the budget of prompts.
  limits.max_rows = s.max_running + s.prefill_chunk_tokens;
  limits.max_samples = s.max_running + s.max_draws;
  limits.max_logit_rows = std::min<int64_t>(limits.max_samples, 2048);
  limits.max_positions = s.max_positions;
  limits.kv_blocks = options.kv_blocks;
  limits.swap_blocks = s.swap_blocks;
  limits.top_logprobs = options.top_logprobs;
  limits.kv_format = options.kv_format;
  limits.numerics = options.numerics;
  limits.pool = options.pool;
  limits.kv_at_once = options.turns == nullptr;
  return limits;
}

CudaPassExecutor::CudaPassExecutor(std::shared_ptr<DeviceWeights> weights,
                                   const model::WeightStore* host,
                                   const kernels::DeviceLimits& device,
                                   const CudaPassExecutorOptions& options)
    : weights_(std::move(weights)),
      host_(host),
      pool_(options.kv_blocks),
      turns_(options.turns),
      top_logprobs_(options.top_logprobs),
      kv_format_(options.kv_format),
      executor_(weights_.get(), device, ToOpsLimits(options)) {
  if (turns_ == nullptr) return;
  turns_->Register(MemoryTurns::kRollout, {[this] {
                                             CHECK_EQ(pool_.num_free(), pool_.num_blocks())
                                                 << "responses wait for their keys and values";
                                             executor_.GiveBackKv();
                                           },
                                           [this] { executor_.TakeKv(); }});
}

CudaPassExecutor::~CudaPassExecutor() {
  if (turns_ != nullptr) turns_->Register(MemoryTurns::kRollout, {});
}

absl::Status CudaPassExecutor::TakeWeights(PolicyVersion version) {
  if (host_ == nullptr) {
    if (weights_->version() == version) return absl::OkStatus();
    return Precondition("the weights on the device are of version {}, not {}", weights_->version(),
                        version);
  }
  RETURN_IF_ERROR(CheckHolds(*host_, version));
  weights_->CopyFrom(*host_, executor_.stream());
  return absl::OkStatus();
}

std::unique_lock<std::mutex> CudaPassExecutor::TakeTurn() {
  if (turns_ == nullptr) return {};
  return turns_->Take(MemoryTurns::kRollout);
}

void CudaPassExecutor::Sleep() {
  const std::unique_lock<std::mutex> turn = TakeTurn();
  executor_.GiveBackKv();
  executor_.TrimPool();
  weights_->Sleep(executor_.stream());
}

void CudaPassExecutor::Wake() {
  weights_->Wake(executor_.stream());
  const std::unique_lock<std::mutex> turn = TakeTurn();
  executor_.TakeKv();
}

absl::Status CudaPassExecutor::Admit(const GenerationRequest& request) const {
  if (request.top_logprobs <= top_logprobs_) return absl::OkStatus();
  return InvalidInput("{} top log-probs are asked for; this engine was made for {}",
                      request.top_logprobs, top_logprobs_);
}

void CudaPassExecutor::AddRows(const Work& w, Step* step) const {
  const auto sequence = static_cast<int32_t>(step->tables.size());
  const std::span<const int32_t> blocks = w.blocks();
  const int64_t end = w.first_position + w.count;
  step->tables.emplace_back(blocks.begin(), blocks.begin() + BlocksFor(end));
  for (int64_t p = w.first_position; p < end; ++p) {
    Step::Row row;
    if (w.response == nullptr) {
      row.token_id = w.request->what.prompt_ids[p];
    } else if (p < w.request->num_known(*w.response)) {
      row.token_id = w.request->TokenAt(*w.response, p);
    } else {
      row.token_id = -1 - w.response->pending_draw;
    }
    row.position = static_cast<int32_t>(p);
    row.slot = static_cast<int32_t>(blocks[p / kBlockTokens] * kBlockTokens + p % kBlockTokens);
    row.sequence = sequence;
    step->rows.push_back(row);
  }
}

// What penalties and bans read. The token that is still being drawn counts too: this waits for it.
void CudaPassExecutor::AddIds(const Draw& draw, Step* step, Step::Sample* sample) {
  const GenerationRequest& what = draw.request->what;
  const SamplingOptions& s = what.sampling;
  const Generation& g = draw.response->generation;
  sample->first_id = static_cast<int64_t>(step->ids.size());
  if (s.repetition_penalty != 1 || s.presence_penalty != 0) {
    step->ids.insert(step->ids.end(), what.prompt_ids.begin(), what.prompt_ids.end());
    step->ids.insert(step->ids.end(), g.token_ids.begin(), g.token_ids.end());
    if (draw.response->num_pending > 0) {
      step->ids.push_back(executor_.Peek(draw.response->pending_draw));
    }
    sample->params.num_prompt_ids = static_cast<int32_t>(what.prompt_ids.size());
    sample->params.num_ids =
        static_cast<int32_t>(static_cast<int64_t>(step->ids.size()) - sample->first_id);
  }
  if (static_cast<int64_t>(sample->params.position) < s.min_new_tokens) {
    step->ids.insert(step->ids.end(), s.stop_token_ids.begin(), s.stop_token_ids.end());
    sample->params.num_banned_ids = static_cast<int32_t>(s.stop_token_ids.size());
  }
}

void CudaPassExecutor::AddSample(const Draw& draw, int32_t row, Step* step) {
  const SamplingOptions& s = draw.request->what.sampling;
  Step::Sample sample;
  sample.row = row;
  sample.params.temperature = s.temperature;
  sample.params.top_k = static_cast<int32_t>(std::min<int64_t>(s.top_k, spec().vocab_size));
  sample.params.top_p = s.top_p;
  sample.params.min_p = s.min_p;
  sample.params.repetition_penalty = s.repetition_penalty;
  sample.params.presence_penalty = s.presence_penalty;
  sample.params.seed = draw.request->what.seeds[draw.response->index];
  sample.params.position = draw.response->generation.token_ids.size() +
                           static_cast<uint64_t>(draw.response->num_pending);
  AddIds(draw, step, &sample);
  step->samples.push_back(sample);
}

void CudaPassExecutor::Launch(std::span<const Work> pass, std::span<const Draw> draws,
                              const Copies& copies) {
  Step step;
  step.copies = copies;
  step.routed_experts = WantsRoutedExperts(pass);
  step.top_logprobs = MostTopLogprobs(draws) > 0;
  size_t next = 0;
  for (size_t i = 0; i < pass.size(); ++i) {
    AddRows(pass[i], &step);
    const auto last = static_cast<int32_t>(step.rows.size()) - 1;
    for (; next < draws.size() && draws[next].work == i; ++next) {
      AddSample(draws[next], last, &step);
    }
  }
  const std::unique_lock<std::mutex> turn = TakeTurn();
  executor_.Launch(step);
}

void CudaPassExecutor::Swap(std::span<const KvSwap> swaps) {
  const std::unique_lock<std::mutex> turn = TakeTurn();
  executor_.Swap(swaps);
}

int64_t CudaPassExecutor::BlockBytes() const {
  return CudaOps::KvBytes(spec(), weights_->dtype(), 1, kv_format_);
}

PassResult CudaPassExecutor::Collect() {
  StepResult from = executor_.Collect();
  PassResult result;
  result.samples.resize(from.token_ids.size());
  for (size_t i = 0; i < result.samples.size(); ++i) {
    result.samples[i] = {from.token_ids[i], from.logprobs[i], from.entropies[i],
                         from.finite[i] != 0};
  }
  result.routed_experts = std::move(from.routed_experts);
  result.top_logprobs = std::move(from.top_logprobs);
  result.num_top = result.top_logprobs.empty() ? 0 : top_logprobs_;
  return result;
}

}  // namespace orrery::rollout::cuda
