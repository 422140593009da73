// Dense products on a GPU: out[t, n] = round(sum_k x[t, k] w[n, k] + bias[n]), w row-major [N, K].
//
// bfloat16: every output is one chain of tensor-core steps of 16 over ascending k, in float32. That
// is the one family of exact numerics: mma.sync and wgmma give the same bits (BENCHMARKS.md), so an
// element does not depend on the number of rows, the tile or the instruction. float32: one chain of
// fused multiply-adds.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/device_limits.h"
#include "kernels/cuda/numerics.h"
#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

// cuBLASLt's products, for fast numerics and for gradients: which of its algorithms serves a shape
// is its own heuristic's first choice (a function of the shape, so repeatable). One stream at a
// time; owns a workspace.
class LinearLibrary {
 public:
  static constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;  // on the device

  // NotFound, with the fix, where the library is not on this machine.
  static absl::StatusOr<std::unique_ptr<LinearLibrary>> Create();
  ~LinearLibrary();
  // False where cuBLASLt does not take the shape, or would round more than once. Arguments as
  // Linear's.
  bool Run(const TensorView& x, const TensorView& w, const TensorView& bias, const TensorView& out,
           cudaStream_t stream);

  // The two gradients of a product (linear.h), for either dtype; sums in float32. dx [T, K] = dy w
  // in dy's dtype, or added to it; dw [N, K] float32 += dy^T x. Bitwise repeatable.
  void GradInput(const TensorView& dy, const TensorView& w, bool accumulate, const TensorView& dx,
                 cudaStream_t stream);
  void GradWeight(const TensorView& dy, const TensorView& x, const TensorView& dw,
                  cudaStream_t stream);

 private:
  struct State;
  explicit LinearLibrary(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// x [T, K], w [N, K], out [T, N]; out may be float32 with bfloat16 operands (nothing is rounded
// then). bias: [1, N] in w's dtype, or data null.
void Linear(const TensorView& x, const TensorView& w, const TensorView& bias,
            const DeviceLimits& limits, const TensorView& out, cudaStream_t stream,
            Numerics numerics = Numerics::kExact);

// The MLP's first half in one pass: w [2 f, K] holds gate rows, then up rows;
// out[t, i] = round(silu(round(gate)) * round(up)), [T, f].
void LinearSwiGlu(const TensorView& x, const TensorView& w, const DeviceLimits& limits,
                  const TensorView& out, cudaStream_t stream, Numerics numerics = Numerics::kExact);

// The gradient of a bias: db [N] float32 += sum over rows of dy [T, N]. workspace:
// GradBiasWorkspaceBytes, one stream at a time.
int64_t GradBiasWorkspaceBytes(int64_t rows, int64_t n);
void GradBias(const TensorView& dy, float* db, void* workspace, cudaStream_t stream);

}  // namespace orrery::kernels::cuda
