#include "trainer/cpu/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/thread_pool.h"
#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"
#include "trainer/optimizer_file.h"

namespace orrery::trainer {
namespace {

constexpr int64_t kPieceElements = 1 << 18;

at::Tensor Borrow(float* data, int64_t n) { return at::from_blob(data, {n}, at::kFloat); }

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
  const float scale = options_.ClipScale(grad_norm);
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
  return SaveOptimizer(folder, master_, moment1_, moment2_, steps_);
}

absl::Status AdamW::Load(const std::string& folder) {
  ASSIGN_OR_RETURN(OptimizerState state, LoadOptimizer(folder, master_.size()));
  master_.swap(state.master);
  moment1_.swap(state.moment1);
  moment2_.swap(state.moment2);
  steps_ = state.steps;
  return absl::OkStatus();
}

}  // namespace orrery::trainer
