// What the dry run of a training step counts: without a GPU against sums written out by hand and
// against itself, with one against what the same step takes.
#include <gtest/gtest.h>

#include "kernels/cuda/device.h"
#include "kernels/experts/routed_experts_grad_cuda.h"
#include "orchestrator/base/status.h"
#include "tests/fakes/tiny_models.h"
#include "tests/trainer/training_data.h"
#include "trainer/batch_bounds.h"
#include "trainer/cuda/cuda_executor.h"
#include "trainer/model/known_shapes.h"

namespace orrery::trainer {
namespace {

using kernels::DType;
using kernels::cuda::Numerics;
using kernels::cuda::PagePool;

CudaTrainingOptions Options(bool recompute, Numerics numerics = Numerics::kFast) {
  CudaTrainingOptions options;
  options.recompute = recompute;
  options.numerics = numerics;
  return options;
}

model::ModelSpec Shape(const char* name, int64_t layers) {
  return model::FirstLayers(*model::KnownShape(name), layers);
}

std::vector<MicroBatch> Full(int64_t tokens) {
  return {LargestMicroBatches({tokens, /*sequence_tokens=*/2049}).front()};
}

int64_t Align(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// Every activation of a dense layer, from the transformer's definition.
TEST(TrainingBytesTest, DenseActivationsAreThoseOfTheDefinition) {
  constexpr int64_t kT = 8192, kLayers = 3;
  const model::ModelSpec spec = Shape("qwen3-1.7b", kLayers);
  const TrainingBytes bytes = CudaTrainingOps::DryRun(spec, DType::kBFloat16, kernels::H200Limits(),
                                                      Options(false), Full(kT));
  const auto rows = [&](int64_t n, int64_t width) { return Align(n * width * 2); };
  const int64_t d = spec.hidden_size, q = spec.heads.q_width(), qkv = spec.heads.qkv_width();
  const int64_t f = spec.intermediate_size, n = kT;
  int64_t expected = rows(kT, d);  // embedding
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    expected += (layer == 0 ? 1 : 2) * rows(kT, d);  // sum, norm; the first has nothing to add
    expected += 2 * rows(kT, qkv) + rows(kT, q) + rows(kT, d);
    expected += 2 * rows(kT, d);  // sum, norm
    expected += rows(kT, 2 * f) + rows(kT, f) + rows(kT, d);
    expected += rows(kT, d);  // gradient of the block's input
  }
  expected += 2 * rows(kT, d);                      // last sum and norm
  expected += 2 * rows(n, d);                       // the head's rows and their gradient
  expected += Align(5 * n * 4) + Align(2 * n * 4);  // scores and their gradients
  expected += 2 * rows(kT, d);                      // gradients of last norm and sum
  EXPECT_EQ(bytes.activations, PagePool::RoundUp(expected));
  EXPECT_EQ(bytes.logits, PagePool::RoundUp(Options(false).logits_bytes / (2 * spec.vocab_size) *
                                            2 * spec.vocab_size));
}

TEST(TrainingBytesTest, RecomputeKeepsTheBlocksEndsOnly) {
  const model::ModelSpec spec = Shape("qwen3-8b", 12);
  const auto run = [&](bool recompute) {
    return CudaTrainingOps::DryRun(spec, DType::kBFloat16, kernels::H200Limits(),
                                   Options(recompute), Full(16384));
  };
  const TrainingBytes kept = run(false), again = run(true);
  EXPECT_LT(again.activations, kept.activations / 4);
  // One block's activations and gradients, instead of its gradients alone.
  EXPECT_GT(again.block, kept.block);
  EXPECT_LT(again.total(), kept.total() / 2);
}

TEST(TrainingBytesTest, ExpertsWorkspaceIsCounted) {
  const model::ModelSpec spec = Shape("qwen3-30b-a3b", 2);
  const TrainingBytes bytes = CudaTrainingOps::DryRun(spec, DType::kBFloat16, kernels::H200Limits(),
                                                      Options(false), Full(16384));
  EXPECT_GE(bytes.workspaces(), kernels::cuda::RoutedExpertsGradWorkspaceBytes(
                                    spec.experts_shape(), 16384, DType::kBFloat16));
}

TEST(TrainingBytesTest, LayersAddTheSame) {
  const auto activations = [](int64_t layers) {
    return CudaTrainingOps::DryRun(Shape("qwen3-30b-a3b", layers), DType::kBFloat16,
                                   kernels::H200Limits(), Options(false), Full(4096))
        .activations;
  };
  const int64_t four = activations(4), eight = activations(8), twelve = activations(12);
  EXPECT_NEAR(static_cast<double>(twelve - eight), static_cast<double>(eight - four),
              static_cast<double>(2 * PagePool::kPageBytes));
}

// Any order of micro-batches takes what the largest takes: nothing fragments.
TEST(TrainingBytesTest, SmallerMicroBatchesBeforeTakeNothingMore) {
  const model::ModelSpec spec = Shape("qwen3-0.6b", 4);
  std::vector<MicroBatch> rising;
  for (const int64_t tokens : {100, 3000, 5000, 5100, 8000, 8192}) {
    rising.push_back(Full(tokens).front());
  }
  const auto run = [&](std::span<const MicroBatch> micros) {
    return CudaTrainingOps::DryRun(spec, DType::kBFloat16, kernels::H200Limits(), Options(false),
                                   micros);
  };
  EXPECT_EQ(run(rising).in_pages(), run(std::span(rising).last(1)).in_pages());
}

struct Case {
  const char* shape;
  int64_t layers;
  Numerics numerics;
  bool recompute;
};

class TrainingBytesOnGpuTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (kernels::NumDevices() == 0) GTEST_SKIP() << "no GPU";
  }
};

absl::Status OneStep(CudaExecutor* executor, std::span<const MicroBatch> micros) {
  RETURN_IF_ERROR(executor->ForwardBackward(
      micros, 1,
      [](size_t, const TokenScores&, std::span<float> dlogprobs, std::span<float> dentropies) {
        std::fill(dlogprobs.begin(), dlogprobs.end(), -1e-6f);
        std::fill(dentropies.begin(), dentropies.end(), 0.0f);
        return absl::OkStatus();
      }));
  executor->Step(executor->GradNorm(), 1e-5);
  return absl::OkStatus();
}

TEST_P(TrainingBytesOnGpuTest, DryRunIsWhatTheStepTakes) {
  const Case c = GetParam();
  const model::ModelSpec spec = Shape(c.shape, c.layers);
  const kernels::DeviceLimits device = *kernels::QueryDeviceLimits(0);
  auto weights = std::make_shared<model::DeviceWeights>(spec, DType::kBFloat16);
  weights->Randomise(1, nullptr);
  CudaExecutorOptions options;
  options.numerics = c.numerics;
  options.recompute = c.recompute;
  const std::vector<MicroBatch> micros =
      LargestMicroBatches({8192, /*sequence_tokens=*/1025, /*prompt_tokens=*/300, /*samples=*/8});
  {
    // What the driver and the libraries load for kernels is no matter of the step's size.
    const auto warm = *CudaExecutor::Create(nullptr, weights, nullptr, device, options);
    ASSERT_TRUE(OneStep(warm.get(), LargestMicroBatches({512, 128})).ok());
  }
  CUDA_CHECK(cudaDeviceSynchronize());
  const int64_t before = kernels::QueryDeviceMemory().taken_bytes();
  const auto executor = *CudaExecutor::Create(nullptr, weights, nullptr, device, options);
  ASSERT_TRUE(OneStep(executor.get(), micros).ok());
  const int64_t taken = kernels::QueryDeviceMemory().taken_bytes() - before;
  const TrainingBytes got = executor->activation_bytes();
  const TrainingBytes planned = CudaTrainingOps::DryRun(spec, DType::kBFloat16, device,
                                                        Options(c.recompute, c.numerics), micros);
  // Scoring alone may take more of a block than this step did.
  EXPECT_EQ(got.activations, planned.activations);
  EXPECT_LE(got.block, planned.block);
  EXPECT_EQ(got.logits, planned.logits);
  EXPECT_EQ(got.workspaces(), planned.workspaces());
  EXPECT_EQ(got.inputs, planned.inputs);
  const int64_t predicted = planned.total() + CudaExecutor::StateBytes(weights->layout());
  EXPECT_NEAR(static_cast<double>(taken), static_cast<double>(predicted),
              0.05 * static_cast<double>(predicted));
}

// What is reserved by the dry run of the largest micro-batches is all that any step takes; and
// steps compute the same in it.
TEST_P(TrainingBytesOnGpuTest, ReservedOnceNothingMoreIsTaken) {
  const Case c = GetParam();
  const model::ModelSpec spec = Shape(c.shape, c.layers);
  const kernels::DeviceLimits device = *kernels::QueryDeviceLimits(0);
  const std::vector<MicroBatch> micros =
      LargestMicroBatches({4096, /*sequence_tokens=*/1025, /*prompt_tokens=*/300, /*samples=*/8});
  const TrainingBytes planned = CudaTrainingOps::DryRun(spec, DType::kBFloat16, device,
                                                        Options(c.recompute, c.numerics), micros);
  std::vector<std::vector<float>> gradients;
  for (const bool reserved : {false, true}) {
    auto weights = std::make_shared<model::DeviceWeights>(spec, DType::kBFloat16);
    weights->Randomise(1, nullptr);
    CudaExecutorOptions options;
    options.numerics = c.numerics;
    options.recompute = c.recompute;
    if (reserved) options.reserve = planned;
    const auto executor = *CudaExecutor::Create(nullptr, weights, nullptr, device, options);
    const auto bytes = [&] { return executor->activation_bytes(); };
    if (reserved) {
      EXPECT_EQ(bytes().in_pages(), planned.in_pages());
      EXPECT_EQ(bytes().inputs, planned.inputs);
    } else {
      EXPECT_EQ(bytes().in_pages(), 0);
    }
    ASSERT_TRUE(OneStep(executor.get(), LargestMicroBatches({512, 128})).ok());
    ASSERT_TRUE(OneStep(executor.get(), micros).ok());
    if (reserved) {
      EXPECT_EQ(bytes().in_pages(), planned.in_pages());
      EXPECT_EQ(bytes().inputs, planned.inputs);
    }
    gradients.push_back(executor->Gradient());
  }
  EXPECT_TRUE(gradients[0] == gradients[1]);
}

INSTANTIATE_TEST_SUITE_P(Shapes, TrainingBytesOnGpuTest,
                         testing::Values(Case{"qwen3-0.6b", 8, Numerics::kFast, false},
                                         Case{"qwen3-0.6b", 8, Numerics::kFast, true},
                                         Case{"qwen3-0.6b", 8, Numerics::kExact, false},
                                         Case{"qwen3-0.6b", 8, Numerics::kExact, true},
                                         Case{"qwen3-30b-a3b", 2, Numerics::kFast, false},
                                         Case{"qwen3-30b-a3b", 2, Numerics::kFast, true},
                                         Case{"qwen3-30b-a3b", 2, Numerics::kExact, false},
                                         Case{"qwen3-30b-a3b", 2, Numerics::kExact, true}),
                         [](const testing::TestParamInfo<Case>& info) {
                           return std::string(info.param.layers == 8 ? "Dense" : "Experts") +
                                  (info.param.numerics == Numerics::kFast ? "Fast" : "Exact") +
                                  (info.param.recompute ? "Recompute" : "Keep");
                         });

}  // namespace
}  // namespace orrery::trainer
