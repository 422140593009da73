// The central promise: the log-probs that the trainer computes are, bit for bit, those that the
// engine recorded while sampling, and neither depends on what else was in the batch.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cpu/thread_pool.h"
#include "rollout/inference_ops.h"
#include "tests/fakes/one_sequence.h"
#include "tests/trainer/engine_data.h"
#include "trainer/cpu/cpu_executor.h"

namespace orrery::trainer {
namespace {

using kernels::DType;
using model::WeightStore;

const std::vector<int64_t> kLengths = {1, 2, 15, 16, 17, 31, 32, 33, 48, 5};

class Threads {
 public:
  explicit Threads(int n) { kernels::SetNumThreads(n); }
  ~Threads() { kernels::SetNumThreads(0); }
};

std::unique_ptr<PolicyTrainer> MakeTrainer(WeightStore* store,
                                           const PolicyTrainerOptions& options) {
  auto trainer = MakeCpuTrainer(store, nullptr, options);
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  return *std::move(trainer);
}

// Every way of scoring gives what was recorded.
void ExpectScoresEqualRecorded(WeightStore* store, const std::vector<TrainingSequence>& sequences,
                               float temperature) {
  for (const bool share : {false, true}) {
    for (const int64_t tokens : {1, 70, 4096}) {
      PolicyTrainerOptions options;
      options.temperature = temperature;
      options.share_prefix = share;
      options.micro_batch_tokens = tokens;
      const auto scores = MakeTrainer(store, options)->Score(sequences);
      ASSERT_TRUE(scores.ok()) << scores.status();
      for (size_t i = 0; i < sequences.size(); ++i) {
        ASSERT_NO_FATAL_FAILURE(
            ExpectSame((*scores)[i], sequences[i].rollout_logprobs,
                       fmt::format("share {} tokens {} sequence {}", share, tokens, i)));
      }
    }
  }
}

struct Case {
  const char* family;
  DType dtype;
};

class EngineParityTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { store_ = fakes::LoadTiny(GetParam().family, GetParam().dtype); }
  std::unique_ptr<WeightStore> store_;
};

TEST_P(EngineParityTest, ScoresEqualRecordedLogprobs) {
  for (const float temperature : {1.0f, 0.7f}) {
    const auto requests = MakeRequests(store_->spec(), Sampling(temperature, 24), kLengths);
    const Generations generations = Generate(*store_, Options(store_->spec()), requests);
    size_t stopped = 0, cut = 0;
    for (const auto& group : generations) {
      for (const Generation& g : group) {
        ASSERT_FALSE(g.token_ids.empty());
        ASSERT_EQ(g.token_ids.size(), g.logprobs.size());
        ASSERT_EQ(g.token_ids.size(), g.versions.size());
        (g.finish_reason == FinishReason::kStop ? stopped : cut) += 1;
      }
    }
    EXPECT_GT(stopped, 0u);
    EXPECT_GT(cut, 0u);
    for (const int threads : {1, 3}) {
      const Threads pool(threads);
      ASSERT_NO_FATAL_FAILURE(
          ExpectScoresEqualRecorded(store_.get(), ToSequences(requests, generations), temperature));
    }
  }
}

TEST_P(EngineParityTest, ResultsDependOnRequestAndWeightsAlone) {
  const auto requests = MakeRequests(store_->spec(), Sampling(1, 20), kLengths);
  const rollout::EngineOptions plain = Options(store_->spec());
  const Generations expected = Generate(*store_, plain, requests);
  const auto expect = [&](const rollout::EngineOptions& options, const std::string& what,
                          Arrival arrival = Arrival::kTogether) {
    EngineStats stats;
    const Generations got = Generate(*store_, options, requests, arrival, &stats);
    ExpectSame(expected, got, what);
    return stats;
  };
  expect(plain, "one by one", Arrival::kOneByOne);
  expect(plain, "backwards", Arrival::kBackwards);
  for (const int64_t chunk : {1, 7, 40}) {
    rollout::EngineOptions options = plain;
    options.scheduler.prefill_chunk_tokens = chunk;
    expect(options, fmt::format("chunks of {}", chunk));
  }
  for (const int64_t running : {1, 3}) {
    rollout::EngineOptions options = plain;
    options.scheduler.max_running = running;
    EXPECT_LE(expect(options, fmt::format("{} running", running)).peak_running, running);
  }
  for (const int64_t chunk : {5, 512}) {
    rollout::EngineOptions options = plain;
    options.scheduler.prefill_chunk_tokens = chunk;
    options.kv_blocks = 9;
    EXPECT_GT(expect(options, "a small cache").preemptions, 0);
    for (const int64_t swap_blocks : {2, 200}) {
      options.scheduler.swap_blocks = swap_blocks;
      EXPECT_GT(expect(options, "a small cache with swap").swaps, 0);
    }
  }
  rollout::EngineOptions unsharded = plain;
  unsharded.sharded_model_bytes = 0;
  for (const int threads : {1, 3}) {
    const Threads pool(threads);
    expect(plain, fmt::format("{} threads", threads));
    expect(unsharded, fmt::format("one shard on {} threads", threads));
  }
}

TEST_P(EngineParityTest, OneFlippedBitIsSeen) {
  const auto requests = MakeRequests(store_->spec(), Sampling(1, 16), {17, 6});
  const auto sequences =
      ToSequences(requests, Generate(*store_, Options(store_->spec()), requests));
  // Bit 4 of a number's last byte, in the first layer's query projection.
  const model::ParamId qkv = store_->layout().layers[0].qkv;
  fakes::FlipBits(store_.get(), store_->layout().params[qkv].offset + 3, 0x10);
  const auto scores = MakeTrainer(store_.get(), {})->Score(sequences);
  ASSERT_TRUE(scores.ok());
  size_t different = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    different += (*scores)[i] != sequences[i].rollout_logprobs;
  }
  EXPECT_GT(different, 0u);
  fakes::FlipBits(store_.get(), store_->layout().params[qkv].offset + 3, 0x10);
  ExpectScoresEqualRecorded(store_.get(), sequences, 1);
}

// A loop that computes the whole sequence anew for every token.
std::vector<int32_t> NaiveGreedy(const WeightStore& store, std::vector<int32_t> ids,
                                 int64_t count) {
  const model::ModelSpec& spec = store.spec();
  const kernels::RopeTable rope(spec.rope_inv_freq, spec.max_positions);
  std::vector<int32_t> out;
  while (static_cast<int64_t>(out.size()) < count) {
    const int64_t n = static_cast<int64_t>(ids.size());
    rollout::KvCache cache(spec, (n + 15) / 16);
    rollout::InferenceOps ops(&store, &cache, &rope);
    const fakes::OneSequence sequence(ids);
    const std::vector<int32_t> last = {static_cast<int32_t>(n - 1)};
    const kernels::TensorView logits =
        ops.Logits(model::Forward(spec, store.layout(), sequence.batch(), ops), last);
    const float* row = logits.f32();
    out.push_back(static_cast<int32_t>(std::max_element(row, row + logits.cols) - row));
    ids.push_back(out.back());
  }
  return out;
}

TEST_P(EngineParityTest, GreedyEqualsANaiveLoop) {
  SamplingOptions sampling = Sampling(0, 12);
  sampling.stop_token_ids.clear();
  const auto requests = MakeRequests(store_->spec(), sampling, {1, 15, 16, 17, 40});
  const Generations generations = Generate(*store_, Options(store_->spec()), requests);
  for (size_t r = 0; r < requests.size(); ++r) {
    const auto expected = NaiveGreedy(*store_, requests[r].prompt_ids, 12);
    for (const Generation& g : generations[r]) EXPECT_EQ(g.token_ids, expected);
  }
  // Log-probs of greedy responses are those at temperature 1.
  ExpectScoresEqualRecorded(store_.get(), ToSequences(requests, generations), 1);
}

TEST_P(EngineParityTest, TrainSeesNoMismatch) {
  const auto requests = MakeRequests(store_->spec(), Sampling(0.7f, 16), kLengths);
  const auto sequences =
      ToSequences(requests, Generate(*store_, Options(store_->spec()), requests));
  for (const size_t num_batches : {1, 3}) {
    const auto store = fakes::LoadTiny(GetParam().family, GetParam().dtype);
    PolicyTrainerOptions options;
    options.temperature = 0.7f;
    options.micro_batch_tokens = 200;
    std::vector<TrainingBatch> batches;
    for (size_t b = 0; b < num_batches; ++b) {
      const size_t first = sequences.size() * b / num_batches;
      const size_t end = sequences.size() * (b + 1) / num_batches;
      batches.push_back(
          ToBatch(std::vector<TrainingSequence>(sequences.begin() + static_cast<int64_t>(first),
                                                sequences.begin() + static_cast<int64_t>(end))));
    }
    const auto stats = MakeTrainer(store.get(), options)->Train(batches);
    ASSERT_TRUE(stats.ok()) << stats.status();
    EXPECT_EQ(stats->train_rollout_logprob_abs_diff_max, 0) << num_batches << " batches";
    EXPECT_EQ(stats->train_rollout_logprob_abs_diff_mean, 0);
    EXPECT_EQ(stats->train_rollout_kl, 0);
    EXPECT_GT(stats->grad_norm, 0);
    EXPECT_EQ(store->version(), num_batches);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, EngineParityTest,
    testing::Values(Case{"llama", DType::kFloat32}, Case{"llama3", DType::kFloat32},
                    Case{"qwen2", DType::kFloat32}, Case{"qwen3", DType::kFloat32},
                    Case{"qwen3_moe", DType::kFloat32}, Case{"llama", DType::kBFloat16},
                    Case{"llama3", DType::kBFloat16}, Case{"qwen2", DType::kBFloat16},
                    Case{"qwen3", DType::kBFloat16}, Case{"qwen3_moe", DType::kBFloat16}),
    [](const auto& info) {
      return std::string(info.param.family) +
             (info.param.dtype == DType::kFloat32 ? "_float32" : "_bfloat16");
    });

// Beyond the sizes up to which micro-batches and shards run side by side.
TEST(LargeModelParityTest, ScoresEqualRecordedLogprobs) {
  constexpr char kConfig[] = R"({"model_type": "qwen3", "vocab_size": 4099, "hidden_size": 320,
      "num_hidden_layers": 2, "intermediate_size": 1200, "num_attention_heads": 5,
      "num_key_value_heads": 5, "head_dim": 80, "max_position_embeddings": 128,
      "initializer_range": 0.1, "tie_word_embeddings": false})";
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const auto store = fakes::MakeRandom(kConfig, 3, dtype);
    ASSERT_GT(store->flat().size(), size_t{8} << 20);
    const auto requests = MakeRequests(store->spec(), Sampling(1, 8), {17, 40});
    const Generations generations = Generate(*store, Options(store->spec()), requests);
    const auto sequences = ToSequences(requests, generations);
    for (const int threads : {1, 3}) {
      const Threads pool(threads);
      PolicyTrainerOptions options;
      options.micro_batch_tokens = threads == 1 ? 64 : 4096;
      const auto scores = MakeTrainer(store.get(), options)->Score(sequences);
      ASSERT_TRUE(scores.ok()) << scores.status();
      for (size_t i = 0; i < sequences.size(); ++i) {
        ASSERT_NO_FATAL_FAILURE(
            ExpectSame((*scores)[i], sequences[i].rollout_logprobs, fmt::format("sequence {}", i)));
      }
    }
  }
}

}  // namespace
}  // namespace orrery::trainer
