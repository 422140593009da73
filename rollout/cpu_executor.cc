#include "rollout/cpu_executor.h"

#include <algorithm>

#include "kernels/cpu/thread_pool.h"
#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"

namespace orrery::rollout {
namespace {

using kernels::kBlockTokens;
using kernels::SampleResult;

constexpr int64_t kShardRows = 66;  // at most, where no sequence has more; whole tiles of Linear
constexpr int64_t kLeastShardRows = 8;

kernels::SamplerParams ToParams(const SamplingOptions& s) {
  kernels::SamplerParams params;
  params.temperature = s.temperature;
  params.top_k = s.top_k;
  params.top_p = s.top_p;
  params.min_p = s.min_p;
  params.repetition_penalty = s.repetition_penalty;
  params.presence_penalty = s.presence_penalty;
  return params;
}

SampleResult Sample(const Draw& draw, std::span<const float> logits, std::vector<float>* scratch) {
  const GenerationRequest& what = draw.request->what;
  const Generation& generation = draw.response->generation;
  kernels::SamplerInput input;
  input.logits = logits;
  input.prompt_ids = what.prompt_ids;
  input.generated_ids = generation.token_ids;
  input.seed = what.seeds[draw.response->index];
  input.position = generation.token_ids.size();
  if (static_cast<int64_t>(input.position) < what.sampling.min_new_tokens) {
    input.banned_ids = what.sampling.stop_token_ids;
  }
  return kernels::SampleToken(input, ToParams(what.sampling), scratch);
}

}  // namespace

CpuExecutor::CpuExecutor(const model::WeightStore* weights, const CpuExecutorOptions& options)
    : weights_(*weights),
      options_(options),
      rope_(weights->spec().rope_inv_freq, options.max_positions),
      cache_(weights->spec(), options.kv_blocks) {
  if (options.swap_blocks > 0) {
    swapped_ = std::make_unique<KvCache>(weights->spec(), options.swap_blocks);
  }
}

void CpuExecutor::Swap(std::span<const KvSwap> swaps) {
  CHECK(swapped_ != nullptr);
  const int64_t n = kernels::KvBlocks::NumElements(spec().heads, 1);
  const auto move = [n](float* device, float* host, const KvSwap& s) {
    device += s.block * n;
    host += s.host_block * n;
    std::copy_n(s.out ? device : host, n, s.out ? host : device);
  };
  for (int64_t layer = 0; layer < spec().num_layers; ++layer) {
    const kernels::KvBlocks cache = cache_.Layer(layer), aside = swapped_->Layer(layer);
    for (const KvSwap& s : swaps) {
      move(cache.k, aside.k, s);
      move(cache.v, aside.v, s);
    }
  }
}

absl::Status CpuExecutor::TakeWeights(PolicyVersion version) {
  return CheckHolds(weights_, version);
}

void CpuExecutor::Launch(std::span<const Work> pass, std::span<const Draw> draws,
                         const Copies& copies) {
  for (int64_t layer = 0; layer < weights_.spec().num_layers && !copies.empty(); ++layer) {
    kernels::CopyKv(copies, weights_.spec().heads, cache_.Layer(layer));
  }
  std::vector<Shard> shards = CutIntoShards(pass, draws);
  while (ops_.size() < shards.size()) {
    ops_.push_back(std::make_unique<InferenceOps>(&weights_, &cache_, &rope_));
  }
  result_ = {};
  result_.samples.resize(draws.size());
  result_.num_top = MostTopLogprobs(draws);
  result_.top_logprobs.resize(draws.size() * static_cast<size_t>(result_.num_top));
  if (WantsRoutedExperts(pass)) {
    const model::ModelSpec& spec = weights_.spec();
    int64_t rows = 0;
    for (const Work& w : pass) rows += w.count;
    result_.routed_experts.resize(static_cast<size_t>(
        rows * spec.num_moe_layers() * spec.experts_per_token * spec.expert_id_bytes()));
  }
  kernels::ParallelFor(static_cast<int64_t>(shards.size()),
                       [&](int64_t i) { RunShard(pass, draws, &shards[i], ops_[i].get()); });
}

std::vector<CpuExecutor::Shard> CpuExecutor::CutIntoShards(std::span<const Work> pass,
                                                           std::span<const Draw> draws) const {
  const int64_t bytes = weights_.layout().num_elements * kernels::SizeOf(weights_.dtype());
  int64_t total = 0;
  for (const Work& w : pass) total += w.count;
  int64_t most = total;  // rows of a shard
  if (bytes <= options_.sharded_model_bytes) {
    // A whole number of shards a thread, of about one size, and none so low that reading the
    // weights costs more than multiplying by them.
    const int64_t threads = kernels::NumThreads();
    const int64_t count = (total + kShardRows * threads - 1) / (kShardRows * threads) * threads;
    most = std::max(kLeastShardRows, (total + count - 1) / count);
  }
  std::vector<Shard> shards;
  int64_t rows = 0, first_row = 0;
  size_t draw = 0;
  for (size_t i = 0; i < pass.size(); ++i) {
    if (shards.empty() || (rows > 0 && rows + pass[i].count > most)) {
      shards.emplace_back();
      shards.back().first_row = first_row;
      rows = 0;
    }
    Shard& shard = shards.back();
    shard.work.push_back(i);
    rows += pass[i].count;
    first_row += pass[i].count;
    for (; draw < draws.size() && draws[draw].work == i; ++draw) shard.draws.push_back(draw);
  }
  return shards;
}

void CpuExecutor::FillShard(std::span<const Work> pass, Shard* shard) const {
  for (const size_t index : shard->work) {
    const Work& w = pass[index];
    kernels::SequenceSpan span;
    span.first_row = static_cast<int64_t>(shard->token_ids.size());
    span.num_rows = w.count;
    span.first_position = w.first_position;
    span.blocks = w.blocks();
    for (int64_t p = w.first_position; p < w.first_position + w.count; ++p) {
      shard->token_ids.push_back(w.response == nullptr ? w.request->what.prompt_ids[p]
                                                       : w.request->TokenAt(*w.response, p));
      shard->positions.push_back(static_cast<int32_t>(p));
      shard->slots.push_back(
          static_cast<int32_t>(span.blocks[p / kBlockTokens] * kBlockTokens + p % kBlockTokens));
    }
    shard->spans.push_back(span);
    if (w.samples) {
      shard->logit_rows.push_back(static_cast<int32_t>(shard->token_ids.size()) - 1);
    }
  }
}

// From [layers with experts, rows of the shard, top_k] to bytes by row.
void CpuExecutor::TakeRoutedExperts(const Shard& shard, const InferenceOps& ops) {
  const model::ModelSpec& spec = weights_.spec();
  const int64_t layers = spec.num_moe_layers(), k = spec.experts_per_token;
  const int64_t id_bytes = spec.expert_id_bytes();
  const int64_t rows = static_cast<int64_t>(shard.token_ids.size());
  const std::vector<int32_t>& ids = ops.routed_experts();
  CHECK_EQ(static_cast<int64_t>(ids.size()), layers * rows * k);
  uint8_t* to = result_.routed_experts.data() + shard.first_row * layers * k * id_bytes;
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t layer = 0; layer < layers; ++layer) {
      for (int64_t s = 0; s < k; ++s) {
        const int32_t id = ids[(layer * rows + t) * k + s];
        for (int64_t b = 0; b < id_bytes; ++b) *to++ = static_cast<uint8_t>(id >> (8 * b));
      }
    }
  }
}

void CpuExecutor::RunShard(std::span<const Work> pass, std::span<const Draw> draws, Shard* shard,
                           InferenceOps* ops) {
  FillShard(pass, shard);
  model::Batch batch;
  batch.token_ids = shard->token_ids;
  batch.positions = shard->positions;
  batch.slots = shard->slots;
  batch.sequences = shard->spans;
  const model::Value hidden = model::Forward(weights_.spec(), weights_.layout(), batch, *ops);
  if (!result_.routed_experts.empty()) TakeRoutedExperts(*shard, *ops);
  const kernels::TensorView logits = ops->Logits(hidden, shard->logit_rows);
  // Rows of logits by the Work they belong to.
  std::vector<int64_t> row_of(pass.size(), -1);
  int64_t next = 0;
  for (const size_t index : shard->work) {
    if (pass[index].samples) row_of[index] = next++;
  }
  // With one shard for all threads the rows are sampled in parallel; inside of one of many this
  // runs in order.
  kernels::ParallelFor(static_cast<int64_t>(shard->draws.size()), [&](int64_t i) {
    static thread_local std::vector<float> scratch;
    const Draw& draw = draws[shard->draws[i]];
    const std::span<const float> row(logits.f32(row_of[draw.work]),
                                     static_cast<size_t>(logits.cols));
    const int64_t n = draw.request->what.top_logprobs;
    if (n > 0) {
      kernels::TopLogprobs(
          row, draw.request->what.sampling.temperature, n,
          result_.top_logprobs.data() + static_cast<int64_t>(shard->draws[i]) * result_.num_top);
    }
    result_.samples[shard->draws[i]] = Sample(draw, row, &scratch);
  });
}

}  // namespace orrery::rollout
