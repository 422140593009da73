#include "rollout/engine.h"

#include <algorithm>

#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"
#include "rollout/cpu_executor.h"

namespace orrery::rollout {
namespace {

using kernels::SampleResult;

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

Engine::Engine(const model::WeightStore* weights, const TextCodec* codec,
               const EngineOptions& options)
    : Engine(std::make_unique<CpuExecutor>(
                 weights,
                 CpuExecutorOptions{options.kv_blocks, options.scheduler.max_positions,
                                    options.sharded_model_bytes, options.scheduler.swap_blocks}),
             codec, options.scheduler) {}

Engine::Engine(std::unique_ptr<PassExecutor> executor, const TextCodec* codec,
               const SchedulerLimits& limits)
    : executor_(std::move(executor)),
      codec_(codec),
      limits_(limits),
      scheduler_(executor_->pool(), limits) {
  stats_.kv_blocks = executor_->pool()->num_blocks();
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

std::vector<RequestId> Engine::SubmitAll(std::vector<Submission> submissions) {
  std::vector<RequestId> ids;
  std::lock_guard lock(mutex_);
  for (Submission& s : submissions) {
    ids.push_back(next_id_++);
    commands_.push_back({ids.back(), std::move(s.request), std::move(s.on_done)});
  }
  wake_.notify_all();
  return ids;
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
    if (asleep_) return Precondition("weight version {}: the engine is asleep", version);
    refusing_ = true;
  }
  Pause();
  return absl::OkStatus();
}

absl::Status Engine::Commit(PolicyVersion version) {
  {
    std::lock_guard lock(mutex_);
    if (!refusing_) return Precondition("commit of version {} without its beginning", version);
  }
  RETURN_IF_ERROR(executor_->TakeWeights(version));
  scheduler_.WeightsChanged();  // paused, as in Sleep
  {
    std::lock_guard lock(mutex_);
    refusing_ = false;
  }
  Resume();
  return absl::OkStatus();
}

absl::Status Engine::Sleep() {
  {
    std::lock_guard lock(mutex_);
    if (refusing_) return Precondition("the engine cannot sleep while weights are being written");
    if (asleep_) return Precondition("the engine is asleep already");
    asleep_ = true;
  }
  Pause();
  // Paused and between passes, the engine's thread leaves the scheduler alone.
  scheduler_.DropAll();
  executor_->Sleep();
  return absl::OkStatus();
}

absl::Status Engine::Wake() {
  {
    std::lock_guard lock(mutex_);
    if (!asleep_) return Precondition("the engine is not asleep");
  }
  executor_->Wake();
  {
    std::lock_guard lock(mutex_);
    asleep_ = false;
  }
  Resume();
  return absl::OkStatus();
}

void Engine::Loop() {
  while (WaitForWork()) {
    TakeCommands();
    if (!scheduler_.empty()) RunPass();
    if (Pausing() || scheduler_.empty()) Drain();
    {
      std::lock_guard lock(mutex_);
      in_pass_ = false;
    }
    idle_.notify_all();
    Deliver();
  }
  AbortAll();
}

bool Engine::Pausing() const {
  std::lock_guard lock(mutex_);
  return pauses_ > 0;
}

void Engine::AbortAll() {
  Drain();
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
  const int64_t vocabulary = executor_->spec().vocab_size;
  for (const int32_t id : request.prompt_ids) {
    if (id < 0 || id >= vocabulary) {
      return InvalidInput(
          "the prompt has token id {}, the model a vocabulary of {}: the tokenizer "
          "belongs to another model",
          id, vocabulary);
    }
  }
  const int64_t most = std::min(kernels::kMaxTopLogprobs, vocabulary);
  if (request.top_logprobs < 0 || request.top_logprobs > most) {
    return InvalidInput("{} top log-probs are asked for; 0 to {} can be given",
                        request.top_logprobs, most);
  }
  if (request.return_routed_experts && !executor_->spec().has_moe()) {
    return InvalidInput("routed experts are asked of a model without experts");
  }
  if (!request.sampling.stop.empty() && codec_ == nullptr) {
    return InvalidInput("stop strings need a tokenizer; give stop_token_ids");
  }
  RETURN_IF_ERROR(executor_->Admit(request));
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
  const std::vector<Work> pass = scheduler_.Next(&copies, !in_flight_.empty());
  Swap();
  if (!pass.empty()) LaunchPass(pass, copies);
  const bool full = static_cast<int>(in_flight_.size()) == executor_->depth();
  if (full || (pass.empty() && !in_flight_.empty())) CollectPass();
}

std::vector<Draw> Engine::DrawsOf(std::span<const Work> pass) const {
  std::vector<Draw> draws;
  for (size_t i = 0; i < pass.size(); ++i) {
    const Work& w = pass[i];
    if (!w.samples) continue;
    if (w.response != nullptr) {
      draws.push_back({i, w.request, w.response});
      continue;
    }
    // A prompt computed again after it was dropped has responses that went on already.
    for (Response& r : w.request->responses) {
      if (r.finished || w.request->num_positions(r) > w.request->prompt_size()) continue;
      draws.push_back({i, w.request, &r});
    }
  }
  return draws;
}

std::vector<Engine::PendingRows> Engine::RowsOf(std::span<const Work> pass) const {
  std::vector<PendingRows> rows;
  int64_t first_row = 0;
  for (const Work& w : pass) {
    if (w.request->what.return_routed_experts) {
      const int64_t response = w.response == nullptr ? -1 : static_cast<int64_t>(w.response->index);
      rows.push_back({w.request->id, response, w.first_position, w.count, first_row});
    }
    first_row += w.count;
  }
  return rows;
}

void Engine::Swap() {
  const std::vector<KvSwap> swaps = scheduler_.TakeSwaps();
  if (swaps.empty()) return;
  executor_->Swap(swaps);
  const auto out = std::count_if(swaps.begin(), swaps.end(), [](const KvSwap& s) { return s.out; });
  const int64_t bytes = executor_->BlockBytes();
  std::lock_guard lock(mutex_);
  stats_.swapped_out_bytes += out * bytes;
  stats_.swapped_in_bytes += (static_cast<int64_t>(swaps.size()) - out) * bytes;
}

void Engine::LaunchPass(std::span<const Work> pass, const Copies& copies) {
  const std::vector<Draw> draws = DrawsOf(pass);
  executor_->Launch(pass, draws, copies);
  InFlight launched;
  launched.draws.reserve(draws.size());
  for (const Draw& draw : draws) {
    draw.response->pending_draw = static_cast<int32_t>(launched.draws.size());
    ++draw.response->num_pending;
    launched.draws.push_back({draw.request->id, draw.response->index});
  }
  launched.rows = RowsOf(pass);
  in_flight_.push_back(std::move(launched));
  scheduler_.Done(pass);
  Count(pass);
}

void Engine::Count(std::span<const Work> pass) {
  std::lock_guard lock(mutex_);
  ++stats_.steps;
  stats_.preemptions = scheduler_.num_preemptions();
  stats_.swaps = scheduler_.num_swaps();
  stats_.peak_running = std::max(stats_.peak_running, scheduler_.num_running());
  stats_.peak_kv_blocks = std::max(stats_.peak_kv_blocks,
                                   executor_->pool()->num_blocks() - executor_->pool()->num_free());
  for (const Work& w : pass) {
    if (w.response != nullptr) continue;
    stats_.prompt_tokens += w.count;
    if (w.samples) {
      stats_.shared_tokens +=
          w.request->prompt_size() * (static_cast<int64_t>(w.request->responses.size()) - 1);
    }
  }
}

// Positions that were recorded before are computed again here, after a preemption: the tokens that
// follow them were drawn from the first computation.
void Engine::TakeRoutedExperts(const PendingRows& rows, std::span<const uint8_t> experts) {
  Request* request = scheduler_.Find(rows.request);
  if (request == nullptr) return;
  const bool of_prompt = rows.response < 0;
  Response* response = of_prompt ? nullptr : &request->responses[rows.response];
  if (response != nullptr && response->finished) return;
  std::vector<uint8_t>& record =
      of_prompt ? *request->prompt_experts : response->generation.routed_experts.rest;
  const model::ModelSpec& spec = executor_->spec();
  const int64_t bytes = spec.num_moe_layers() * spec.experts_per_token * spec.expert_id_bytes();
  const int64_t start = rows.first_position - (of_prompt ? 0 : request->prompt_size());
  const int64_t known = static_cast<int64_t>(record.size()) / bytes - start;
  CHECK_GE(known, 0);  // nothing is left out
  if (known >= rows.count) return;
  const auto from = experts.begin() + (rows.first_row + known) * bytes;
  record.insert(record.end(), from, from + (rows.count - known) * bytes);
}

void Engine::CollectPass() {
  const PassResult result = executor_->Collect();
  const std::vector<SampleResult>& results = result.samples;
  const InFlight collected = std::move(in_flight_.front());
  const std::vector<PendingDraw>& draws = collected.draws;
  in_flight_.pop_front();
  CHECK_EQ(results.size(), draws.size());
  for (const PendingRows& rows : collected.rows) TakeRoutedExperts(rows, result.routed_experts);
  for (size_t i = 0; i < draws.size(); ++i) {
    // Ended meanwhile, by a stop token of the pass before or by an abort: the token is not wanted.
    Request* request = scheduler_.Find(draws[i].request);
    if (request == nullptr) continue;
    Response* response = &request->responses[draws[i].response];
    if (response->finished) continue;
    --response->num_pending;
    const std::span<const kernels::TopLogprob> top(
        result.top_logprobs.data() + static_cast<int64_t>(i) * result.num_top,
        static_cast<size_t>(request->what.top_logprobs));
    Take(request, response, results[i], top);
  }
}

void Engine::Drain() {
  while (!in_flight_.empty()) CollectPass();
}

void Engine::Take(Request* request, Response* response, const SampleResult& result,
                  std::span<const kernels::TopLogprob> top) {
  const SamplingOptions& sampling = request->what.sampling;
  Generation& g = response->generation;
  if (!result.finite) {
    return FinishResponse(request, response, FinishReason::kRejected,
                          fmt::format("the model's logits after {} tokens are not finite",
                                      request->num_known(*response)));
  }
  g.token_ids.push_back(result.token_id);
  g.logprobs.push_back(result.logprob);
  g.versions.push_back(executor_->version());
  g.entropy_sum += result.entropy;
  for (const kernels::TopLogprob& t : top) g.top_logprobs.push_back({t.token_id, t.logprob});
  const int64_t n = static_cast<int64_t>(g.token_ids.size());
  const bool may_stop = n >= sampling.min_new_tokens;
  if (may_stop &&
      (Contains(sampling.stop_token_ids, result.token_id) || HitsStopString(*request, *response))) {
    return FinishResponse(request, response, FinishReason::kStop);
  }
  if (n >= request->what.new_tokens(response->index) ||
      request->num_known(*response) >= limits_.max_positions) {
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
  if (request->what.return_routed_experts) {
    const model::ModelSpec& spec = executor_->spec();
    RoutedExperts& experts = response->generation.routed_experts;
    experts.num_layers = static_cast<int32_t>(spec.num_moe_layers());
    experts.top_k = static_cast<int32_t>(spec.experts_per_token);
    experts.id_bytes = spec.expert_id_bytes();
    experts.prompt = request->prompt_experts;
    experts.rest.shrink_to_fit();
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
