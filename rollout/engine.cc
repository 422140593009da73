#include "rollout/engine.h"

#include <algorithm>

#include "kernels/cpu/thread_pool.h"
#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"

namespace orrery::rollout {
namespace {

using kernels::kBlockTokens;
using kernels::SampleResult;

constexpr int64_t kShardRows = 48;  // a multiple of the tiles of Linear

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

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

Engine::Engine(const model::WeightStore* weights, const TextCodec* codec,
               const EngineOptions& options)
    : weights_(*weights),
      codec_(codec),
      options_(options),
      rope_(weights->spec().rope_inv_freq, options.scheduler.max_positions),
      cache_(weights->spec(), options.kv_blocks),
      scheduler_(&cache_, options.scheduler) {
  stats_.kv_blocks = options.kv_blocks;
  thread_ = std::thread([this] { Loop(); });
}

Engine::~Engine() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

RequestId Engine::Submit(GenerationRequest request, OnDone on_done) {
  std::lock_guard lock(mutex_);
  const RequestId id = next_id_++;
  commands_.push_back({id, std::move(request), std::move(on_done)});
  wake_.notify_all();
  return id;
}

void Engine::Abort(RequestId id) {
  std::lock_guard lock(mutex_);
  commands_.push_back({id, {}, nullptr});
  wake_.notify_all();
}

void Engine::Pause() {
  std::unique_lock lock(mutex_);
  ++pauses_;
  if (std::this_thread::get_id() == thread_.get_id()) return;  // from a callback: not in a pass
  idle_.wait(lock, [this] { return !in_pass_; });
}

void Engine::Resume() {
  std::lock_guard lock(mutex_);
  CHECK_GT(pauses_, 0);
  --pauses_;
  wake_.notify_all();
}

EngineStats Engine::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

absl::Status Engine::BeginUpdate(PolicyVersion version) {
  {
    std::lock_guard lock(mutex_);
    if (refusing_) return Precondition("weight version {} is still being written", version);
    refusing_ = true;
  }
  Pause();
  return absl::OkStatus();
}

absl::Status Engine::Commit(PolicyVersion version) {
  if (weights_.in_update() || weights_.version() != version) {
    return Precondition("weights of version {} were announced, the store holds version {}{}",
                        version, weights_.version(), weights_.in_update() ? ", half written" : "");
  }
  {
    std::lock_guard lock(mutex_);
    if (!refusing_) return Precondition("commit of version {} without its beginning", version);
    refusing_ = false;
  }
  Resume();
  return absl::OkStatus();
}

void Engine::Loop() {
  while (WaitForWork()) {
    TakeCommands();
    if (!scheduler_.empty()) RunPass();
    {
      std::lock_guard lock(mutex_);
      in_pass_ = false;
    }
    idle_.notify_all();
    Deliver();
  }
  AbortAll();
}

void Engine::AbortAll() {
  // A callback may submit once more: until nothing is left.
  while (true) {
    TakeCommands();
    while (!scheduler_.empty()) HandleAbort(scheduler_.oldest());
    if (deliveries_.empty()) return;
    Deliver();
  }
}

bool Engine::WaitForWork() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] {
    return stopping_ || (pauses_ == 0 && (!commands_.empty() || !scheduler_.empty()));
  });
  in_pass_ = !stopping_;
  return !stopping_;
}

void Engine::TakeCommands() {
  std::deque<Command> commands;
  {
    std::lock_guard lock(mutex_);
    commands.swap(commands_);
  }
  for (Command& c : commands) {
    if (c.on_done == nullptr) {
      HandleAbort(c.id);
      continue;
    }
    const absl::Status admitted = Admit(c.request);
    if (!admitted.ok()) {
      const size_t n = std::max<size_t>(c.request.seeds.size(), 1);
      for (size_t i = 0; i < n; ++i) {
        Generation refused;
        refused.finish_reason = FinishReason::kRejected;
        refused.error = StatusText(admitted);
        deliveries_.push_back({c.on_done, i, std::move(refused)});
      }
      continue;
    }
    scheduler_.Add(c.id, std::move(c.request), std::move(c.on_done));
  }
}

absl::Status Engine::Admit(const GenerationRequest& request) const {
  const int64_t vocabulary = weights_.spec().vocab_size;
  for (const int32_t id : request.prompt_ids) {
    if (id < 0 || id >= vocabulary) {
      return InvalidInput(
          "the prompt has token id {}, the model a vocabulary of {}: the tokenizer "
          "belongs to another model",
          id, vocabulary);
    }
  }
  if (!request.sampling.stop.empty() && codec_ == nullptr) {
    return InvalidInput("stop strings need a tokenizer; give stop_token_ids");
  }
  return scheduler_.Admit(request);
}

void Engine::HandleAbort(RequestId id) {
  Request* request = scheduler_.Find(id);
  if (request == nullptr) return;
  for (size_t i = 0, n = request->responses.size(); i < n; ++i) {
    if (request->responses[i].finished) continue;
    const bool last = request->num_unfinished == 1;
    FinishResponse(request, &request->responses[i], FinishReason::kAborted);
    if (last) return;  // the request is gone
  }
}

void Engine::RunPass() {
  Copies copies;
  const std::vector<Work> pass = scheduler_.Next(&copies);
  for (int64_t layer = 0; layer < weights_.spec().num_layers && !copies.empty(); ++layer) {
    kernels::CopyKv(copies, weights_.spec().heads, cache_.Layer(layer));
  }
  std::vector<Shard> shards = CutIntoShards(pass);
  while (ops_.size() < shards.size()) {
    ops_.push_back(std::make_unique<InferenceOps>(&weights_, &cache_, &rope_));
  }
  kernels::ParallelFor(static_cast<int64_t>(shards.size()),
                       [&](int64_t i) { RunShard(&shards[i], ops_[i].get()); });
  scheduler_.Done(pass);
  {
    std::lock_guard lock(mutex_);
    ++stats_.steps;
    stats_.preemptions = scheduler_.num_preemptions();
    stats_.peak_running = std::max(stats_.peak_running, scheduler_.num_running());
    stats_.peak_kv_blocks =
        std::max(stats_.peak_kv_blocks, cache_.num_blocks() - cache_.num_free());
    for (const Work& w : pass) {
      if (w.response == nullptr) {
        stats_.prompt_tokens += w.count;
        if (w.samples) {
          stats_.shared_tokens +=
              w.request->prompt_size() * (static_cast<int64_t>(w.request->responses.size()) - 1);
        }
      }
    }
  }
  for (Shard& shard : shards) {
    size_t next = 0;
    for (const Work& w : shard.work) {
      if (!w.samples) continue;
      const std::vector<SampleResult>& results = shard.results[next++];
      if (w.response != nullptr) {
        Take(w, w.response, results[0]);
        continue;
      }
      // A prompt computed again after it was dropped has responses that went on already.
      const RequestId id = w.request->id;
      for (size_t i = 0; i < results.size() && scheduler_.Find(id) != nullptr; ++i) {
        Response* r = &w.request->responses[i];
        if (!r->finished && r->generation.token_ids.empty()) Take(w, r, results[i]);
      }
    }
  }
}

std::vector<Engine::Shard> Engine::CutIntoShards(std::vector<Work> pass) const {
  const int64_t bytes = weights_.layout().num_elements * kernels::SizeOf(weights_.dtype());
  const bool sharded = bytes <= options_.sharded_model_bytes;
  std::vector<Shard> shards;
  int64_t rows = 0;
  for (const Work& w : pass) {
    if (shards.empty() || (sharded && rows > 0 && rows + w.count > kShardRows)) {
      shards.emplace_back();
      rows = 0;
    }
    shards.back().work.push_back(w);
    rows += w.count;
  }
  return shards;
}

void Engine::FillShard(Shard* shard) const {
  for (const Work& w : shard->work) {
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

void Engine::RunShard(Shard* shard, InferenceOps* ops) const {
  FillShard(shard);
  model::Batch batch;
  batch.token_ids = shard->token_ids;
  batch.positions = shard->positions;
  batch.slots = shard->slots;
  batch.sequences = shard->spans;
  const model::Value hidden = model::Forward(weights_.spec(), weights_.layout(), batch, *ops);
  const kernels::TensorView logits = ops->Logits(hidden, shard->logit_rows);
  std::vector<const Work*> sampling;
  for (const Work& w : shard->work) {
    if (w.samples) sampling.push_back(&w);
  }
  shard->results.resize(sampling.size());
  // With one shard for all threads the rows are sampled in parallel; inside of one of many this
  // runs in order.
  kernels::ParallelFor(static_cast<int64_t>(sampling.size()), [&](int64_t i) {
    static thread_local std::vector<float> scratch;
    const Work& w = *sampling[i];
    const std::span<const float> row(logits.f32(i), static_cast<size_t>(logits.cols));
    if (w.response != nullptr) {
      shard->results[i].push_back(Sample(w, *w.response, row, &scratch));
      return;
    }
    for (const Response& r : w.request->responses) {
      const bool needed = !r.finished && r.generation.token_ids.empty();
      shard->results[i].push_back(needed ? Sample(w, r, row, &scratch) : SampleResult{});
    }
  });
}

SampleResult Engine::Sample(const Work& work, const Response& response,
                            std::span<const float> logits, std::vector<float>* scratch) const {
  const SamplingOptions& sampling = work.request->what.sampling;
  kernels::SamplerInput input;
  input.logits = logits;
  input.prompt_ids = work.request->what.prompt_ids;
  input.generated_ids = response.generation.token_ids;
  input.seed = work.request->what.seeds[response.index];
  input.position = response.generation.token_ids.size();
  if (static_cast<int64_t>(input.position) < sampling.min_new_tokens) {
    input.banned_ids = sampling.stop_token_ids;
  }
  return kernels::SampleToken(input, ToParams(sampling), scratch);
}

void Engine::Take(const Work& work, Response* response, const SampleResult& result) {
  Request* request = work.request;
  const SamplingOptions& sampling = request->what.sampling;
  Generation& g = response->generation;
  if (!result.finite) {
    return FinishResponse(request, response, FinishReason::kRejected,
                          fmt::format("the model's logits after {} tokens are not finite",
                                      request->num_known(*response)));
  }
  g.token_ids.push_back(result.token_id);
  g.logprobs.push_back(result.logprob);
  g.versions.push_back(weights_.version());
  g.entropy_sum += result.entropy;
  const int64_t n = static_cast<int64_t>(g.token_ids.size());
  const bool may_stop = n >= sampling.min_new_tokens;
  if (may_stop &&
      (Contains(sampling.stop_token_ids, result.token_id) || HitsStopString(*request, *response))) {
    return FinishResponse(request, response, FinishReason::kStop);
  }
  if (n >= sampling.max_new_tokens ||
      request->num_known(*response) >= options_.scheduler.max_positions) {
    FinishResponse(request, response, FinishReason::kLength);
  }
}

bool Engine::HitsStopString(const Request& request, const Response& response) const {
  const std::vector<std::string>& stops = request.what.sampling.stop;
  if (stops.empty()) return false;
  size_t longest = 0;
  for (const std::string& stop : stops) longest = std::max(longest, stop.size());
  // A token is at least a byte long but for special ones: this many always cover the stop string.
  const std::vector<int32_t>& ids = response.generation.token_ids;
  const size_t tail = std::min(ids.size(), longest + 8);
  const auto holds_one = [&](std::span<const int32_t> part) {
    const std::string text = codec_->Decode(part, /*skip_special=*/false);
    return std::any_of(stops.begin(), stops.end(), [&](const std::string& stop) {
      return text.find(stop) != std::string::npos;
    });
  };
  // One that was complete before the last token came too early to count (min_new_tokens).
  const std::span<const int32_t> part = std::span(ids).last(tail);
  return holds_one(part) && !holds_one(part.first(tail - 1));
}

void Engine::FinishResponse(Request* request, Response* response, FinishReason reason,
                            std::string error) {
  response->generation.finish_reason = reason;
  response->generation.error = std::move(error);
  {
    std::lock_guard lock(mutex_);
    stats_.generated_tokens += static_cast<int64_t>(response->generation.token_ids.size());
  }
  deliveries_.push_back({request->on_done, response->index, std::move(response->generation)});
  scheduler_.Finish(request, response);
}

void Engine::Deliver() {
  std::vector<Delivery> deliveries;
  deliveries.swap(deliveries_);
  for (Delivery& d : deliveries) d.on_done(d.index, std::move(d.generation));
}

}  // namespace orrery::rollout
