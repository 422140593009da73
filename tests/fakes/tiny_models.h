// The tiny checkpoints of tests/trainer/model/data, loaded, and models made up from a config.json.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>

#include "trainer/model/model_spec.h"
#include "trainer/model/weight_store.h"

namespace orrery::fakes {

inline constexpr const char* kFamilies[] = {"llama", "llama3", "qwen2", "qwen3", "qwen3_moe"};

inline std::string TinyFolder(const std::string& family) {
  return std::string(ORRERY_SOURCE_DIR) + "/tests/trainer/model/data/" + family;
}

inline std::unique_ptr<model::WeightStore> LoadTiny(const std::string& family,
                                                    kernels::DType dtype) {
  const auto spec = model::LoadModelSpec(TinyFolder(family));
  EXPECT_TRUE(spec.ok()) << spec.status();
  auto store = std::make_unique<model::WeightStore>(*spec, dtype);
  store->BeginUpdate();
  const absl::Status loaded = store->LoadCheckpoint(TinyFolder(family));
  EXPECT_TRUE(loaded.ok()) << loaded;
  store->Commit(0);
  return store;
}

inline std::unique_ptr<model::WeightStore> MakeRandom(std::string_view config, uint64_t seed,
                                                      kernels::DType dtype) {
  const auto spec = model::ParseModelSpec(config, "config");
  EXPECT_TRUE(spec.ok()) << spec.status();
  auto store = std::make_unique<model::WeightStore>(*spec, dtype);
  store->BeginUpdate();
  store->Randomise(seed);
  store->Commit(0);
  return store;
}

// Sets one element of a parameter (float32 stores) in a transaction of its own.
inline void Poke(model::WeightStore* store, model::ParamId param, int64_t element, float value) {
  store->BeginUpdate();
  std::vector<float> values(static_cast<size_t>(store->layout().num_elements));
  store->CopyTo(values);
  values[store->layout().params[param].offset + element] = value;
  store->Assign(values);
  store->Commit(store->version() + 1);
}

// Flips bits of the stored number at a flat index, in a transaction of its own.
inline void FlipBits(model::WeightStore* store, int64_t index, uint8_t mask) {
  store->BeginUpdate();
  store->flat()[static_cast<size_t>(index * kernels::SizeOf(store->dtype()))] ^= std::byte{mask};
  store->Commit(store->version() + 1);
}

}  // namespace orrery::fakes
