// AdamW (Loshchilov and Hutter 2019) over flat buffers, with float32 master weights:
//
//   g *= min(1, clip / (||g|| + 1e-6));  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   w -= lr * wd * w  (matrices only);   w -= lr * mhat / (sqrt(vhat) + eps)
//
// The step itself is LibTorch's fused AdamW, run on pieces of the flat buffers by our threads (its
// own would spin on cores that the rollout needs). Pieces are cut by size, so a step is bitwise the
// same with any number of threads. The norm is a sum in double over the same pieces, in order.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "trainer/executor.h"
#include "trainer/model/weight_store.h"

namespace orrery::trainer {

class AdamW {
 public:
  // Master weights start as the store's values.
  AdamW(const model::WeightStore& store, const AdamWOptions& options);
  ~AdamW();

  std::span<float> master() { return master_; }
  // The norm before clipping; not finite where the gradient is not.
  double GradNorm(std::span<const float> grads) const;
  // Clips grads in place by the norm and takes one step. REQUIRES: the norm is finite.
  void Step(std::span<float> grads, double grad_norm, double learning_rate);

  int64_t steps() const { return steps_; }

  // As optimizer_file.h.
  absl::Status Save(const std::string& folder) const;
  absl::Status Load(const std::string& folder);

 private:
  struct Piece {
    int64_t first, count;
    bool decay;
  };
  const AdamWOptions options_;
  std::vector<Piece> pieces_;
  std::vector<float> master_, moment1_, moment2_;
  int64_t steps_ = 0;
};

}  // namespace orrery::trainer
