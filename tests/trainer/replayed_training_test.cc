// Routing replay from the engine to the gradient: the trainer computes with the experts that a
// token was sampled with, whatever its own router would choose now.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>

#include "orchestrator/base/status.h"
#include "rollout/inference_ops.h"
#include "tests/fakes/one_sequence.h"
#include "tests/trainer/engine_data.h"
#include "trainer/cpu/cpu_executor.h"

namespace orrery::trainer {
namespace {

using kernels::DType;
using model::WeightStore;
using ::testing::HasSubstr;

const std::vector<int64_t> kLengths = {1, 2, 15, 16, 17, 31, 33, 5};

// Layers with experts: 1 and 5 of 6.
constexpr char kMixed[] = R"({
  "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 61,
  "hidden_size": 32, "num_hidden_layers": 6, "intermediate_size": 48, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
  "rope_theta": 10000, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
  "norm_topk_prob": true, "decoder_sparse_step": 2, "mlp_only_layers": [3],
  "initializer_range": 0.4})";

std::unique_ptr<WeightStore> Make(const std::string& model, DType dtype) {
  return model == "mixed" ? fakes::MakeRandom(kMixed, 5, dtype) : fakes::LoadTiny(model, dtype);
}

// The routers of other weights, as after some steps: everything else stays.
void PerturbRouters(WeightStore* store, float scale) {
  std::vector<float> values(static_cast<size_t>(store->layout().num_elements));
  store->CopyTo(values);
  RandomStream random(3);
  for (int64_t layer = 0; layer < store->spec().num_layers; ++layer) {
    if (!store->spec().moe(layer)) continue;
    const model::Param& p = store->layout().params[store->layout().layers[layer].router];
    for (int64_t i = 0; i < p.num_elements(); ++i) {
      values[p.offset + i] += scale * static_cast<float>(random.Uniform() - 0.5);
    }
  }
  store->BeginUpdate();
  store->Assign(values);
  store->Commit(store->version() + 1);
}

std::vector<GenerationRequest> Requests(const WeightStore& store) {
  auto requests = MakeRequests(store.spec(), Sampling(1, 20), kLengths);
  for (GenerationRequest& r : requests) r.return_routed_experts = true;
  return requests;
}

std::vector<TrainingSequence> WithRouting(const std::vector<GenerationRequest>& requests,
                                          const Generations& generations) {
  std::vector<TrainingSequence> sequences = ToSequences(requests, generations);
  size_t next = 0;
  for (const auto& group : generations) {
    for (const Generation& g : group) {
      sequences[next++].routed_experts = std::make_shared<RoutedExperts>(g.routed_experts);
    }
  }
  return sequences;
}

std::vector<TrainingSequence> Sample(const WeightStore& store) {
  const auto requests = Requests(store);
  return WithRouting(requests, Generate(store, Options(store.spec()), requests));
}

std::unique_ptr<PolicyTrainer> MakeTrainer(WeightStore* store, bool replay,
                                           PolicyTrainerOptions options = {}) {
  options.replay_routing = replay;
  auto trainer = MakeCpuTrainer(store, nullptr, options);
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  return *std::move(trainer);
}

struct Case {
  const char* model;
  DType dtype;
};

class ReplayedTrainingTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { store_ = Make(GetParam().model, GetParam().dtype); }
  std::unique_ptr<WeightStore> store_;
};

// The weights that sampled: the recorded experts are the trainer's own, and nothing changes by a
// bit, however the engine came to them.
TEST_P(ReplayedTrainingTest, AtTheSamplingWeightsNothingChanges) {
  const auto requests = Requests(*store_);
  for (const int64_t blocks : {512, 9}) {
    for (const int64_t chunk : {512, 7}) {
      for (const int64_t sharded : {int64_t{16} << 20, int64_t{0}}) {
        rollout::EngineOptions engine = Options(store_->spec());
        engine.kv_blocks = blocks;
        engine.scheduler.prefill_chunk_tokens = chunk;
        engine.sharded_model_bytes = sharded;
        EngineStats stats;
        const auto sequences =
            WithRouting(requests, Generate(*store_, engine, requests, Arrival::kTogether, &stats));
        EXPECT_EQ(stats.preemptions > 0, blocks == 9);
        for (const int64_t tokens : {70, 4096}) {
          PolicyTrainerOptions options;
          options.micro_batch_tokens = tokens;
          const auto trainer = MakeTrainer(store_.get(), true, options);
          const auto measured = trainer->Measure(ToBatch(sequences));
          ASSERT_TRUE(measured.ok()) << measured.status();
          ASSERT_TRUE(measured->routing_replay.has_value());
          EXPECT_EQ(measured->routing_replay->differing, 0);
          EXPECT_EQ(measured->routing_replay->own_routing_kl, 0);
          EXPECT_EQ(measured->routing_replay->replayed_kl, 0);
          EXPECT_EQ(measured->train_rollout_logprob_abs_diff_max, 0);
        }
      }
    }
  }
}

TEST_P(ReplayedTrainingTest, GradientAtTheSamplingWeightsIsTheSame) {
  const TrainingBatch batch = ToBatch(Sample(*store_));
  for (const bool recompute : {false, true}) {
    for (const bool share : {false, true}) {
      PolicyTrainerOptions options;
      options.recompute = recompute;
      options.share_prefix = share;
      options.micro_batch_tokens = 200;
      const auto with = MakeTrainer(store_.get(), true, options)->Gradient(batch);
      const auto without = MakeTrainer(store_.get(), false, options)->Gradient(batch);
      ASSERT_TRUE(with.ok() && without.ok());
      EXPECT_EQ(*with, *without);
    }
  }
}

// Log-probs of one sequence by the rollout's operators, with given experts.
std::vector<float> ScoreWithExperts(const WeightStore& store, const TrainingSequence& s) {
  const model::ModelSpec& spec = store.spec();
  const auto n = static_cast<int64_t>(s.token_ids.size()) - 1;
  const kernels::RopeTable rope(spec.rope_inv_freq, spec.max_positions);
  rollout::KvCache cache(spec, (n + 15) / 16);
  rollout::InferenceOps ops(&store, &cache, &rope);
  const fakes::OneSequence sequence({s.token_ids.begin(), s.token_ids.end() - 1});
  std::vector<int32_t> experts;
  for (int64_t layer = 0; layer < spec.num_moe_layers(); ++layer) {
    for (int64_t p = 0; p < n; ++p) {
      for (int64_t k = 0; k < spec.experts_per_token; ++k) {
        experts.push_back(s.routed_experts->At(p)[layer * spec.experts_per_token + k]);
      }
    }
  }
  model::Batch batch = sequence.batch();
  batch.replay_experts = experts;
  const kernels::TensorView logits =
      ops.Logits(model::Forward(spec, store.layout(), batch, ops), sequence.rows());
  EXPECT_EQ(ops.routed_experts(), experts);
  std::vector<float> logps(s.token_ids.size());
  for (int64_t p = 0; p < n; ++p) {
    if (!s.loss_mask[p + 1]) continue;
    logps[p + 1] = kernels::LogSoftmax(logits.f32(p), logits.cols, 1, nullptr)
                       .Logprob(logits.f32(p)[s.token_ids[p + 1]], 1);
  }
  return logps;
}

TEST_P(ReplayedTrainingTest, OtherRoutersComputeWithTheRecordedExperts) {
  const auto sequences = Sample(*store_);
  PerturbRouters(store_.get(), 1.5f);
  for (const int64_t tokens : {70, 1 << 20}) {
    PolicyTrainerOptions options;
    options.micro_batch_tokens = tokens;
    const auto trainer = MakeTrainer(store_.get(), true, options);
    const auto scores = trainer->Score(sequences);
    ASSERT_TRUE(scores.ok()) << scores.status();
    for (size_t i = 0; i < sequences.size(); ++i) {
      ASSERT_NO_FATAL_FAILURE(ExpectSame((*scores)[i], ScoreWithExperts(*store_, sequences[i]),
                                         fmt::format("sequence {}", i)));
    }
    const auto measured = trainer->Measure(ToBatch(sequences));
    ASSERT_TRUE(measured.ok()) << measured.status();
    const TrainStats::RoutingReplay& replay = measured->routing_replay.value();
    EXPECT_GT(replay.differing, 0);
    EXPECT_LT(replay.differing, 1);
    EXPECT_GT(replay.replayed_kl, 0) << "the weights of the experts are the new router's";
    EXPECT_LT(replay.replayed_kl, replay.own_routing_kl);
    if (tokens > 70) {  // everything is the first micro-batch
      EXPECT_DOUBLE_EQ(replay.replayed_kl, measured->train_rollout_kl);
      const auto plain = MakeTrainer(store_.get(), false, options)->Measure(ToBatch(sequences));
      ASSERT_TRUE(plain.ok());
      EXPECT_DOUBLE_EQ(replay.own_routing_kl, plain->train_rollout_kl);
      EXPECT_FALSE(plain->routing_replay.has_value());
      std::printf("differing %.4f, KL with its own routing %.3g, replayed %.3g\n", replay.differing,
                  replay.own_routing_kl, replay.replayed_kl);
    }
  }
}

// Old log-probs are replayed too: over several optimizer steps a rollout's first ratio is 1.
TEST_P(ReplayedTrainingTest, SeveralStepsBeginAtTheSampledLogprobs) {
  const auto sequences = Sample(*store_);
  PolicyTrainerOptions options;
  options.schedule.learning_rate = 1e-3;
  for (const size_t parts : {1, 3}) {
    const auto store = Make(GetParam().model, GetParam().dtype);
    std::vector<TrainingBatch> batches;
    const size_t each = sequences.size() / parts;
    for (size_t b = 0; b < parts; ++b) {
      batches.push_back(ToBatch({sequences.begin() + static_cast<int64_t>(b * each),
                                 sequences.begin() + static_cast<int64_t>((b + 1) * each)}));
    }
    const auto stats = MakeTrainer(store.get(), true, options)->Train(std::move(batches));
    ASSERT_TRUE(stats.ok()) << stats.status();
    EXPECT_EQ(stats->train_rollout_logprob_abs_diff_max, 0);
    EXPECT_EQ(stats->routing_replay->differing, 0) << "measured before the first step";
    EXPECT_EQ(stats->ppo_kl == 0, parts == 1);
  }
}

TEST_P(ReplayedTrainingTest, MemoryIsAPromptAGroupAndAByteAnExpert) {
  const auto requests = Requests(*store_);
  const auto generations = Generate(*store_, Options(store_->spec()), requests);
  const model::ModelSpec& spec = store_->spec();
  int64_t held = 0, tokens = 0;
  for (size_t r = 0; r < requests.size(); ++r) {
    held += generations[r][0].routed_experts.prompt_bytes();
    tokens += static_cast<int64_t>(requests[r].prompt_ids.size());
    for (const Generation& g : generations[r]) {
      EXPECT_EQ(g.routed_experts.prompt, generations[r][0].routed_experts.prompt);
      EXPECT_EQ(g.routed_experts.rest.capacity(), g.routed_experts.rest.size());
      held += static_cast<int64_t>(g.routed_experts.rest.capacity());
      tokens += static_cast<int64_t>(g.token_ids.size()) - 1;
    }
  }
  EXPECT_EQ(held, tokens * spec.num_moe_layers() * spec.experts_per_token);
  std::printf("%lld bytes for %lld tokens\n", static_cast<long long>(held),
              static_cast<long long>(tokens));
}

INSTANTIATE_TEST_SUITE_P(Models, ReplayedTrainingTest,
                         testing::Values(Case{"qwen3_moe", DType::kFloat32},
                                         Case{"qwen3_moe", DType::kBFloat16},
                                         Case{"mixed", DType::kFloat32},
                                         Case{"mixed", DType::kBFloat16}),
                         [](const auto& info) {
                           return std::string(info.param.model) +
                                  (info.param.dtype == DType::kFloat32 ? "_float32" : "_bfloat16");
                         });

// The gradient of the sum of log-probs by a router's weights, against differences: with the
// experts held, what remains is the way through their weights.
TEST(ReplayedGradient, GoesThroughTheWeightsOfTheRecordedExperts) {
  const auto store = Make("mixed", DType::kFloat32);
  auto sequences = Sample(*store);
  sequences.resize(12);
  PerturbRouters(store.get(), 1.5f);
  const std::vector<MicroBatch> micros = Pack(sequences, 1 << 20, true, true);
  ASSERT_EQ(micros.size(), 1u);
  CpuExecutor executor(store.get(), nullptr, {});
  int64_t differing = 0;
  ASSERT_TRUE(executor
                  .ForwardBackward(micros, 1,
                                   [&](size_t, const TokenScores& scores, std::span<float> dlogps,
                                       std::span<float>) {
                                     differing = scores.differing_routing;
                                     std::fill(dlogps.begin(), dlogps.end(), 1.0f);
                                     return absl::OkStatus();
                                   })
                  .ok());
  ASSERT_GT(differing, 0);
  const std::vector<float> gradient = executor.Gradient();
  double size = 0;  // of what is summed
  const auto sum = [&] {
    double total = 0;
    size = 0;
    EXPECT_TRUE(executor
                    .Score(WeightsOf::kPolicy, micros, 1,
                           [&](size_t, const TokenScores& scores) {
                             for (const float logp : scores.logprobs) {
                               total += logp;
                               size += std::abs(logp);
                             }
                             return absl::OkStatus();
                           })
                    .ok());
    return total;
  };
  const model::Param& p = store->layout().params[store->layout().layers[5].router];
  std::vector<float> values(static_cast<size_t>(store->layout().num_elements));
  store->CopyTo(values);
  int checked = 0;
  for (int64_t i = 0; i < p.num_elements(); i += 5) {
    const float at = values[p.offset + i];
    const auto slope = [&](float h) {
      fakes::Poke(store.get(), store->layout().layers[5].router, i, at + h);
      const double above = sum();
      fakes::Poke(store.get(), store->layout().layers[5].router, i, at - h);
      const double below = sum();
      fakes::Poke(store.get(), store->layout().layers[5].router, i, at);
      return (above - below) / (2.0 * h);
    };
    constexpr float kH = 1.0f / 64;
    const double fine = slope(kH), coarse = slope(2 * kH);
    // Rounding of the log-probs, and the curvature that the coarser step shows.
    const double noise = 8 * std::numeric_limits<float>::epsilon() * size / kH;
    EXPECT_NEAR(gradient[p.offset + i], fine, std::abs(fine - coarse) + noise) << "element " << i;
    checked += std::abs(fine) > 4 * (std::abs(fine - coarse) + noise);
  }
  EXPECT_GT(checked, 5) << "the tolerance hides every gradient";
}

TEST(ReplayedRouting, WhatCannotBeReplayedIsRefused) {
  const auto dense = fakes::LoadTiny("qwen3", DType::kFloat32);
  PolicyTrainerOptions options;
  options.replay_routing = true;
  EXPECT_THAT(StatusText(MakeCpuTrainer(dense.get(), nullptr, options).status()),
              HasSubstr("no experts"));
  const auto store = fakes::LoadTiny("qwen3_moe", DType::kFloat32);
  const auto sequences = Sample(*store);
  const auto trainer = MakeTrainer(store.get(), true);
  size_t which = 0;
  while (sequences[which].routed_experts->rest.empty()) ++which;
  const std::string named = fmt::format("episode {} of group {}", which, sequences[which].group_id);
  const auto refuse = [&](const std::function<void(RoutedExperts*)>& change, const char* text) {
    auto broken = sequences;
    auto routed = std::make_shared<RoutedExperts>(*broken[which].routed_experts);
    change(routed.get());
    broken[which].routed_experts = routed;
    for (const bool train : {false, true}) {
      const auto stats =
          train ? trainer->Train({ToBatch(broken)}) : trainer->Measure(ToBatch(broken));
      EXPECT_THAT(StatusText(stats.status()), HasSubstr(text));
      EXPECT_THAT(StatusText(stats.status()), HasSubstr(named));
    }
  };
  refuse([](RoutedExperts* r) { r->rest.resize(r->rest.size() - 1); }, "and needs those of");
  refuse([](RoutedExperts* r) { r->prompt = nullptr; }, "and needs those of");
  refuse([](RoutedExperts* r) { ++r->top_k; }, "the model has");
  refuse([](RoutedExperts* r) { r->id_bytes = 2; }, "the model has");
  refuse([](RoutedExperts* r) { r->num_layers = 0; }, "the model has");
  refuse([](RoutedExperts* r) { r->rest.at(0) = 255; }, "expert 255");
  auto missing = sequences;
  missing[2].routed_experts = nullptr;
  EXPECT_THAT(StatusText(trainer->Measure(ToBatch(missing)).status()),
              HasSubstr("no routed experts to replay"));
}

// Equal prompts that were routed otherwise (each computed by itself, in fast numerics) are not
// computed once.
TEST(ReplayedRouting, PromptsOfAnotherRoutingAreNotShared) {
  const auto store = fakes::LoadTiny("qwen3_moe", DType::kFloat32);
  auto sequences = Sample(*store);
  sequences.erase(sequences.begin(), sequences.end() - 5);  // one group
  const auto rows = [&](bool replay) {
    return Pack(sequences, 1 << 20, true, replay)[0].token_ids.size();
  };
  const auto prefix = static_cast<size_t>(sequences[0].shared_prefix);
  EXPECT_EQ(rows(true), rows(false));
  auto routed = std::make_shared<RoutedExperts>(*sequences[4].routed_experts);
  auto prompt = std::make_shared<std::vector<uint8_t>>(*routed->prompt);
  routed->prompt = prompt;  // equal, in other memory
  sequences[4].routed_experts = routed;
  EXPECT_EQ(rows(true), rows(false));
  (*prompt)[0] ^= 1;
  EXPECT_EQ(rows(true), rows(false) + prefix);
  // Every row has its own sequence's experts.
  const MicroBatch micro = Pack(sequences, 1 << 20, true, true)[0];
  EXPECT_EQ(micro.routed_rows[micro.spans.back().first_row], routed->At(0));
}

}  // namespace
}  // namespace orrery::trainer
