// A reference model on a GPU: its scores are the CPU's, it stays as it was while the policy moves,
// and KL in the loss pulls with the CPU's gradient.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cuda/device.h"
#include "tests/fakes/tiny_models.h"
#include "tests/trainer/cuda/dense_model.h"
#include "tests/trainer/training_data.h"
#include "trainer/cpu/cpu_executor.h"
#include "trainer/cuda/cuda_executor.h"

namespace orrery::trainer {
namespace {

using kernels::DType;
using model::DeviceWeights;
using model::WeightStore;

class CudaReferenceTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (kernels::NumDevices() == 0) GTEST_SKIP() << "no GPU";
    policy_ = fakes::MakeRandom(kDense, 7, GetParam());
    batch_ = MakeBatch(policy_->spec().vocab_size, 11);
    options_.schedule.learning_rate = 1e-3;
    options_.loss.kl = KlKind::kK3;
    options_.loss.kl_coef = 0.5;
  }
  std::unique_ptr<WeightStore> Reference() const {
    return fakes::MakeRandom(kDense, 8, GetParam());
  }
  std::unique_ptr<PolicyTrainer> OnGpu() {
    CudaExecutorOptions cuda;
    static_cast<ExecutorOptions&>(cuda) = options_;
    auto executor = CudaExecutor::Create(policy_.get(), DeviceWeights::CopyOf(*policy_),
                                         DeviceWeights::CopyOf(*Reference()),
                                         *kernels::QueryDeviceLimits(0), cuda);
    EXPECT_TRUE(executor.ok()) << executor.status();
    return *PolicyTrainer::Create(*std::move(executor), options_);
  }
  std::unique_ptr<PolicyTrainer> OnCpu() {
    return *MakeCpuTrainer(policy_.get(), Reference(), options_);
  }
  static std::vector<std::vector<float>> ReferenceOf(PolicyTrainer* trainer, TrainingBatch* batch) {
    const absl::Status scored = trainer->ScoreReference(batch);
    EXPECT_TRUE(scored.ok()) << scored;
    std::vector<std::vector<float>> all;
    for (const TrainingSequence& s : batch->sequences) all.push_back(s.reference_logprobs);
    return all;
  }
  double Eps() const { return GetParam() == DType::kBFloat16 ? 0x1p-8 : 0x1p-22; }

  std::unique_ptr<WeightStore> policy_;
  TrainingBatch batch_;
  PolicyTrainerOptions options_;
};

double Norm(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * v;
  return std::sqrt(sum);
}

TEST_P(CudaReferenceTest, ScoresAreTheCpusAndStayWhileThePolicyMoves) {
  const auto gpu = OnGpu(), cpu = OnCpu();
  TrainingBatch on_cpu = batch_, again = batch_;
  const auto expected = ReferenceOf(cpu.get(), &on_cpu), got = ReferenceOf(gpu.get(), &batch_);
  double difference = 0, size = 0;
  ASSERT_EQ(got.size(), expected.size());
  for (size_t s = 0; s < got.size(); ++s) {
    ASSERT_EQ(got[s].size(), expected[s].size());
    for (size_t t = 0; t < got[s].size(); ++t) {
      difference += std::pow(got[s][t] - expected[s][t], 2);
      size += std::pow(expected[s][t], 2);
    }
  }
  ASSERT_GT(size, 0);
  EXPECT_LE(std::sqrt(difference / size), Eps() * std::sqrt(16.0 * 3));
  // It is another model than the policy's.
  const auto own = gpu->Score(batch_.sequences);
  ASSERT_TRUE(own.ok());
  EXPECT_NE(*own, got);
  ASSERT_TRUE(gpu->Train({batch_}).ok());
  EXPECT_EQ(ReferenceOf(gpu.get(), &again), got);
  EXPECT_NE(*gpu->Score(batch_.sequences), *own);
}

TEST_P(CudaReferenceTest, KlInTheLossHasTheCpusGradient) {
  const auto gpu = OnGpu(), cpu = OnCpu();
  TrainingBatch scored = batch_;
  ReferenceOf(cpu.get(), &scored);
  const auto expected = cpu->Gradient(scored), got = gpu->Gradient(scored);
  ASSERT_TRUE(expected.ok() && got.ok());
  std::vector<float> difference = *got;
  for (size_t i = 0; i < difference.size(); ++i) difference[i] -= (*expected)[i];
  EXPECT_LE(Norm(difference), Eps() * std::sqrt(16.0 * 3) * Norm(*expected));
  options_.loss.kl = KlKind::kNone;  // the term is there
  options_.loss.kl_coef = 0;
  const auto without = OnGpu()->Gradient(scored);
  ASSERT_TRUE(without.ok());
  EXPECT_NE(*without, *got);
}

INSTANTIATE_TEST_SUITE_P(DTypes, CudaReferenceTest,
                         testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const testing::TestParamInfo<DType>& info) {
                           return info.param == DType::kFloat32 ? "float32" : "bfloat16";
                         });

}  // namespace
}  // namespace orrery::trainer
