// All parameters of a model in one flat buffer at a fixed address, in the fused form that kernels
// want: q, k and v stacked, gate and up stacked, experts stacked. The table that describes it maps
// to Hugging Face's names in both directions, so reading and writing a checkpoint is the table read
// one way or the other.
//
// WeightLayout is pure data of a ModelSpec. WeightStore owns the memory. A weight update is a
// transaction: BeginUpdate, change flat memory, Commit(version), which refreshes what is derived
// from the weights (packed panels, float32 norms). Readers must not run between the two:
// in_update().
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/linear/linear.h"
#include "kernels/tensor_view.h"
#include "orchestrator/types.h"
#include "trainer/model/model_spec.h"

namespace orrery::model {

enum class ParamKind : uint8_t {
  kEmbedding,      // [V, d]
  kInputNorm,      // [1, d]
  kQkv,            // [(Hq + 2 Hkv) D, d]
  kQkvBias,        // [1, (Hq + 2 Hkv) D]
  kQNorm,          // [1, D]
  kKNorm,          // [1, D]
  kOutput,         // [d, Hq D]
  kOutputBias,     // [1, d]
  kPostNorm,       // [1, d]
  kGateUp,         // [2 f, d]
  kDown,           // [d, f]
  kRouter,         // [E, d]
  kExpertsGateUp,  // [E 2 f, d]
  kExpertsDown,    // [E d, f]
  kFinalNorm,      // [1, d]
  kHead,           // [V, d]; absent when tied
};

using ParamId = int32_t;
inline constexpr ParamId kNoParam = -1;

struct Param {
  ParamKind kind;
  int64_t layer = -1;  // -1: none
  int64_t rows = 0, cols = 0;
  int64_t offset = 0;        // elements into the flat buffer
  int64_t num_matrices = 1;  // E for stacked experts: each packed by itself
  bool decay = true;         // weight decay applies: matrices, not norms and biases

  int64_t num_elements() const { return rows * cols; }
  bool is_vector() const { return !decay; }
};

// A tensor of a Hugging Face checkpoint: rows [row, row + rows) of a parameter.
struct CheckpointTensor {
  std::string name;
  ParamId param = kNoParam;
  int64_t row = 0, rows = 0, cols = 0;
  bool is_vector = false;  // shape [cols] instead of [rows, cols]
};

struct LayerParams {
  ParamId input_norm = kNoParam, qkv = kNoParam, qkv_bias = kNoParam, q_norm = kNoParam,
          k_norm = kNoParam, output = kNoParam, output_bias = kNoParam, post_norm = kNoParam,
          gate_up = kNoParam, down = kNoParam, router = kNoParam, experts_gate_up = kNoParam,
          experts_down = kNoParam;
};

struct WeightLayout {
  explicit WeightLayout(const ModelSpec& spec);

  std::vector<Param> params;
  std::vector<CheckpointTensor> tensors;
  std::vector<LayerParams> layers;
  ParamId embedding = kNoParam, final_norm = kNoParam, head = kNoParam;  // head: embedding if tied
  int64_t num_elements = 0;  // of the flat buffer; parameters start at multiples of 16 elements

 private:
  ParamId Add(ParamKind kind, int64_t layer, int64_t rows, int64_t cols, int64_t num_matrices = 1);
};

// Whether a store keeps matrices repacked for the CPU's kernels as well, in as much memory again.
enum class Packing : uint8_t { kForCpu, kNone };

class WeightStore {
 public:
  WeightStore(const ModelSpec& spec, kernels::DType dtype, Packing packing = Packing::kForCpu);
  ~WeightStore();
  WeightStore(const WeightStore&) = delete;
  WeightStore& operator=(const WeightStore&) = delete;

  const ModelSpec& spec() const { return spec_; }
  const WeightLayout& layout() const { return layout_; }
  kernels::DType dtype() const { return dtype_; }
  kernels::Rounding rounding() const {
    return dtype_ == kernels::DType::kBFloat16 ? kernels::Rounding::kBFloat16
                                               : kernels::Rounding::kNone;
  }

  // The row-major weight.
  kernels::TensorView View(ParamId id) const;
  // Derived at Commit: a matrix repacked for Linear (experts: matrix e of the stack). REQUIRES:
  // Packing::kForCpu.
  const kernels::PackedWeight& Packed(ParamId id, int64_t matrix = 0) const;
  std::span<const kernels::PackedWeight> PackedStack(ParamId id) const;
  // Derived at Commit: a norm weight or bias in float32, null for kNoParam.
  const float* Vector(ParamId id) const;

  std::span<std::byte> flat();
  PolicyVersion version() const { return version_; }
  bool in_update() const { return in_update_; }

  void BeginUpdate();
  // REQUIRES: version > version() or this is the first commit.
  void Commit(PolicyVersion version);
  // Writes float32 values of all parameters (flat order), rounded to the dtype. Inside an update.
  void Assign(std::span<const float> values);
  // Reads all parameters as float32 in flat order (gaps between parameters are 0).
  void CopyTo(std::span<float> values) const;

  // Every tensor of the layout from a checkpoint folder (F32, F16 or BF16 files), by all threads.
  // Shapes, names, NaN and infinities are checked; of several mistakes the first in the layout's
  // order is named. Inside an update.
  absl::Status LoadCheckpoint(const std::string& folder);
  // Normal(0, initializer_range) matrices, norms 1, biases 0: a function of the seed.
  void Randomise(uint64_t seed);
  // Safetensors with Hugging Face names into an existing folder, in this dtype.
  absl::Status SaveCheckpoint(const std::string& folder) const;

  // One pass over the flat buffer.
  uint64_t Checksum() const;

 private:
  ModelSpec spec_;
  WeightLayout layout_;
  kernels::DType dtype_;
  std::byte* flat_ = nullptr;
  std::byte* packed_ = nullptr;
  std::vector<std::vector<kernels::PackedWeight>> packed_views_;  // by param
  std::vector<std::vector<float>> vectors_;                       // by param
  std::vector<int64_t> packed_offsets_;                           // by param, elements
  int64_t packed_elements_ = 0;
  PolicyVersion version_ = 0;
  bool in_update_ = false;
};

}  // namespace orrery::model
