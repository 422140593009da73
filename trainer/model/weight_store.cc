#include "trainer/model/weight_store.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>

#include "kernels/cpu/bfloat16.h"
#include "kernels/cpu/thread_pool.h"
#include "orchestrator/base/check.h"
#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"
#include "trainer/model/safetensors_writer.h"

namespace orrery::model {
namespace {

using kernels::DType;
using kernels::PackedWeight;
using kernels::SizeOf;
using kernels::TensorView;

constexpr int64_t kAlignment = 16;  // elements between starts of parameters

int64_t Align(int64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

std::byte* MapBuffer(int64_t bytes) {
  if (bytes == 0) return nullptr;
  void* memory = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED) << "cannot map " << bytes << " bytes for weights";
  // Weights are walked from end to end: large pages where there are any. A wish, not a need.
  (void)::madvise(memory, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return static_cast<std::byte*>(memory);
}

// Copies float32 values into a buffer of `dtype`, starting at element `offset`.
void Store(std::span<const float> values, DType dtype, std::byte* buffer, int64_t offset) {
  if (dtype == DType::kFloat32) {
    std::memcpy(reinterpret_cast<float*>(buffer) + offset, values.data(), values.size_bytes());
    return;
  }
  uint16_t* to = reinterpret_cast<uint16_t*>(buffer) + offset;
  for (size_t i = 0; i < values.size(); ++i) to[i] = kernels::ToBFloat16(values[i]);
}

void Load(const std::byte* buffer, DType dtype, int64_t offset, std::span<float> values) {
  if (dtype == DType::kFloat32) {
    std::memcpy(values.data(), reinterpret_cast<const float*>(buffer) + offset,
                values.size_bytes());
    return;
  }
  const uint16_t* from = reinterpret_cast<const uint16_t*>(buffer) + offset;
  for (size_t i = 0; i < values.size(); ++i) values[i] = kernels::FromBFloat16(from[i]);
}

// Box-Muller on a stream that depends on (seed, parameter, element) alone.
void FillNormal(std::span<float> out, double stddev, uint64_t seed) {
  RandomStream stream(seed);
  for (size_t i = 0; i < out.size(); i += 2) {
    const double radius = std::sqrt(-2 * std::log(1 - stream.Uniform())) * stddev;
    const double angle = 2 * std::numbers::pi * stream.Uniform();
    out[i] = static_cast<float>(radius * std::cos(angle));
    if (i + 1 < out.size()) out[i + 1] = static_cast<float>(radius * std::sin(angle));
  }
}

bool IsMatrix(ParamKind kind) {
  switch (kind) {
    case ParamKind::kInputNorm:
    case ParamKind::kQkvBias:
    case ParamKind::kQNorm:
    case ParamKind::kKNorm:
    case ParamKind::kOutputBias:
    case ParamKind::kPostNorm:
    case ParamKind::kFinalNorm:
      return false;
    default:
      return true;  // of one row too
  }
}

}  // namespace

ParamId WeightLayout::Add(ParamKind kind, int64_t layer, int64_t rows, int64_t cols,
                          int64_t num_matrices) {
  Param param;
  param.kind = kind;
  param.layer = layer;
  param.rows = rows;
  param.cols = cols;
  param.offset = num_elements;
  param.num_matrices = num_matrices;
  param.decay = IsMatrix(kind);
  num_elements = Align(num_elements + param.num_elements());
  params.push_back(param);
  return static_cast<ParamId>(params.size()) - 1;
}

WeightLayout::WeightLayout(const ModelSpec& spec) {
  const int64_t d = spec.hidden_size, head_dim = spec.heads.head_dim;
  const int64_t q = spec.heads.q_width(), kv = spec.heads.kv_width();
  const auto vector = [&](ParamKind kind, int64_t layer, int64_t n, const std::string& name) {
    const ParamId id = Add(kind, layer, 1, n);
    tensors.push_back({name, id, 0, 1, n, true});
    return id;
  };
  embedding = Add(ParamKind::kEmbedding, -1, spec.vocab_size, d);
  tensors.push_back({"model.embed_tokens.weight", embedding, 0, spec.vocab_size, d});
  for (int64_t i = 0; i < spec.num_layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    const std::string attention = layer + "self_attn.", mlp = layer + "mlp.";
    LayerParams p;
    p.input_norm = vector(ParamKind::kInputNorm, i, d, layer + "input_layernorm.weight");
    p.qkv = Add(ParamKind::kQkv, i, q + 2 * kv, d);
    tensors.push_back({attention + "q_proj.weight", p.qkv, 0, q, d});
    tensors.push_back({attention + "k_proj.weight", p.qkv, q, kv, d});
    tensors.push_back({attention + "v_proj.weight", p.qkv, q + kv, kv, d});
    if (spec.qkv_bias) {
      p.qkv_bias = Add(ParamKind::kQkvBias, i, 1, q + 2 * kv);
      // Rows of a bias are its elements: row counts elements here, see View below.
      tensors.push_back({attention + "q_proj.bias", p.qkv_bias, 0, 1, q, true});
      tensors.push_back({attention + "k_proj.bias", p.qkv_bias, q, 1, kv, true});
      tensors.push_back({attention + "v_proj.bias", p.qkv_bias, q + kv, 1, kv, true});
    }
    if (spec.qk_norm) {
      p.q_norm = vector(ParamKind::kQNorm, i, head_dim, attention + "q_norm.weight");
      p.k_norm = vector(ParamKind::kKNorm, i, head_dim, attention + "k_norm.weight");
    }
    p.output = Add(ParamKind::kOutput, i, d, q);
    tensors.push_back({attention + "o_proj.weight", p.output, 0, d, q});
    if (spec.output_bias) {
      p.output_bias = vector(ParamKind::kOutputBias, i, d, attention + "o_proj.bias");
    }
    p.post_norm = vector(ParamKind::kPostNorm, i, d, layer + "post_attention_layernorm.weight");
    if (!spec.moe(i)) {
      const int64_t f = spec.intermediate_size;
      p.gate_up = Add(ParamKind::kGateUp, i, 2 * f, d);
      tensors.push_back({mlp + "gate_proj.weight", p.gate_up, 0, f, d});
      tensors.push_back({mlp + "up_proj.weight", p.gate_up, f, f, d});
      p.down = Add(ParamKind::kDown, i, d, f);
      tensors.push_back({mlp + "down_proj.weight", p.down, 0, d, f});
    } else {
      const int64_t e = spec.num_experts, f = spec.expert_width;
      p.router = Add(ParamKind::kRouter, i, e, d);
      tensors.push_back({mlp + "gate.weight", p.router, 0, e, d});
      p.experts_gate_up = Add(ParamKind::kExpertsGateUp, i, e * 2 * f, d, e);
      p.experts_down = Add(ParamKind::kExpertsDown, i, e * d, f, e);
      for (int64_t x = 0; x < e; ++x) {
        const std::string expert = fmt::format("{}experts.{}.", mlp, x);
        tensors.push_back({expert + "gate_proj.weight", p.experts_gate_up, x * 2 * f, f, d});
        tensors.push_back({expert + "up_proj.weight", p.experts_gate_up, x * 2 * f + f, f, d});
        tensors.push_back({expert + "down_proj.weight", p.experts_down, x * d, d, f});
      }
    }
    layers.push_back(p);
  }
  final_norm = vector(ParamKind::kFinalNorm, -1, d, "model.norm.weight");
  head = embedding;
  if (!spec.tied_embeddings) {
    head = Add(ParamKind::kHead, -1, spec.vocab_size, d);
    tensors.push_back({"lm_head.weight", head, 0, spec.vocab_size, d});
  }
}

WeightStore::WeightStore(const ModelSpec& spec, DType dtype, Packing packing)
    : spec_(spec), layout_(spec), dtype_(dtype) {
  flat_ = MapBuffer(layout_.num_elements * SizeOf(dtype));
  packed_views_.resize(layout_.params.size());
  packed_offsets_.resize(layout_.params.size());
  vectors_.resize(layout_.params.size());
  for (size_t i = 0; i < layout_.params.size(); ++i) {
    const Param& p = layout_.params[i];
    packed_offsets_[i] = packed_elements_;
    const bool used_by_linear = packing == Packing::kForCpu && !p.is_vector() &&
                                (p.kind != ParamKind::kEmbedding || spec.tied_embeddings);
    if (!used_by_linear) continue;
    packed_elements_ +=
        p.num_matrices * Align(PackedWeight::NumElements(p.rows / p.num_matrices, p.cols));
    packed_views_[i].resize(static_cast<size_t>(p.num_matrices));
  }
  packed_ = MapBuffer(packed_elements_ * SizeOf(dtype));
}

WeightStore::~WeightStore() {
  if (flat_ != nullptr) ::munmap(flat_, layout_.num_elements * SizeOf(dtype_));
  if (packed_ != nullptr) ::munmap(packed_, packed_elements_ * SizeOf(dtype_));
}

TensorView WeightStore::View(ParamId id) const {
  const Param& p = layout_.params[id];
  return {flat_ + p.offset * SizeOf(dtype_), dtype_, p.rows, p.cols, p.cols};
}

const PackedWeight& WeightStore::Packed(ParamId id, int64_t matrix) const {
  CHECK_LT(matrix, static_cast<int64_t>(packed_views_[id].size()));
  return packed_views_[id][matrix];
}

std::span<const PackedWeight> WeightStore::PackedStack(ParamId id) const {
  return packed_views_[id];
}

const float* WeightStore::Vector(ParamId id) const {
  return id == kNoParam ? nullptr : vectors_[id].data();
}

std::span<std::byte> WeightStore::flat() {
  return {flat_, static_cast<size_t>(layout_.num_elements * SizeOf(dtype_))};
}

void WeightStore::BeginUpdate() {
  CHECK(!in_update_);
  in_update_ = true;
}

void WeightStore::Commit(PolicyVersion version) {
  CHECK(in_update_);
  for (size_t i = 0; i < layout_.params.size(); ++i) {
    const Param& p = layout_.params[i];
    if (p.is_vector()) {
      // A bias is read 16 floats at a time: padded.
      vectors_[i].assign(static_cast<size_t>(Align(p.cols)), 0.0f);
      Load(flat_, dtype_, p.offset, std::span(vectors_[i]).first(p.cols));
    }
    const int64_t rows = p.rows / p.num_matrices;
    const int64_t stride = Align(PackedWeight::NumElements(rows, p.cols));
    for (size_t m = 0; m < packed_views_[i].size(); ++m) {
      const int64_t at = packed_offsets_[i] + static_cast<int64_t>(m) * stride;
      packed_views_[i][m] = kernels::PackWeight(View(static_cast<ParamId>(i)).Rows(m * rows, rows),
                                                packed_ + at * SizeOf(dtype_));
    }
  }
  version_ = version;
  in_update_ = false;
}

void WeightStore::Assign(std::span<const float> values) {
  CHECK(in_update_);
  CHECK_EQ(static_cast<int64_t>(values.size()), layout_.num_elements);
  constexpr int64_t kChunk = 1 << 20;
  kernels::ParallelFor((layout_.num_elements + kChunk - 1) / kChunk, [&](int64_t i) {
    const int64_t first = i * kChunk, n = std::min(kChunk, layout_.num_elements - first);
    Store(values.subspan(first, n), dtype_, flat_, first);
  });
}

void WeightStore::CopyTo(std::span<float> values) const {
  CHECK_EQ(static_cast<int64_t>(values.size()), layout_.num_elements);
  Load(flat_, dtype_, 0, values);
}

void WeightStore::Randomise(uint64_t seed) {
  CHECK(in_update_);
  kernels::ParallelFor(static_cast<int64_t>(layout_.params.size()), [&](int64_t i) {
    const Param& p = layout_.params[i];
    const bool is_bias = p.kind == ParamKind::kQkvBias || p.kind == ParamKind::kOutputBias;
    std::vector<float> values(static_cast<size_t>(p.num_elements()), is_bias ? 0.0f : 1.0f);
    if (!p.is_vector()) {
      FillNormal(values, spec_.initializer_range, HashSeed({seed, static_cast<uint64_t>(i)}));
    }
    Store(values, dtype_, flat_, p.offset);
  });
}

absl::Status WeightStore::SaveCheckpoint(const std::string& folder) const {
  std::vector<TensorSource> sources;
  for (const CheckpointTensor& tensor : layout_.tensors) {
    const Param& p = layout_.params[tensor.param];
    const int64_t start = p.offset + (tensor.is_vector ? tensor.row : tensor.row * p.cols);
    const std::span<const std::byte> data(
        flat_ + start * SizeOf(dtype_),
        static_cast<size_t>(tensor.rows * tensor.cols * SizeOf(dtype_)));
    std::vector<int64_t> shape{tensor.cols};
    if (!tensor.is_vector) shape.insert(shape.begin(), tensor.rows);
    sources.push_back(FromBytes(tensor.name,
                                dtype_ == DType::kFloat32 ? FileDtype::kF32 : FileDtype::kBF16,
                                std::move(shape), data));
  }
  return WriteCheckpoint(folder, sources);
}

uint64_t WeightStore::Checksum() const {
  const int64_t bytes = layout_.num_elements * SizeOf(dtype_);
  uint64_t hash = static_cast<uint64_t>(bytes);
  for (int64_t i = 0; i + 8 <= bytes; i += 8) {
    uint64_t word;
    std::memcpy(&word, flat_ + i, 8);
    hash = (std::rotl(hash, 5) ^ word) * 0x9e3779b97f4a7c15u;
  }
  return Mix64(hash);
}

}  // namespace orrery::model
