// The engine with the GPU's executor: greedy text equals the CPU's in float32, and in exact
// numerics a response does not depend on what else runs, on chunks, groups or preemption, bit for
// bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/cuda/device.h"
#include "orchestrator/base/hash.h"
#include "rollout/cuda/cuda_pass_executor.h"
#include "rollout/engine.h"
#include "tests/fakes/collector.h"

namespace orrery::rollout::cuda {
namespace {

using kernels::DType;

constexpr const char* kConfig = R"({"vocab_size": 500, "num_hidden_layers": 2, "hidden_size": 256,
  "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512,
  "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 1024, "hidden_act": "silu",
  "torch_dtype": "bfloat16", "initializer_range": 0.08, "tie_word_embeddings": false,
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 16,
  "num_experts_per_tok": 4, "moe_intermediate_size": 96, "norm_topk_prob": true,
  "decoder_sparse_step": 1, "mlp_only_layers": [0]})";

struct Setting {
  int64_t max_running = 64, chunk = 512, blocks = 2000;
  Numerics numerics = Numerics::kExact;
  int64_t swap_blocks = 0;
  KvFormat kv_format = KvFormat::kModel;
};

class CudaEngineTest : public testing::Test {
 protected:
  void SetUp() override {
    if (kernels::NumDevices() == 0) GTEST_SKIP() << "no GPU";
    spec_ = *model::ParseModelSpec(kConfig, "test");
  }
  std::unique_ptr<model::WeightStore> MakeStore(DType dtype) const {
    auto store = std::make_unique<model::WeightStore>(spec_, dtype);
    store->BeginUpdate();
    store->Randomise(5);
    store->Commit(1);
    return store;
  }
  std::unique_ptr<PassExecutor> MakeExecutor(const model::WeightStore& store,
                                             const Setting& setting) const {
    CudaPassExecutorOptions options;
    options.scheduler = Limits(setting);
    options.kv_blocks = setting.blocks;
    options.numerics = setting.numerics;
    options.kv_format = setting.kv_format;
    options.top_logprobs = 8;
    auto weights = std::make_unique<DeviceWeights>(spec_, store.dtype());
    weights->CopyFrom(store, nullptr);
    CUDA_CHECK(cudaDeviceSynchronize());
    return std::make_unique<CudaPassExecutor>(std::move(weights), &store,
                                              *kernels::QueryDeviceLimits(0), options);
  }
  SchedulerLimits Limits(const Setting& setting) const {
    SchedulerLimits limits;
    limits.max_running = setting.max_running;
    limits.prefill_chunk_tokens = setting.chunk;
    limits.max_positions = 600;
    limits.max_draws = 64;
    limits.swap_blocks = setting.swap_blocks;
    return limits;
  }
  GenerationRequest MakeRequest(uint64_t i, const SamplingOptions& sampling) const {
    GenerationRequest request;
    request.sampling = sampling;
    request.sampling.max_new_tokens = 1 + static_cast<int64_t>(HashSeed({i, 5}) % 90);
    for (uint64_t t = 0; t < 1 + HashSeed({i, 6}) % 130; ++t) {
      request.prompt_ids.push_back(static_cast<int32_t>(HashSeed({i, t, 7}) % 500));
    }
    for (uint64_t n = 0; n < 4; ++n) request.seeds.push_back(HashSeed({i, n, 8}));
    request.return_routed_experts = routed_experts_;
    request.top_logprobs = i % 3 == 2 ? 0 : top_logprobs_;
    return request;
  }
  // 24 requests of 4 responses; split: each response as a request of its own.
  std::vector<Generation> Generate(std::unique_ptr<PassExecutor> executor, const Setting& setting,
                                   const SamplingOptions& sampling, bool split = false) const {
    fakes::Collector collector;
    std::vector<Generation> all;
    Engine engine(std::move(executor), nullptr, Limits(setting));
    for (uint64_t i = 0; i < 24; ++i) {
      GenerationRequest request = MakeRequest(i, sampling);
      if (!split) {
        engine.Submit(request, collector.Expect(i, 4));
        continue;
      }
      for (uint64_t n = 0; n < 4; ++n) {
        GenerationRequest one = request;
        one.seeds = {request.seeds[n]};
        engine.Submit(one, collector.Expect(100 + 4 * i + n, 1));
      }
    }
    collector.Wait();
    stats_ = engine.stats();
    preemptions_ += stats_.preemptions;
    for (uint64_t i = 0; i < 24; ++i) {
      for (uint64_t n = 0; n < 4; ++n) {
        all.push_back(split ? collector.Of(100 + 4 * i + n)[0] : collector.Of(i)[n]);
      }
    }
    return all;
  }
  // The same requests from the CPU's engine.
  std::vector<Generation> GenerateOnCpu(const model::WeightStore& store, const Setting& setting,
                                        const SamplingOptions& sampling) const {
    EngineOptions options;
    options.scheduler = Limits(setting);
    options.kv_blocks = setting.blocks;
    fakes::Collector collector;
    Engine engine(&store, nullptr, options);
    for (uint64_t i = 0; i < 24; ++i) {
      engine.Submit(MakeRequest(i, sampling), collector.Expect(i, 4));
    }
    collector.Wait();
    std::vector<Generation> all;
    for (uint64_t i = 0; i < 24; ++i) {
      for (uint64_t n = 0; n < 4; ++n) all.push_back(collector.Of(i)[n]);
    }
    return all;
  }
  static void ExpectSame(const std::vector<Generation>& a, const std::vector<Generation>& b,
                         const std::string& what) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(a[i].token_ids, b[i].token_ids) << what << ", response " << i;
      ASSERT_EQ(a[i].logprobs, b[i].logprobs) << what << ", response " << i;
      ASSERT_EQ(a[i].entropy_sum, b[i].entropy_sum) << what << ", response " << i;
    }
  }

  model::ModelSpec spec_;
  mutable int64_t preemptions_ = 0;
  mutable EngineStats stats_;  // of the last Generate
  bool routed_experts_ = false;
  int64_t top_logprobs_ = 0;
};

TEST_F(CudaEngineTest, GreedyTextEqualsTheCpus) {
  const auto store = MakeStore(DType::kFloat32);
  SamplingOptions greedy;
  greedy.temperature = 0;
  const Setting setting;
  const std::vector<Generation> gpu = Generate(MakeExecutor(*store, setting), setting, greedy);
  const std::vector<Generation> cpu = GenerateOnCpu(*store, setting, greedy);
  for (uint64_t i = 0; i < 24; ++i) {
    const Generation& want = cpu[4 * i];
    const Generation& got = gpu[4 * i];
    ASSERT_EQ(got.token_ids, want.token_ids) << "request " << i;
    for (size_t t = 0; t < want.logprobs.size(); ++t) {
      // Log-probs of some units, from logits that agree to 2e-5 of their norm.
      ASSERT_NEAR(got.logprobs[t], want.logprobs[t], 1e-3);
    }
  }
}

TEST_F(CudaEngineTest, ExactResponsesDependOnNothingElse) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    const auto store = MakeStore(dtype);
    const Setting plain;
    const SamplingOptions sampling;
    const std::vector<Generation> want = Generate(MakeExecutor(*store, plain), plain, sampling);
    const auto expect = [&](const Setting& setting, const std::string& what, bool split = false) {
      ExpectSame(Generate(MakeExecutor(*store, setting), setting, sampling, split), want, what);
    };
    expect(plain, "a second time");
    expect(plain, "each response alone", true);
    expect({3, 512, 2000}, "three at a time");
    expect({64, 7, 2000}, "chunks of 7");
    expect({64, 100, 60}, "few blocks");
    EXPECT_GT(preemptions_, 0);
  }
}

TEST_F(CudaEngineTest, SwappedResponsesGoOnBitForBit) {
  const std::pair<DType, KvFormat> formats[] = {{DType::kBFloat16, KvFormat::kModel},
                                                {DType::kFloat32, KvFormat::kModel},
                                                {DType::kBFloat16, KvFormat::kFloat8}};
  for (const auto& [dtype, format] : formats) {
    const auto store = MakeStore(dtype);
    Setting setting;
    setting.kv_format = format;
    const std::vector<Generation> want = Generate(MakeExecutor(*store, setting), setting, {});
    ASSERT_EQ(stats_.preemptions, 0);
    const int64_t prompt_tokens = stats_.prompt_tokens;
    const auto expect = [&](int64_t swap_blocks) {
      setting.chunk = 100;
      setting.blocks = 60;
      setting.swap_blocks = swap_blocks;
      ExpectSame(Generate(MakeExecutor(*store, setting), setting, {}), want,
                 fmt::format("{} blocks of the host", swap_blocks));
      EXPECT_GT(stats_.preemptions, 0);
    };
    expect(0);
    EXPECT_EQ(stats_.swaps + stats_.swapped_out_bytes, 0);
    expect(4000);
    EXPECT_GT(stats_.swaps, 0);
    EXPECT_EQ(stats_.prompt_tokens, prompt_tokens) << "a prompt was computed again";
    const int64_t block = CudaOps::KvBytes(spec_, dtype, 1, format);
    EXPECT_GT(stats_.swapped_in_bytes, 0);
    EXPECT_EQ(stats_.swapped_in_bytes % block, 0);
    EXPECT_LE(stats_.swapped_in_bytes, stats_.swapped_out_bytes);
    expect(7);  // full most of the time: the others are computed again
    EXPECT_GT(stats_.preemptions, stats_.swaps);
    EXPECT_GT(stats_.swaps, 0);
  }
}

std::vector<int> Experts(const Generation& g) {
  std::vector<int> ids;
  for (int64_t p = 0; p < g.routed_experts.num_positions(); ++p) {
    const uint8_t* at = g.routed_experts.At(p);
    ids.insert(ids.end(), at, at + g.routed_experts.token_bytes());
  }
  return ids;
}

TEST_F(CudaEngineTest, RoutedExpertsEqualTheCpus) {
  const auto store = MakeStore(DType::kFloat32);
  SamplingOptions greedy;
  greedy.temperature = 0;
  const Setting setting;
  routed_experts_ = true;
  const std::vector<Generation> gpu = Generate(MakeExecutor(*store, setting), setting, greedy);
  const std::vector<Generation> cpu = GenerateOnCpu(*store, setting, greedy);
  for (uint64_t i = 0; i < 24; ++i) {
    for (uint64_t n = 0; n < 4; ++n) {
      const Generation& want = cpu[4 * i + n];
      const Generation& got = gpu[4 * i + n];
      ASSERT_EQ(got.token_ids, want.token_ids);
      ASSERT_EQ(
          got.routed_experts.num_positions(),
          static_cast<int64_t>(MakeRequest(i, greedy).prompt_ids.size() + got.token_ids.size()) -
              1);
      ASSERT_EQ(got.routed_experts.num_layers, 1);
      ASSERT_EQ(got.routed_experts.top_k, 4);
      ASSERT_EQ(Experts(got), Experts(want)) << "request " << i << " response " << n;
    }
  }
}

TEST_F(CudaEngineTest, RoutedExpertsDependOnNothingElseAndChangeNothing) {
  const auto store = MakeStore(DType::kBFloat16);
  const Setting plain;
  const std::vector<Generation> unasked = Generate(MakeExecutor(*store, plain), plain, {});
  routed_experts_ = true;
  const std::vector<Generation> want = Generate(MakeExecutor(*store, plain), plain, {});
  ExpectSame(want, unasked, "recording changes no token");
  EXPECT_EQ(unasked[0].routed_experts.num_bytes(), 0);
  for (const Setting& setting :
       {Setting{3, 512, 2000}, Setting{64, 7, 2000}, Setting{64, 100, 60}}) {
    const std::vector<Generation> got = Generate(MakeExecutor(*store, setting), setting, {});
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(Experts(got[i]), Experts(want[i])) << "response " << i;
    }
  }
  EXPECT_GT(preemptions_, 0);
}

TEST_F(CudaEngineTest, SwapRecordsTheExpertsOnce) {
  const auto store = MakeStore(DType::kBFloat16);
  const Setting plain;
  routed_experts_ = true;
  const std::vector<Generation> want = Generate(MakeExecutor(*store, plain), plain, {});
  Setting few{64, 100, 60};
  few.swap_blocks = 4000;
  const std::vector<Generation> got = Generate(MakeExecutor(*store, few), few, {});
  EXPECT_GT(stats_.swaps, 0);
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(Experts(got[i]), Experts(want[i])) << "response " << i;
  }
}

TEST_F(CudaEngineTest, TopLogprobsAreTheCpusAndDependOnNothingElse) {
  const auto store = MakeStore(DType::kFloat32);
  SamplingOptions greedy;
  greedy.temperature = 0;
  const Setting plain;
  const std::vector<Generation> unasked = Generate(MakeExecutor(*store, plain), plain, greedy);
  top_logprobs_ = 5;
  const std::vector<Generation> gpu = Generate(MakeExecutor(*store, plain), plain, greedy);
  ExpectSame(gpu, unasked, "looking changes no token");
  const std::vector<Generation> cpu = GenerateOnCpu(*store, plain, greedy);
  for (uint64_t i = 0; i < 24; ++i) {
    const Generation& want = cpu[4 * i];
    const Generation& got = gpu[4 * i];
    ASSERT_EQ(got.top_logprobs.size(), (i % 3 == 2 ? 0 : 5) * got.token_ids.size());
    ASSERT_EQ(got.top_logprobs.size(), want.top_logprobs.size());
    for (size_t t = 0; t < want.top_logprobs.size(); ++t) {
      // As for log-probs in GreedyTextEqualsTheCpus; of two so near either may come first.
      ASSERT_NEAR(got.top_logprobs[t].logprob, want.top_logprobs[t].logprob, 1e-3);
      if (t % 5 == 0) {
        ASSERT_EQ(got.top_logprobs[t].token_id, got.token_ids[t / 5]);
        ASSERT_EQ(got.top_logprobs[t].logprob, got.logprobs[t / 5]);
      }
    }
  }
  for (const Setting& setting :
       {Setting{3, 512, 2000}, Setting{64, 7, 2000}, Setting{64, 100, 60}}) {
    const std::vector<Generation> other = Generate(MakeExecutor(*store, setting), setting, greedy);
    for (size_t i = 0; i < gpu.size(); ++i) {
      ASSERT_EQ(other[i].top_logprobs.size(), gpu[i].top_logprobs.size());
      for (size_t t = 0; t < gpu[i].top_logprobs.size(); ++t) {
        ASSERT_EQ(other[i].top_logprobs[t].token_id, gpu[i].top_logprobs[t].token_id);
        ASSERT_EQ(other[i].top_logprobs[t].logprob, gpu[i].top_logprobs[t].logprob);
      }
    }
  }
  top_logprobs_ = 9;  // more than this engine was made for
  EXPECT_EQ(Generate(MakeExecutor(*store, plain), plain, greedy)[0].finish_reason,
            FinishReason::kRejected);
}

TEST_F(CudaEngineTest, FiltersPenaltiesAndMinimumLengths) {
  const auto store = MakeStore(DType::kFloat32);
  SamplingOptions sampling;
  sampling.top_k = 20;
  sampling.top_p = 0.9f;
  sampling.repetition_penalty = 1.3f;
  sampling.presence_penalty = 0.4f;
  sampling.min_new_tokens = 30;
  sampling.stop_token_ids = {3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const Setting plain, few{5, 64, 400};
  const std::vector<Generation> want = Generate(MakeExecutor(*store, plain), plain, sampling);
  ExpectSame(Generate(MakeExecutor(*store, few), few, sampling), want, "five at a time");
  for (size_t i = 0; i < want.size(); ++i) {
    const int64_t limit = MakeRequest(i / 4, sampling).sampling.max_new_tokens;
    EXPECT_GE(static_cast<int64_t>(want[i].token_ids.size()), std::min<int64_t>(30, limit));
  }
}

TEST_F(CudaEngineTest, NewWeightsAreTakenBetweenPasses) {
  const auto store = MakeStore(DType::kBFloat16);
  const Setting setting;
  Engine engine(MakeExecutor(*store, setting), nullptr, Limits(setting));
  const auto generate = [&](uint64_t key) {
    fakes::Collector collector;
    engine.Submit(MakeRequest(1, {}), collector.Expect(key, 4));
    collector.Wait();
    return collector.Of(key);
  };
  const std::vector<Generation> before = generate(0);
  ASSERT_TRUE(engine.BeginUpdate(2).ok());
  store->BeginUpdate();
  store->Randomise(6);
  store->Commit(2);
  ASSERT_TRUE(engine.Commit(2).ok());
  const std::vector<Generation> after = generate(1);
  EXPECT_NE(before[0].logprobs, after[0].logprobs);
  EXPECT_EQ(after[0].versions.front(), 2);
  Engine fresh(MakeExecutor(*store, setting), nullptr, Limits(setting));
  fakes::Collector collector;
  fresh.Submit(MakeRequest(1, {}), collector.Expect(0, 4));
  collector.Wait();
  ExpectSame(after, collector.Of(0), "a fresh engine on the new weights");
}

}  // namespace
}  // namespace orrery::rollout::cuda
