// The tensors of a GGUF file under their Hugging Face names.
#include <cmath>
#include <optional>
#include <set>

#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"
#include "trainer/model/import_gguf_parts.h"

namespace orrery::model {
namespace {

// Which rows of a file's tensor make a Hugging Face tensor, and in which order.
struct RowRange {
  int64_t first = 0;
  int64_t count = 0;
  int64_t interleaved_head_dim = 0;  // not 0: undo Llama's order of q and k rows

  int64_t FileRow(int64_t row) const {
    return first + (interleaved_head_dim == 0 ? row : InterleavedRow(row, interleaved_head_dim));
  }
};

absl::Status NotFinite(const std::string& path, const GgufTensor& tensor, int64_t row) {
  return InvalidInput("{}: tensor '{}': row {} holds a value that is not finite", path, tensor.name,
                      row);
}

absl::Status WriteRows(const std::string& path, const GgufTensor& tensor, const RowRange& rows,
                       FileDtype dtype, const ByteSink& sink) {
  std::vector<float> row(static_cast<size_t>(tensor.row_size()));
  std::vector<uint16_t> rounded(row.size());
  for (int64_t i = 0; i < rows.count; ++i) {
    const int64_t file_row = rows.FileRow(i);
    DequantizeRow(tensor, file_row, row);
    for (size_t j = 0; j < row.size(); ++j) {
      if (!std::isfinite(row[j])) return NotFinite(path, tensor, file_row);
      rounded[j] = FloatToBfloat16(row[j]);
    }
    RETURN_IF_ERROR(sink(dtype == FileDtype::kF32 ? std::as_bytes(std::span(row))
                                                  : std::as_bytes(std::span(rounded))));
  }
  return absl::OkStatus();
}

// Collects the sources; remembers which tensors of the file were used.
class TensorPlan {
 public:
  TensorPlan(const GgufFile& file, FileDtype dtype) : file_(file), dtype_(dtype) {}

  // The tensor `from` must have `shape`.
  absl::Status Add(const std::string& from, const std::string& to, std::vector<int64_t> shape,
                   int64_t interleaved_head_dim = 0) {
    ASSIGN_OR_RETURN(const GgufTensor* tensor, Use(from, shape));
    Append(to, std::move(shape), *tensor, {0, tensor->num_rows(), interleaved_head_dim});
    return absl::OkStatus();
  }

  // A stack of matrices [count, rows, cols]: matrix i becomes the tensor to(i).
  template <typename NameOf>
  absl::Status AddStack(const std::string& from, int64_t count, int64_t rows, int64_t cols,
                        const NameOf& to) {
    ASSIGN_OR_RETURN(const GgufTensor* tensor, Use(from, {count, rows, cols}));
    for (int64_t i = 0; i < count; ++i) {
      Append(to(i), {rows, cols}, *tensor, {i * rows, rows, 0});
    }
    return absl::OkStatus();
  }

  void MarkUsed(const std::string& name) { used_.insert(name); }

  absl::StatusOr<std::vector<TensorSource>> Finish() && {
    for (const GgufTensor& tensor : file_.tensors()) {
      if (used_.contains(tensor.name)) continue;
      return InvalidInput(
          "{}: tensor '{}' of shape {} has no place in this architecture: the file "
          "is of a variant that is not supported",
          file_.path(), Printable(tensor.name), ShapeText(tensor.shape));
    }
    return std::move(sources_);
  }

 private:
  absl::StatusOr<const GgufTensor*> Use(const std::string& name,
                                        const std::vector<int64_t>& shape) {
    const GgufTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) return InvalidInput("{}: has no tensor '{}'", file_.path(), name);
    if (tensor->shape != shape) {
      return InvalidInput("{}: tensor '{}' has shape {}; by the file's keys it must be {}",
                          file_.path(), name, ShapeText(tensor->shape), ShapeText(shape));
    }
    used_.insert(name);
    return tensor;
  }

  void Append(const std::string& name, std::vector<int64_t> shape, const GgufTensor& tensor,
              const RowRange& rows) {
    sources_.push_back({name, dtype_, std::move(shape),
                        [&tensor, rows, dtype = dtype_, path = file_.path()](const ByteSink& sink) {
                          return WriteRows(path, tensor, rows, dtype, sink);
                        }});
  }

  const GgufFile& file_;
  FileDtype dtype_;
  std::vector<TensorSource> sources_;
  std::set<std::string, std::less<>> used_;
};

absl::Status AddAttention(const ImportedConfig& config, const std::string& from,
                          const std::string& to, TensorPlan& plan) {
  const int64_t d = config.hidden_size;
  const int64_t q_rows = config.num_heads * config.head_dim;
  const int64_t kv_rows = config.num_kv_heads * config.head_dim;
  // Only Llama's converter reorders q and k.
  const int64_t order = config.family == ImportedFamily::kLlama ? config.head_dim : 0;
  RETURN_IF_ERROR(
      plan.Add(from + "attn_q.weight", to + "self_attn.q_proj.weight", {q_rows, d}, order));
  RETURN_IF_ERROR(
      plan.Add(from + "attn_k.weight", to + "self_attn.k_proj.weight", {kv_rows, d}, order));
  RETURN_IF_ERROR(plan.Add(from + "attn_v.weight", to + "self_attn.v_proj.weight", {kv_rows, d}));
  RETURN_IF_ERROR(
      plan.Add(from + "attn_output.weight", to + "self_attn.o_proj.weight", {d, q_rows}));
  if (config.family == ImportedFamily::kQwen2) {
    RETURN_IF_ERROR(plan.Add(from + "attn_q.bias", to + "self_attn.q_proj.bias", {q_rows}));
    RETURN_IF_ERROR(plan.Add(from + "attn_k.bias", to + "self_attn.k_proj.bias", {kv_rows}));
    return plan.Add(from + "attn_v.bias", to + "self_attn.v_proj.bias", {kv_rows});
  }
  if (config.family == ImportedFamily::kLlama) return absl::OkStatus();
  RETURN_IF_ERROR(
      plan.Add(from + "attn_q_norm.weight", to + "self_attn.q_norm.weight", {config.head_dim}));
  return plan.Add(from + "attn_k_norm.weight", to + "self_attn.k_norm.weight", {config.head_dim});
}

absl::Status AddMlp(const ImportedConfig& config, const std::string& from, const std::string& to,
                    TensorPlan& plan) {
  const int64_t d = config.hidden_size;
  const int64_t ff = config.intermediate_size;
  RETURN_IF_ERROR(plan.Add(from + "ffn_gate.weight", to + "mlp.gate_proj.weight", {ff, d}));
  RETURN_IF_ERROR(plan.Add(from + "ffn_up.weight", to + "mlp.up_proj.weight", {ff, d}));
  return plan.Add(from + "ffn_down.weight", to + "mlp.down_proj.weight", {d, ff});
}

absl::Status AddExperts(const ImportedConfig& config, const std::string& from,
                        const std::string& to, TensorPlan& plan) {
  const int64_t d = config.hidden_size;
  const int64_t ff = config.expert_intermediate_size;
  const int64_t n = config.num_experts;
  const auto name = [&](const char* matrix) {
    return [&to, matrix](int64_t expert) {
      return fmt::format("{}mlp.experts.{}.{}_proj.weight", to, expert, matrix);
    };
  };
  RETURN_IF_ERROR(plan.Add(from + "ffn_gate_inp.weight", to + "mlp.gate.weight", {n, d}));
  RETURN_IF_ERROR(plan.AddStack(from + "ffn_gate_exps.weight", n, ff, d, name("gate")));
  RETURN_IF_ERROR(plan.AddStack(from + "ffn_up_exps.weight", n, ff, d, name("up")));
  return plan.AddStack(from + "ffn_down_exps.weight", n, d, ff, name("down"));
}

absl::Status AddLayer(const ImportedConfig& config, int64_t layer, TensorPlan& plan) {
  const std::string from = fmt::format("blk.{}.", layer);
  const std::string to = fmt::format("model.layers.{}.", layer);
  const int64_t d = config.hidden_size;
  RETURN_IF_ERROR(plan.Add(from + "attn_norm.weight", to + "input_layernorm.weight", {d}));
  RETURN_IF_ERROR(AddAttention(config, from, to, plan));
  RETURN_IF_ERROR(plan.Add(from + "ffn_norm.weight", to + "post_attention_layernorm.weight", {d}));
  if (config.family == ImportedFamily::kQwen3Moe) return AddExperts(config, from, to, plan);
  return AddMlp(config, from, to, plan);
}

}  // namespace

absl::StatusOr<std::vector<TensorSource>> TensorsFromGguf(const GgufFile& file,
                                                          const ImportedConfig& config,
                                                          FileDtype dtype) {
  CHECK(dtype == FileDtype::kF32 || dtype == FileDtype::kBF16);
  const int64_t d = config.hidden_size;
  TensorPlan plan(file, dtype);
  RETURN_IF_ERROR(
      plan.Add("token_embd.weight", "model.embed_tokens.weight", {config.vocab_size, d}));
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    RETURN_IF_ERROR(AddLayer(config, layer, plan));
  }
  RETURN_IF_ERROR(plan.Add("output_norm.weight", "model.norm.weight", {d}));
  if (!config.tied) {
    RETURN_IF_ERROR(plan.Add("output.weight", "lm_head.weight", {config.vocab_size, d}));
  }
  plan.MarkUsed("rope_freqs.weight");  // it is in config.json
  return std::move(plan).Finish();
}

}  // namespace orrery::model
