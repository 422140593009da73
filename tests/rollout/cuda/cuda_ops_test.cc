// The forward pass on the GPU against the one on the CPU, and against itself: a position's logits
// are the same bits in prefill, in decode and in any batch.
#include "rollout/cuda/cuda_ops.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "kernels/cpu/bfloat16.h"
#include "kernels/cuda/device.h"
#include "rollout/inference_ops.h"

namespace orrery::rollout::cuda {
namespace {

using kernels::DType;
using kernels::kBlockTokens;

struct Shape {
  std::string name, json;
};

std::string Config(const std::string& family, int64_t heads, int64_t kv_heads, int64_t head_dim,
                   int64_t hidden) {
  std::string json = R"({"vocab_size": 300, "num_hidden_layers": 3, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "max_position_embeddings": 2048, "hidden_act": "silu",
    "torch_dtype": "bfloat16", "initializer_range": 0.05, )";
  json += fmt::format(R"("hidden_size": {}, "num_attention_heads": {}, "num_key_value_heads": {},
    "head_dim": {}, "intermediate_size": {}, )",
                      hidden, heads, kv_heads, head_dim, 2 * hidden);
  if (family == "llama") {
    json += R"("architectures": ["LlamaForCausalLM"], "model_type": "llama",
      "tie_word_embeddings": true})";
  } else if (family == "qwen3") {
    json += R"("architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
      "tie_word_embeddings": false})";
  } else {
    json += R"("architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
      "tie_word_embeddings": false, "num_experts": 16, "num_experts_per_tok": 4,
      "moe_intermediate_size": 96, "norm_topk_prob": true, "decoder_sparse_step": 1,
      "mlp_only_layers": [1]})";
  }
  return json;
}

// A model on both sides, and keys and values of one sequence in blocks out of order.
class Model {
 public:
  Model(const std::string& json, DType dtype, int64_t tokens, bool round_weights = false)
      : spec_(*model::ParseModelSpec(json, "test")),
        host_(spec_, dtype),
        device_(spec_, dtype),
        limits_(*kernels::QueryDeviceLimits(0)),
        rope_(spec_.rope_inv_freq, kPositions) {
    host_.BeginUpdate();
    host_.Randomise(3);
    if (round_weights) {
      std::vector<float> values(static_cast<size_t>(host_.layout().num_elements));
      host_.CopyTo(values);
      for (float& v : values) v = kernels::RoundToBFloat16(v);
      host_.Assign(values);
    }
    host_.Commit(1);
    device_.CopyFrom(host_, nullptr);
    for (int64_t i = 0; i < tokens; ++i) {
      ids_.push_back(static_cast<int32_t>((i * 7919 + 13) % spec_.vocab_size));
    }
    const int64_t blocks = tokens / kBlockTokens + 1;
    for (int64_t b = 0; b < blocks; ++b) {
      blocks_.push_back(static_cast<int32_t>((b * 5 + 2) % kBlocks));
    }
    OpsLimits limits;
    limits.max_rows = limits.max_samples = limits.max_logit_rows = kPositions;
    limits.max_positions = kPositions;
    limits.kv_blocks = kBlocks;
    ops_ = std::make_unique<CudaOps>(&device_, limits_, limits, nullptr);
  }

  // Logits of positions [first, first + count), in one pass, on the GPU. `copies`: the rows stand
  // that many times in the batch, the last one wins (they are the same).
  // replay: experts of all positions as Cpu recorded them; needs first 0 and no padding.
  std::vector<float> Gpu(int64_t first, int64_t count, int64_t padding = 0,
                         const std::vector<int32_t>& replay = {}) {
    const int64_t rows = count + padding;
    std::vector<int32_t> in(5 * rows + blocks_.size());
    int32_t *ids = in.data(), *positions = ids + rows, *slots = positions + rows,
            *sequence = slots + rows, *wanted = sequence + rows;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t p = first + i;
      const bool real = i < count;
      ids[i] = real ? ids_[p] : 0;
      positions[i] = real ? static_cast<int32_t>(p) : -1;
      slots[i] =
          real ? static_cast<int32_t>(blocks_[p / kBlockTokens] * kBlockTokens + p % kBlockTokens)
               : 0;
      sequence[i] = 0;
      wanted[i] = real ? static_cast<int32_t>(i) : -1;
    }
    std::copy(blocks_.begin(), blocks_.end(), wanted + rows);
    DeviceBuffer buffer(static_cast<int64_t>(in.size()) * 4);
    CUDA_CHECK(cudaMemcpy(buffer.data(), in.data(), in.size() * 4, cudaMemcpyHostToDevice));
    StepInput input;
    input.token_ids = buffer.as<int32_t>();
    input.positions = input.token_ids + rows;
    input.slots = input.positions + rows;
    input.sequence_of = input.slots + rows;
    input.logit_rows = input.sequence_of + rows;
    input.block_tables = input.logit_rows + rows;
    input.table_stride = static_cast<int64_t>(blocks_.size());
    input.max_position = static_cast<int64_t>(ids_.size()) - 1;
    input.num_logit_rows = rows;
    DeviceBuffer experts(static_cast<int64_t>(replay.size()) * 4);
    if (!replay.empty()) {
      CUDA_CHECK(
          cudaMemcpy(experts.data(), replay.data(), replay.size() * 4, cudaMemcpyHostToDevice));
      input.replay_experts = experts.as<int32_t>();
    }
    const kernels::TensorView logits = ops_->Head(ops_->Hidden(input, rows));
    CUDA_CHECK(cudaDeviceSynchronize());
    const int64_t n = count * spec_.vocab_size;
    std::vector<float> out(static_cast<size_t>(n));
    if (logits.dtype == DType::kFloat32) {
      CUDA_CHECK(cudaMemcpy(out.data(), logits.data, n * 4, cudaMemcpyDeviceToHost));
      return out;
    }
    std::vector<uint16_t> raw(static_cast<size_t>(n));
    CUDA_CHECK(cudaMemcpy(raw.data(), logits.data, n * 2, cudaMemcpyDeviceToHost));
    for (int64_t i = 0; i < n; ++i) out[i] = kernels::FromBFloat16(raw[i]);
    return out;
  }

  std::vector<float> Cpu(const std::vector<int32_t>& replay = {}) {
    const auto n = static_cast<int64_t>(ids_.size());
    KvCache cache(spec_, kBlocks);
    InferenceOps ops(&host_, &cache, &rope_);
    std::vector<int32_t> positions(ids_.size()), slots(ids_.size()), all(ids_.size());
    std::iota(positions.begin(), positions.end(), 0);
    std::iota(all.begin(), all.end(), 0);
    for (int64_t p = 0; p < n; ++p) {
      slots[p] = static_cast<int32_t>(blocks_[p / kBlockTokens] * kBlockTokens + p % kBlockTokens);
    }
    kernels::SequenceSpan span;
    span.num_rows = n;
    span.blocks = blocks_;
    model::Batch batch;
    batch.token_ids = ids_;
    batch.positions = positions;
    batch.slots = slots;
    batch.sequences = {&span, 1};
    batch.replay_experts = replay;
    const model::Value hidden = model::Forward(spec_, host_.layout(), batch, ops);
    routed_ = ops.routed_experts();
    const kernels::TensorView logits = ops.Logits(hidden, all);
    return std::vector<float>(logits.f32(), logits.f32() + logits.num_elements());
  }
  // Of the last Cpu(): [layers with experts, tokens, top_k].
  const std::vector<int32_t>& routed() const { return routed_; }
  int64_t vocabulary() const { return spec_.vocab_size; }

 private:
  static constexpr int64_t kPositions = 1024, kBlocks = 97;
  model::ModelSpec spec_;
  model::WeightStore host_;
  DeviceWeights device_;
  kernels::DeviceLimits limits_;
  kernels::RopeTable rope_;
  std::vector<int32_t> ids_, blocks_, routed_;
  std::unique_ptr<CudaOps> ops_;
};

double RelativeDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

class CudaOpsTest : public testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    if (kernels::NumDevices() == 0) GTEST_SKIP() << "no GPU";
  }
};

TEST_P(CudaOpsTest, Float32AgreesWithTheCpu) {
  Model model(GetParam().json, DType::kFloat32, 70);
  // Sums of at most 1,024 terms in two orders, through three layers.
  EXPECT_LT(RelativeDifference(model.Gpu(0, 70), model.Cpu()), 2e-5);
}

TEST_P(CudaOpsTest, BFloat16IsAsNearToFloat32AsTheCpu) {
  // The same bfloat16 weights in float32 arithmetic, and in bfloat16 on both sides: two roundings
  // of one thing, so their errors are of one size.
  Model rounded(GetParam().json, DType::kBFloat16, 70);
  Model exact(GetParam().json, DType::kFloat32, 70, /*round_weights=*/true);
  // All with the routing of the exact one: a flip between near-equal experts is no rounding.
  const std::vector<float> truth = exact.Cpu();
  const std::vector<int32_t> routing = exact.routed();
  EXPECT_LT(RelativeDifference(rounded.Gpu(0, 70, 0, routing), truth),
            1.25 * RelativeDifference(rounded.Cpu(routing), truth));
}

TEST_P(CudaOpsTest, AnyBatchGivesTheSameBits) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    Model model(GetParam().json, dtype, 600);
    const std::vector<float> whole = model.Gpu(0, 600);
    const size_t v = static_cast<size_t>(model.vocabulary());
    for (const auto& [first, count, padding] : std::vector<std::array<int64_t, 3>>{{599, 1, 0},
                                                                                   {599, 1, 7},
                                                                                   {300, 1, 0},
                                                                                   {256, 40, 0},
                                                                                   {0, 9, 3},
                                                                                   {590, 10, 120},
                                                                                   {400, 200, 0}}) {
      const std::vector<float> part = model.Gpu(first, count, padding);
      ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first * v))
          << count << " rows from " << first << " with " << padding << " of padding";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, CudaOpsTest,
                         testing::Values(Shape{"Llama", Config("llama", 9, 3, 64, 576)},
                                         Shape{"LlamaSmall", Config("llama", 4, 2, 24, 96)},
                                         Shape{"Qwen3", Config("qwen3", 8, 2, 128, 256)},
                                         Shape{"Qwen3Group8", Config("qwen3", 16, 2, 64, 256)},
                                         Shape{"Qwen3Moe", Config("qwen3_moe", 8, 2, 128, 256)}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace orrery::rollout::cuda
