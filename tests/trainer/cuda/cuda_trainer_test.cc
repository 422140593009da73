// The trainer on a GPU against the trainer on the CPU, and against the engine whose tokens it
// trains on: gradients, steps, what they do not depend on, and log-probs equal bit for bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "kernels/cuda/device.h"
#include "orchestrator/base/hash.h"
#include "rollout/cuda/cuda_pass_executor.h"
#include "rollout/engine.h"
#include "tests/fakes/collector.h"
#include "tests/fakes/tiny_models.h"
#include "tests/trainer/cuda/dense_model.h"
#include "tests/trainer/model/temp_folder.h"
#include "tests/trainer/training_data.h"
#include "trainer/cpu/cpu_executor.h"
#include "trainer/cuda/cuda_executor.h"

namespace orrery::trainer {
namespace {

using kernels::DType;
using kernels::cuda::Numerics;
using model::DeviceWeights;
using model::WeightStore;

// Shapes that run on tensor cores: dense with biases, dense with norms, and experts.
constexpr const char* kBiased = R"({"vocab_size": 500, "num_hidden_layers": 2, "hidden_size": 128,
  "num_attention_heads": 4, "num_key_value_heads": 1, "intermediate_size": 256,
  "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 512, "hidden_act": "silu",
  "torch_dtype": "bfloat16", "initializer_range": 0.08, "tie_word_embeddings": false,
  "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": false})";
constexpr const char* kExperts = R"({"vocab_size": 500, "num_hidden_layers": 2, "hidden_size": 256,
  "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512,
  "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 1024, "hidden_act": "silu",
  "torch_dtype": "bfloat16", "initializer_range": 0.08, "tie_word_embeddings": false,
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 16,
  "num_experts_per_tok": 4, "moe_intermediate_size": 96, "norm_topk_prob": true,
  "decoder_sparse_step": 1, "mlp_only_layers": [0]})";

// Every expert is chosen for every row: no rounding can change the choice.
constexpr const char* kAllExperts = R"({"vocab_size": 500, "num_hidden_layers": 2,
  "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
  "intermediate_size": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
  "max_position_embeddings": 1024, "hidden_act": "silu", "torch_dtype": "bfloat16",
  "initializer_range": 0.08, "tie_word_embeddings": false, "architectures": ["Qwen3MoeForCausalLM"],
  "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 4,
  "moe_intermediate_size": 96, "norm_topk_prob": true, "decoder_sparse_step": 1,
  "mlp_only_layers": []})";

struct Model {
  const char* name;
  const char* config;  // null: the tiny checkpoint of this name
  DType dtype;
};

std::unique_ptr<WeightStore> MakeStore(const Model& model) {
  if (model.config == nullptr) return fakes::LoadTiny(model.name, model.dtype);
  return fakes::MakeRandom(model.config, 7, model.dtype);
}

double Norm(std::span<const float> x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * v;
  return std::sqrt(sum);
}

double RelativeDistance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  std::vector<float> difference(a.size());
  for (size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return Norm(difference) / Norm(b);
}

PolicyTrainerOptions Options() {
  PolicyTrainerOptions options;
  options.loss.entropy_coef = 0.01;
  options.optimizer.weight_decay = 0.1;
  options.schedule.learning_rate = 1e-3;
  return options;
}

// A trainer on the GPU with weights of its own.
struct OnGpu {
  explicit OnGpu(WeightStore* host, const PolicyTrainerOptions& options,
                 Numerics numerics = Numerics::kExact, int64_t logits_bytes = int64_t{1} << 30)
      : weights(DeviceWeights::CopyOf(*host)) {
    CudaExecutorOptions cuda;
    static_cast<ExecutorOptions&>(cuda) = options;
    cuda.numerics = numerics;
    cuda.logits_bytes = logits_bytes;
    auto executor =
        CudaExecutor::Create(host, weights, nullptr, *kernels::QueryDeviceLimits(0), cuda);
    EXPECT_TRUE(executor.ok()) << executor.status();
    auto made = PolicyTrainer::Create(*std::move(executor), options);
    EXPECT_TRUE(made.ok()) << made.status();
    trainer = *std::move(made);
  }
  std::shared_ptr<DeviceWeights> weights;
  std::unique_ptr<PolicyTrainer> trainer;
};

std::vector<float> GradientOf(PolicyTrainer* trainer, const TrainingBatch& batch) {
  auto gradient = trainer->Gradient(batch);
  EXPECT_TRUE(gradient.ok()) << gradient.status();
  return *std::move(gradient);
}

class CudaTrainerTest : public testing::TestWithParam<Model> {
 protected:
  void SetUp() override {
    if (kernels::NumDevices() == 0) GTEST_SKIP() << "no GPU";
    store_ = MakeStore(GetParam());
    batch_ = MakeBatch(store_->spec().vocab_size, 11);
  }
  // In bfloat16 the CPU's sums, rounded otherwise, choose another expert here and there.
  bool MayChooseOtherExperts() const {
    const model::ModelSpec& spec = store_->spec();
    return GetParam().dtype == DType::kBFloat16 && spec.has_moe() &&
           spec.experts_per_token < spec.num_experts;
  }
  // A rounding error of one operator, grown over the depth of forward and backward.
  double Tolerance() const {
    const double eps = GetParam().dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-22;
    return eps * std::sqrt(16.0 * static_cast<double>(store_->spec().num_layers));
  }
  std::unique_ptr<WeightStore> store_;
  TrainingBatch batch_;
};

TEST_P(CudaTrainerTest, GradientIsTheCpus) {
  if (MayChooseOtherExperts()) return;  // kAllExperts stands for it
  const auto cpu = MakeCpuTrainer(store_.get(), nullptr, Options());
  ASSERT_TRUE(cpu.ok());
  const std::vector<float> expected = GradientOf(cpu->get(), batch_);
  for (const Numerics numerics : {Numerics::kExact, Numerics::kFast}) {
    OnGpu gpu(store_.get(), Options(), numerics);
    const std::vector<float> got = GradientOf(gpu.trainer.get(), batch_);
    EXPECT_LE(RelativeDistance(got, expected), Tolerance());
    // Each parameter by itself: a small one must not hide behind the large.
    for (const model::Param& p : store_->layout().params) {
      const std::vector<float> a(got.begin() + p.offset, got.begin() + p.offset + p.num_elements());
      const std::vector<float> b(expected.begin() + p.offset,
                                 expected.begin() + p.offset + p.num_elements());
      if (Norm(b) == 0) continue;
      EXPECT_LE(RelativeDistance(a, b), 4 * Tolerance())
          << "parameter of kind " << static_cast<int>(p.kind) << ", layer " << p.layer;
    }
  }
}

TEST_P(CudaTrainerTest, GradientRepeatsAndDoesNotDependOnRecomputeOrHeadChunks) {
  OnGpu plain(store_.get(), Options());
  const std::vector<float> expected = GradientOf(plain.trainer.get(), batch_);
  ASSERT_GT(Norm(expected), 0);
  EXPECT_EQ(GradientOf(plain.trainer.get(), batch_), expected);
  PolicyTrainerOptions forgetful = Options();
  forgetful.recompute = true;
  OnGpu recomputed(store_.get(), forgetful);
  EXPECT_EQ(GradientOf(recomputed.trainer.get(), batch_), expected);
}

TEST_P(CudaTrainerTest, GradientDoesNotDependOnPacking) {
  PolicyTrainerOptions apart = Options();
  apart.share_prefix = false;
  OnGpu plain(store_.get(), apart);
  const std::vector<float> expected = GradientOf(plain.trainer.get(), batch_);
  for (const bool share : {false, true}) {
    for (const int64_t tokens : {1, 90, 100000}) {
      PolicyTrainerOptions options = Options();
      options.share_prefix = share;
      options.micro_batch_tokens = tokens;
      OnGpu gpu(store_.get(), options, Numerics::kExact, tokens == 90 ? 1 << 16 : 1 << 30);
      EXPECT_LE(RelativeDistance(GradientOf(gpu.trainer.get(), batch_), expected), Tolerance())
          << "share " << share << " tokens " << tokens;
    }
  }
}

TEST_P(CudaTrainerTest, StepsAreTheCpus) {
  if (MayChooseOtherExperts()) return;
  const auto host = MakeStore(GetParam());
  OnGpu gpu(host.get(), Options());
  const auto cpu = MakeCpuTrainer(store_.get(), nullptr, Options());
  for (int step = 0; step < 3; ++step) {
    const auto a = gpu.trainer->Train({batch_});
    const auto b = (*cpu)->Train({batch_});
    ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
    // The loss is a sum of terms of either sign: the error is measured by the gradient's.
    EXPECT_NEAR(a->grad_norm, b->grad_norm, 4 * Tolerance() * b->grad_norm);
    EXPECT_NEAR(a->entropy, b->entropy, Tolerance() * b->entropy);
    EXPECT_EQ(gpu.trainer->version(), (*cpu)->version());
  }
}

TEST_P(CudaTrainerTest, ACheckpointGoesOnBitForBit) {
  const TempFolder folder;
  const auto host = MakeStore(GetParam());
  OnGpu first(host.get(), Options());
  ASSERT_TRUE(first.trainer->Train({batch_}).ok());
  ASSERT_TRUE(first.trainer->Save(folder.path()).ok());
  ASSERT_TRUE(first.trainer->Train({batch_}).ok());
  first.weights->CopyTo(host.get(), nullptr);

  const auto other = MakeStore(GetParam());
  OnGpu second(other.get(), Options());
  const absl::Status loaded = second.trainer->Load(folder.path());
  ASSERT_TRUE(loaded.ok()) << loaded;
  EXPECT_EQ(second.trainer->version(), 1);
  ASSERT_TRUE(second.trainer->Train({batch_}).ok());
  second.weights->CopyTo(other.get(), nullptr);
  EXPECT_EQ(other->Checksum(), host->Checksum());
}

// The engine over the trainer's own weights.
std::vector<TrainingSequence> Sample(const std::shared_ptr<DeviceWeights>& weights,
                                     float temperature, Numerics numerics = Numerics::kExact) {
  rollout::cuda::CudaPassExecutorOptions options;
  options.numerics = numerics;
  options.scheduler.max_running = 24;
  options.scheduler.prefill_chunk_tokens = 100;
  options.scheduler.max_positions = std::min<int64_t>(400, weights->spec().max_positions);
  options.scheduler.max_draws = 64;
  options.kv_blocks = 600;
  auto executor = std::make_unique<rollout::cuda::CudaPassExecutor>(
      weights, nullptr, *kernels::QueryDeviceLimits(0), options);
  rollout::Engine engine(std::move(executor), nullptr, options.scheduler);
  fakes::Collector collector;
  std::vector<GenerationRequest> requests;
  for (uint64_t i = 0; i < 10; ++i) {
    GenerationRequest request;
    request.sampling.temperature = temperature;
    request.return_routed_experts = weights->spec().has_moe();
    request.sampling.max_new_tokens = 1 + static_cast<int64_t>(HashSeed({i, 5}) % 90);
    const uint64_t vocabulary = static_cast<uint64_t>(weights->spec().vocab_size);
    // Long ones where the model has room for them: more than one chunk of attention.
    const uint64_t longest = weights->spec().max_positions > 400 ? 300 : 60;
    for (uint64_t t = 0; t < 1 + HashSeed({i, 6}) % longest; ++t) {
      request.prompt_ids.push_back(static_cast<int32_t>(HashSeed({i, t, 7}) % vocabulary));
    }
    for (uint64_t n = 0; n < 4; ++n) request.seeds.push_back(HashSeed({i, n, 8}));
    engine.Submit(request, collector.Expect(i, 4));
    requests.push_back(std::move(request));
  }
  collector.Wait();
  std::vector<TrainingSequence> sequences;
  for (uint64_t i = 0; i < requests.size(); ++i) {
    for (const Generation& g : collector.Of(i)) {
      TrainingSequence s;
      s.group_id = i;
      s.shared_prefix = static_cast<int32_t>(requests[i].prompt_ids.size());
      s.token_ids = requests[i].prompt_ids;
      s.loss_mask.assign(s.token_ids.size(), 0);
      s.rollout_logprobs.assign(s.token_ids.size(), 0);
      s.token_ids.insert(s.token_ids.end(), g.token_ids.begin(), g.token_ids.end());
      s.loss_mask.resize(s.token_ids.size(), 1);
      s.rollout_logprobs.insert(s.rollout_logprobs.end(), g.logprobs.begin(), g.logprobs.end());
      s.advantages.assign(s.token_ids.size(), static_cast<float>(HashSeed({i, 9}) % 7) - 3);
      s.episode_tokens = static_cast<int64_t>(g.token_ids.size());
      s.routed_experts = std::make_shared<RoutedExperts>(g.routed_experts);
      sequences.push_back(std::move(s));
    }
  }
  return sequences;
}

TEST_P(CudaTrainerTest, LogprobsAreTheEnginesBitForBitBeforeAndAfterAStep) {
  for (const float temperature : {1.0f, 0.7f}) {
    PolicyTrainerOptions options = Options();
    options.temperature = temperature;
    const auto host = MakeStore(GetParam());
    OnGpu gpu(host.get(), options);
    for (int step = 0; step < 2; ++step) {
      TrainingBatch batch;
      batch.sequences = Sample(gpu.weights, temperature);
      batch.num_episodes = static_cast<int64_t>(batch.sequences.size());
      for (const TrainingSequence& s : batch.sequences) {
        batch.num_trained_tokens += s.episode_tokens;
      }
      const auto scores = gpu.trainer->Score(batch.sequences);
      ASSERT_TRUE(scores.ok()) << scores.status();
      for (size_t i = 0; i < batch.sequences.size(); ++i) {
        ASSERT_EQ((*scores)[i], batch.sequences[i].rollout_logprobs)
            << "sequence " << i << ", step " << step;
      }
      // And those of the forward that keeps what the gradient needs.
      const auto stats = gpu.trainer->Train({batch});
      ASSERT_TRUE(stats.ok()) << stats.status();
      EXPECT_EQ(stats->train_rollout_logprob_abs_diff_max, 0);
      EXPECT_EQ(gpu.weights->version(), step + 1);
    }
  }
}

TrainingBatch ToBatch(std::vector<TrainingSequence> sequences) {
  TrainingBatch batch;
  batch.num_episodes = static_cast<int64_t>(sequences.size());
  for (const TrainingSequence& s : sequences) batch.num_trained_tokens += s.episode_tokens;
  batch.sequences = std::move(sequences);
  return batch;
}

// In exact numerics the engine's experts are the trainer's own choice: replay changes no bit.
TEST_P(CudaTrainerTest, ReplayAtTheSamplingWeightsChangesNothing) {
  if (!store_->spec().has_moe()) return;
  PolicyTrainerOptions options = Options();
  OnGpu plain(store_.get(), options);
  options.replay_routing = true;
  for (const bool recompute : {false, true}) {
    options.recompute = recompute;
    OnGpu replaying(store_.get(), options);
    const TrainingBatch batch = ToBatch(Sample(plain.weights, 1));
    const auto measured = replaying.trainer->Measure(batch);
    ASSERT_TRUE(measured.ok()) << measured.status();
    EXPECT_EQ(measured->routing_replay->differing, 0);
    EXPECT_EQ(measured->routing_replay->own_routing_kl, 0);
    EXPECT_EQ(measured->routing_replay->replayed_kl, 0);
    EXPECT_EQ(measured->train_rollout_logprob_abs_diff_max, 0);
    EXPECT_EQ(GradientOf(replaying.trainer.get(), batch), GradientOf(plain.trainer.get(), batch));
  }
}

// With the routing given, the CPU's experts are the GPU's in bfloat16 too.
TEST_P(CudaTrainerTest, GradientOfReplayedRoutingIsTheCpus) {
  const model::ModelSpec& spec = store_->spec();
  if (!spec.has_moe()) return;
  const auto layers = static_cast<uint64_t>(spec.num_moe_layers());
  const auto k = static_cast<uint64_t>(spec.experts_per_token);
  const auto experts = static_cast<uint64_t>(spec.num_experts);
  std::map<uint64_t, std::shared_ptr<std::vector<uint8_t>>> prompts;
  for (TrainingSequence& s : batch_.sequences) {
    auto routed = std::make_shared<RoutedExperts>();
    routed->num_layers = static_cast<int32_t>(layers);
    routed->top_k = static_cast<int32_t>(k);
    auto& prompt = prompts[s.group_id];
    const auto fill = [&](uint64_t key, size_t positions, std::vector<uint8_t>* to) {
      for (uint64_t row = 0; row < positions * layers; ++row) {
        const uint64_t first = HashSeed({key, row}) % experts;
        for (uint64_t n = 0; n < k; ++n) {
          to->push_back(static_cast<uint8_t>((first + n) % experts));
        }
      }
    };
    const auto shared = static_cast<size_t>(s.shared_prefix);
    if (prompt == nullptr) {
      prompt = std::make_shared<std::vector<uint8_t>>();
      fill(s.group_id, shared, prompt.get());
    }
    routed->prompt = prompt;
    fill(1000 + s.episode_id, s.token_ids.size() - 1 - shared, &routed->rest);
    s.routed_experts = std::move(routed);
  }
  PolicyTrainerOptions options = Options();
  options.replay_routing = true;
  const auto cpu = MakeCpuTrainer(store_.get(), nullptr, options);
  ASSERT_TRUE(cpu.ok());
  const std::vector<float> expected = GradientOf(cpu->get(), batch_);
  for (const Numerics numerics : {Numerics::kExact, Numerics::kFast}) {
    for (const int64_t tokens : {90, 100000}) {
      options.micro_batch_tokens = tokens;
      OnGpu gpu(store_.get(), options, numerics);
      EXPECT_LE(RelativeDistance(GradientOf(gpu.trainer.get(), batch_), expected), Tolerance());
    }
  }
}

// Fast numerics on both sides round alike nowhere: here and there the trainer's router would
// choose another expert, and replay takes that part of the mismatch away.
TEST(CudaReplayTest, TakesAwayMismatchOfFastNumerics) {
  if (kernels::NumDevices() == 0) GTEST_SKIP() << "no GPU";
  constexpr const char* kConfig = R"({"vocab_size": 500, "num_hidden_layers": 6,
    "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
    "intermediate_size": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "max_position_embeddings": 1024, "hidden_act": "silu", "torch_dtype": "bfloat16",
    "initializer_range": 0.08, "tie_word_embeddings": false,
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 64,
    "num_experts_per_tok": 4, "moe_intermediate_size": 96, "norm_topk_prob": true,
    "decoder_sparse_step": 1, "mlp_only_layers": []})";
  const auto store = MakeStore({"experts", kConfig, DType::kBFloat16});
  PolicyTrainerOptions options = Options();
  options.replay_routing = true;
  options.micro_batch_tokens = 100000;
  OnGpu gpu(store.get(), options, Numerics::kFast);
  const auto measured = gpu.trainer->Measure(ToBatch(Sample(gpu.weights, 1, Numerics::kFast)));
  ASSERT_TRUE(measured.ok()) << measured.status();
  const TrainStats::RoutingReplay& replay = measured->routing_replay.value();
  std::printf("differing %.5f, KL with its own routing %.3g, replayed %.3g\n", replay.differing,
              replay.own_routing_kl, replay.replayed_kl);
  EXPECT_GT(replay.differing, 0);
  EXPECT_LT(replay.differing, 0.2);
  EXPECT_LT(replay.replayed_kl, replay.own_routing_kl);
}

INSTANTIATE_TEST_SUITE_P(Models, CudaTrainerTest,
                         testing::Values(Model{"llama", nullptr, DType::kFloat32},
                                         Model{"qwen2", nullptr, DType::kFloat32},
                                         Model{"qwen3", nullptr, DType::kFloat32},
                                         Model{"qwen3_moe", nullptr, DType::kFloat32},
                                         Model{"llama", nullptr, DType::kBFloat16},
                                         Model{"dense", kDense, DType::kBFloat16},
                                         Model{"biased", kBiased, DType::kBFloat16},
                                         Model{"experts", kExperts, DType::kBFloat16},
                                         Model{"all_experts", kAllExperts, DType::kBFloat16},
                                         Model{"experts", kExperts, DType::kFloat32}),
                         [](const auto& info) {
                           return fmt::format(
                               "{}_{}", info.param.name,
                               info.param.dtype == DType::kBFloat16 ? "bfloat16" : "float32");
                         });

}  // namespace
}  // namespace orrery::trainer
