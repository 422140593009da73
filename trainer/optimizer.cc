#include "trainer/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "kernels/cpu/thread_pool.h"
#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"
#include "trainer/model/safetensors.h"
#include "trainer/model/safetensors_writer.h"

namespace orrery::trainer {
namespace {

constexpr int64_t kPieceElements = 1 << 18;
constexpr char kFileName[] = "/optimizer.safetensors";

at::Tensor Borrow(float* data, int64_t n) { return at::from_blob(data, {n}, at::kFloat); }

model::TensorSource FlatSource(const char* name, std::span<const float> values) {
  return model::FromBytes(name, model::FileDtype::kF32, {static_cast<int64_t>(values.size())},
                          std::as_bytes(values));
}

}  // namespace

AdamW::AdamW(const model::WeightStore& store, const AdamWOptions& options) : options_(options) {
  const size_t n = static_cast<size_t>(store.layout().num_elements);
  master_.resize(n);
  moment1_.resize(n);
  moment2_.resize(n);
  store.CopyTo(master_);
  for (const model::Param& p : store.layout().params) {
    for (int64_t at = 0; at < p.num_elements(); at += kPieceElements) {
      pieces_.push_back({p.offset + at, std::min(kPieceElements, p.num_elements() - at), p.decay});
    }
  }
}

AdamW::~AdamW() = default;

double AdamW::GradNorm(std::span<const float> grads) const {
  std::vector<double> sums(pieces_.size());
  kernels::ParallelFor(static_cast<int64_t>(pieces_.size()), [&](int64_t i) {
    double sum = 0;
    for (const float g : grads.subspan(pieces_[i].first, pieces_[i].count)) {
      sum += static_cast<double>(g) * g;
    }
    sums[i] = sum;
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return std::sqrt(total);
}

void AdamW::Step(std::span<float> grads, double grad_norm, double learning_rate) {
  CHECK(std::isfinite(grad_norm));
  CHECK_EQ(grads.size(), master_.size());
  ++steps_;
  const double clip = options_.clip_grad_norm;
  const float scale =
      clip > 0 && grad_norm > clip ? static_cast<float>(clip / (grad_norm + 1e-6)) : 1.0f;
  kernels::ParallelFor(static_cast<int64_t>(pieces_.size()), [&](int64_t i) {
    at::set_num_threads(1);  // of this thread's parallel regions
    const Piece& piece = pieces_[i];
    float* g = grads.data() + piece.first;
    if (scale != 1.0f) {
      for (int64_t j = 0; j < piece.count; ++j) g[j] *= scale;
    }
    // Read for the bias corrections: the number of this step, from 1.
    const at::Tensor step = at::scalar_tensor(static_cast<double>(steps_), at::kFloat);
    const at::Tensor w = Borrow(master_.data() + piece.first, piece.count);
    const at::Tensor m = Borrow(moment1_.data() + piece.first, piece.count);
    const at::Tensor v = Borrow(moment2_.data() + piece.first, piece.count);
    const at::Tensor grad = Borrow(g, piece.count);
    at::_fused_adamw_({w}, {grad}, {m}, {v}, /*max_exp_avg_sqs=*/{}, {step}, learning_rate,
                      options_.beta1, options_.beta2, piece.decay ? options_.weight_decay : 0.0,
                      options_.epsilon, /*amsgrad=*/false, /*maximize=*/false);
  });
}

absl::Status AdamW::Save(const std::string& folder) const {
  const std::vector<model::TensorSource> sources = {FlatSource("master", master_),
                                                    FlatSource("moment1", moment1_),
                                                    FlatSource("moment2", moment2_)};
  return model::WriteSafetensors(folder + kFileName, sources,
                                 {{"format", "pt"}, {"steps", std::to_string(steps_)}});
}

absl::Status AdamW::Load(const std::string& folder) {
  const std::string path = folder + kFileName;
  ASSIGN_OR_RETURN(const auto file, model::SafetensorsFile::Open(path));
  const auto load = [&](const char* name, std::vector<float>* to) -> absl::Status {
    const model::FileTensor* tensor = file->Find(name);
    if (tensor == nullptr || tensor->num_elements() != static_cast<int64_t>(to->size())) {
      return InvalidInput(
          "{}: \"{}\" is missing or not of {} elements: the checkpoint belongs to "
          "another model",
          path, name, to->size());
    }
    return model::ToFloat32(*tensor, *to);
  };
  // All or nothing: a damaged file leaves this as it was.
  std::vector<float> master(master_.size()), moment1(master_.size()), moment2(master_.size());
  RETURN_IF_ERROR(load("master", &master));
  RETURN_IF_ERROR(load("moment1", &moment1));
  RETURN_IF_ERROR(load("moment2", &moment2));
  const auto found = file->metadata().find("steps");
  const std::string text = found == file->metadata().end() ? "" : found->second;
  int64_t steps = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), steps);
  if (error != std::errc() || end != text.data() + text.size() || steps < 0) {
    return InvalidInput("{}: metadata \"steps\" is \"{}\", not a count", path, text);
  }
  master_.swap(master);
  moment1_.swap(moment1);
  moment2_.swap(moment2);
  steps_ = steps;
  return absl::OkStatus();
}

}  // namespace orrery::trainer
