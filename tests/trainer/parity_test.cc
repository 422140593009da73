// The model against transformers: logits, log-probs and gradients of tiny checkpoints of every
// family (tests/trainer/model/make_golden_models.py made them), for both executors.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "orchestrator/base/status.h"
#include "rollout/inference_ops.h"
#include "trainer/cpu/cpu_executor.h"
#include "trainer/model/safetensors.h"

namespace orrery::trainer {
namespace {

using kernels::DType;
using model::WeightStore;

const std::string kData = std::string(ORRERY_SOURCE_DIR) + "/tests/trainer/model/data/";

std::unique_ptr<WeightStore> LoadStore(const std::string& folder, DType dtype) {
  const auto spec = model::LoadModelSpec(folder);
  EXPECT_TRUE(spec.ok()) << spec.status();
  auto store = std::make_unique<WeightStore>(*spec, dtype);
  store->BeginUpdate();
  const absl::Status loaded = store->LoadCheckpoint(folder);
  EXPECT_TRUE(loaded.ok()) << loaded;
  store->Commit(0);
  return store;
}

std::vector<float> Floats(const model::SafetensorsFile& file, const std::string& name) {
  const model::FileTensor* tensor = file.Find(name);
  EXPECT_NE(tensor, nullptr) << name;
  std::vector<float> out(static_cast<size_t>(tensor->num_elements()));
  EXPECT_TRUE(model::ToFloat32(*tensor, out).ok());
  return out;
}

std::vector<int32_t> Ints(const model::SafetensorsFile& file, const std::string& name) {
  const model::FileTensor* tensor = file.Find(name);
  EXPECT_NE(tensor, nullptr) << name;
  std::vector<int32_t> out(static_cast<size_t>(tensor->num_elements()));
  std::memcpy(out.data(), tensor->data.data(), tensor->data.size());
  return out;
}

double RelativeDifference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / norm);
}

class ParityTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = kData + GetParam();
    auto golden = model::SafetensorsFile::Open(folder_ + "/golden.safetensors");
    ASSERT_TRUE(golden.ok()) << golden.status();
    golden_ = *std::move(golden);
    ids_ = Ints(*golden_, "ids");
    length_ = ids_.size() / 2;
    store_ = LoadStore(folder_, DType::kFloat32);
  }

  std::vector<TrainingSequence> Sequences() const {
    std::vector<TrainingSequence> out;
    for (size_t i = 0; i < 2; ++i) {
      TrainingSequence s;
      s.episode_id = i;
      s.group_id = i;
      s.token_ids.assign(ids_.begin() + i * length_, ids_.begin() + (i + 1) * length_);
      s.loss_mask.assign(length_, 1);
      s.loss_mask[0] = 0;
      s.advantages.assign(length_, 1.0f);
      s.episode_tokens = static_cast<int64_t>(length_) - 1;
      out.push_back(s);
    }
    return out;
  }

  std::string folder_;
  std::unique_ptr<model::SafetensorsFile> golden_;
  std::vector<int32_t> ids_;
  size_t length_ = 0;
  std::unique_ptr<WeightStore> store_;
};

TEST_P(ParityTest, InferenceLogitsEqualTransformers) {
  const model::ModelSpec& spec = store_->spec();
  rollout::KvCache cache(spec, 16);
  const kernels::RopeTable rope(spec.rope_inv_freq, spec.max_positions);
  rollout::InferenceOps ops(store_.get(), &cache, &rope);
  const std::vector<float> expected = Floats(*golden_, "logits");
  const std::vector<int32_t> blocks[2] = {{3, 1}, {0, 7}};
  std::vector<int32_t> positions, slots, rows(ids_.size());
  std::vector<kernels::SequenceSpan> spans;
  for (size_t s = 0; s < 2; ++s) {
    kernels::SequenceSpan span;
    span.first_row = static_cast<int64_t>(s * length_);
    span.num_rows = static_cast<int64_t>(length_);
    span.blocks = blocks[s];
    spans.push_back(span);
    for (size_t p = 0; p < length_; ++p) {
      positions.push_back(static_cast<int32_t>(p));
      slots.push_back(blocks[s][p / 16] * 16 + static_cast<int32_t>(p % 16));
    }
  }
  std::iota(rows.begin(), rows.end(), 0);
  model::Batch batch;
  batch.token_ids = ids_;
  batch.positions = positions;
  batch.slots = slots;
  batch.sequences = spans;
  std::vector<int32_t> routing;
  if (spec.has_moe()) routing = Ints(*golden_, "routing");
  batch.replay_experts = routing;
  const kernels::TensorView logits =
      ops.Logits(model::Forward(spec, store_->layout(), batch, ops), rows);
  EXPECT_LT(RelativeDifference({logits.f32(), expected.size()}, expected), 1e-5);
}

TEST_P(ParityTest, GradientEqualsAutograd) {
  PolicyTrainerOptions options;
  options.loss.algorithm = Algorithm::kReinforce;
  options.loss.aggregation = Aggregation::kTokenMean;
  for (const bool recompute : {false, true}) {
    options.recompute = recompute;
    auto trainer = MakeCpuTrainer(store_.get(), nullptr, options);
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    TrainingBatch batch;
    batch.sequences = Sequences();
    batch.num_episodes = 2;
    batch.num_trained_tokens = 2 * (static_cast<int64_t>(length_) - 1);
    const auto gradient = (*trainer)->Gradient(batch);
    ASSERT_TRUE(gradient.ok()) << gradient.status();
    std::vector<float> ours, theirs;
    for (const model::CheckpointTensor& tensor : store_->layout().tensors) {
      const model::Param& p = store_->layout().params[tensor.param];
      const int64_t start = p.offset + (tensor.is_vector ? tensor.row : tensor.row * p.cols);
      const std::vector<float> expected = Floats(*golden_, "grad." + tensor.name);
      ours.insert(ours.end(), gradient->begin() + start,
                  gradient->begin() + start + static_cast<int64_t>(expected.size()));
      theirs.insert(theirs.end(), expected.begin(), expected.end());
      double norm = 0;
      for (const float g : expected) norm += static_cast<double>(g) * g;
      if (norm > 1e-12) {
        EXPECT_LT(RelativeDifference({&*(ours.end() - expected.size()), expected.size()}, expected),
                  2e-5)
            << tensor.name;
      }
    }
    EXPECT_LT(RelativeDifference(ours, theirs), 1e-5) << "recompute " << recompute;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ParityTest,
                         testing::Values("llama", "llama3", "qwen2", "qwen3", "qwen3_moe"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace orrery::trainer
