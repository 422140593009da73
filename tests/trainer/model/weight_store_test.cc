#include "trainer/model/weight_store.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/fakes/tiny_models.h"
#include "tests/trainer/model/temp_folder.h"
#include "trainer/model/safetensors.h"
#include "trainer/model/safetensors_writer.h"

namespace orrery::model {
namespace {

using kernels::DType;

// The tensors of a checkpoint, changed before they are written again.
struct Tensors {
  explicit Tensors(const std::string& folder) {
    const auto checkpoint = Checkpoint::Open(folder);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    for (const std::string& name : (*checkpoint)->names()) {
      const FileTensor* tensor = (*checkpoint)->Find(name);
      values[name].resize(static_cast<size_t>(tensor->num_elements()));
      EXPECT_TRUE(ToFloat32(*tensor, values[name]).ok());
      shapes[name] = tensor->shape;
    }
  }
  absl::Status Load(WeightStore* store) const {
    const TempFolder folder;
    std::vector<TensorSource> sources;
    for (const auto& [name, data] : values) {
      sources.push_back(
          FromBytes(name, FileDtype::kF32, shapes.at(name), std::as_bytes(std::span(data))));
    }
    EXPECT_TRUE(WriteCheckpoint(folder.path(), sources).ok());
    store->BeginUpdate();
    const absl::Status status = store->LoadCheckpoint(folder.path());
    store->Commit(store->version() + 1);
    return status;
  }
  std::map<std::string, std::vector<float>> values;
  std::map<std::string, std::vector<int64_t>> shapes;
};

class WeightStoreTest : public testing::TestWithParam<const char*> {
 protected:
  std::string folder_ = fakes::TinyFolder(GetParam());
  std::unique_ptr<WeightStore> store_ = fakes::LoadTiny(GetParam(), DType::kFloat32);
};

TEST_P(WeightStoreTest, SavedAndLoadedItIsTheSame) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const auto store = fakes::LoadTiny(GetParam(), dtype);
    const TempFolder folder;
    ASSERT_TRUE(store->SaveCheckpoint(folder.path()).ok());
    WeightStore again(store->spec(), dtype);
    again.BeginUpdate();
    ASSERT_TRUE(again.LoadCheckpoint(folder.path()).ok());
    again.Commit(1);
    EXPECT_EQ(again.Checksum(), store->Checksum());
  }
}

TEST_P(WeightStoreTest, EveryTensorOfTheFileLandsInAPlaceOfItsOwn) {
  const Tensors tensors(folder_);
  std::vector<float> flat(static_cast<size_t>(store_->layout().num_elements));
  store_->CopyTo(flat);
  std::vector<int> used(flat.size());
  ASSERT_EQ(store_->layout().tensors.size(), tensors.values.size());
  for (const CheckpointTensor& t : store_->layout().tensors) {
    const Param& p = store_->layout().params[t.param];
    const int64_t start = p.offset + (t.is_vector ? t.row : t.row * p.cols);
    const std::vector<float>& expected = tensors.values.at(t.name);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(flat[start + i], expected[i]) << t.name;
      ASSERT_EQ(++used[start + i], 1) << t.name;
    }
  }
  for (size_t i = 0; i < flat.size(); ++i) {
    if (used[i] == 0) {
      ASSERT_EQ(flat[i], 0) << "a gap at " << i;
    }
  }
}

TEST_P(WeightStoreTest, WhatIsDerivedFollowsTheWeights) {
  const LayerParams& layer = store_->layout().layers[0];
  const auto packed_at = [&](int64_t row, int64_t col) {
    const kernels::PackedWeight& w = store_->Packed(layer.qkv);
    return static_cast<const float*>(w.data)[row / 16 * 16 * w.k + col * 16 + row % 16];
  };
  EXPECT_EQ(packed_at(17, 5), store_->View(layer.qkv).f32(17)[5]);
  fakes::Poke(store_.get(), layer.qkv, 17 * 32 + 5, 4.25f);
  EXPECT_EQ(packed_at(17, 5), 4.25f);
  fakes::Poke(store_.get(), layer.input_norm, 3, 0.75f);
  EXPECT_EQ(store_->Vector(layer.input_norm)[3], 0.75f);
  EXPECT_EQ(store_->Vector(kNoParam), nullptr);
}

TEST_P(WeightStoreTest, DamagedCheckpointsAreNamed) {
  const auto expect = [&](const Tensors& tensors, const std::vector<std::string>& words) {
    const absl::Status status = tensors.Load(store_.get());
    ASSERT_FALSE(status.ok());
    for (const std::string& word : words) {
      EXPECT_NE(std::string(status.message()).find(word), std::string::npos)
          << status << " says nothing of " << word;
    }
  };
  const Tensors good(folder_);
  ASSERT_TRUE(good.Load(store_.get()).ok());
  const std::string name = "model.layers.1.self_attn.o_proj.weight";
  Tensors missing = good;
  missing.values.erase(name);
  expect(missing, {name});
  Tensors transposed = good;
  transposed.shapes[name] = {transposed.shapes[name][1] * 2, transposed.shapes[name][0] / 2};
  expect(transposed, {name, "shape"});
  Tensors flat = good;
  flat.shapes[name] = {flat.shapes[name][0] * flat.shapes[name][1]};
  expect(flat, {name, "shape"});
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    Tensors broken = good;
    broken.values[name][7] = bad;
    expect(broken, {name, "element 7"});
  }
}

TEST_P(WeightStoreTest, ChecksumSeesEveryBit) {
  const uint64_t before = store_->Checksum();
  for (int64_t at : {int64_t{0}, int64_t{33}, store_->layout().num_elements - 1}) {
    fakes::FlipBits(store_.get(), at, 1);
    EXPECT_NE(store_->Checksum(), before) << at;
    fakes::FlipBits(store_.get(), at, 1);
    EXPECT_EQ(store_->Checksum(), before);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, WeightStoreTest,
                         testing::Values("llama", "llama3", "qwen2", "qwen3", "qwen3_moe"),
                         [](const auto& info) { return std::string(info.param); });

TEST(WeightStoreRandomTest, IsAFunctionOfTheSeed) {
  const auto tiny = fakes::LoadTiny("qwen3_moe", DType::kFloat32);
  const auto checksum = [&](uint64_t seed) {
    WeightStore store(tiny->spec(), DType::kFloat32);
    store.BeginUpdate();
    store.Randomise(seed);
    store.Commit(0);
    for (const Param& p : store.layout().params) {
      std::vector<float> all(static_cast<size_t>(store.layout().num_elements));
      store.CopyTo(all);
      double squares = 0;
      for (int64_t i = 0; i < p.num_elements(); ++i) {
        squares += static_cast<double>(all[p.offset + i]) * all[p.offset + i];
      }
      const double n = static_cast<double>(p.num_elements());
      if (p.is_vector()) {
        EXPECT_EQ(squares, n);
      } else {  // the variance of a mean of squares of a normal variable: 2 / n
        EXPECT_NEAR(squares / n, 0.01, 0.01 * 6 * std::sqrt(2 / n));
      }
    }
    return store.Checksum();
  };
  EXPECT_EQ(checksum(1), checksum(1));
  EXPECT_NE(checksum(1), checksum(2));
}

TEST(WeightStoreShapeTest, MatricesOfOneRowAreMatrices) {
  const auto spec = ParseModelSpec(
      R"({"model_type": "qwen3_moe", "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1,
          "intermediate_size": 4, "num_attention_heads": 2, "num_experts": 1})",
      "c.json");
  ASSERT_TRUE(spec.ok()) << spec.status();
  WeightStore store(*spec, DType::kFloat32);
  store.BeginUpdate();
  store.Randomise(1);
  store.Commit(0);
  const ParamId router = store.layout().layers[0].router;
  EXPECT_TRUE(store.layout().params[router].decay);
  EXPECT_EQ(store.Packed(router).n, 1);
}

TEST(WeightStoreTransactionTest, OutOfOrderUseEnds) {
  const auto store = fakes::LoadTiny("llama", DType::kFloat32);
  EXPECT_DEATH(store->Commit(1), "in_update");
  store->BeginUpdate();
  EXPECT_TRUE(store->in_update());
  EXPECT_DEATH(store->BeginUpdate(), "in_update");
}

}  // namespace
}  // namespace orrery::model
