#include "kernels/experts/experts_grad_product.cuh"
#include "kernels/experts/experts_grad_rows.h"
#include "kernels/experts/experts_grad_simple.h"
#include "kernels/experts/routed_experts_grad_cuda.h"

namespace orrery::kernels::cuda {
namespace {

// --- the activation's gradient ---

constexpr int kWarps = 4;

template <typename T>
struct GatedGradParams {
  Matrix<const T> gate_up;  // by slot
  Matrix<T> dgate_up;       // by sorted row, like the next
  Matrix<T> hidden;         // in: dout W_down, weight not applied; out: weight * hidden
  SortedRows rows;
  const float* weights = nullptr;
  float* dweights = nullptr;
  int num_experts = 0;
  int64_t f = 0;
  bool aligned = false;
};

template <typename T>
struct GatedVectors {
  uint4 gate, up, grad;
};

// In: gate, up and dout W_down. Out: gradients of gate and up, and weight * hidden in grad. Returns
// this lane's share of dout W_down . hidden.
template <typename T>
__device__ __forceinline__ float Differentiate(float weight, GatedVectors<T>* v) {
  constexpr int kN = kVectorSize<T>;
  float gate[kN], up[kN], grad[kN], dgate[kN], dup[kN], dot = 0;
  Unpack<T>(v->gate, gate);
  Unpack<T>(v->up, up);
  Unpack<T>(v->grad, grad);
#pragma unroll
  for (int e = 0; e < kN; ++e) {
    const float h = ToFloat(SwiGlu<T>(gate[e], up[e]));
    const float s = 1.0f / (1.0f + __expf(-gate[e])), dh = weight * grad[e];
    dot += grad[e] * h;
    dgate[e] = dh * up[e] * s * (1.0f + gate[e] * (1.0f - s));
    dup[e] = dh * gate[e] * s;
    grad[e] = weight * h;
  }
  v->gate = Pack<T>(dgate);
  v->up = Pack<T>(dup);
  v->grad = Pack<T>(grad);
  return dot;
}

// A warp a sorted row. All loads of some vectors come before the first store, which might alias.
template <typename T>
__global__ void __launch_bounds__(32 * kWarps) GatedGradKernel(GatedGradParams<T> p) {
  constexpr int kN = kVectorSize<T>, kAtOnce = 3;
  LetSuccessorStart();
  WaitForPredecessor();
  const int lane = threadIdx.x % 32;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= p.rows.first[p.num_experts]) return;
  const int slot = p.rows.slots[row];
  const float weight = slot < 0 ? 0 : p.weights[slot];
  const T* const gates = p.gate_up.Row(max(slot, 0));
  T* const dgates = p.dgate_up.Row(row);
  T* const hiddens = p.hidden.Row(row);
  float dot = 0;
  for (int64_t base = lane * kN; base < p.f; base += kAtOnce * 32 * kN) {
    GatedVectors<T> vectors[kAtOnce];
#pragma unroll
    for (int v = 0; v < kAtOnce; ++v) {
      const int64_t i = base + v * 32 * kN, left = slot < 0 ? 0 : p.f - i;  // zeros past the end
      vectors[v].gate = LoadUpTo(gates + i, left, p.aligned);
      vectors[v].up = LoadUpTo(gates + p.f + i, left, p.aligned);
      vectors[v].grad = LoadUpTo<T>(hiddens + i, left, p.aligned);
    }
#pragma unroll
    for (int v = 0; v < kAtOnce; ++v) {
      const int64_t i = base + v * 32 * kN, left = p.f - i;
      dot += Differentiate(weight, &vectors[v]);
      StoreUpTo(vectors[v].gate, dgates + i, left, p.aligned);
      StoreUpTo(vectors[v].up, dgates + p.f + i, left, p.aligned);
      StoreUpTo(vectors[v].grad, hiddens + i, left, p.aligned);
    }
  }
  dot = WarpSum(dot);
  if (lane == 0 && slot >= 0) p.dweights[slot] = dot;
}

void GatedGrad(const RoutedExpertsGradArgs& args, const SortedRows& rows, int64_t num_experts,
               const TensorView& hidden, const TensorView& dgate_up, cudaStream_t stream) {
  ForDType(hidden.dtype, [&](auto tag) {
    using T = decltype(tag);
    GatedGradParams<T> p;
    p.gate_up = AsMatrix<const T>(args.gate_up);
    p.dgate_up = AsMatrix<T>(dgate_up);
    p.hidden = AsMatrix<T>(hidden);
    p.rows = rows;
    p.weights = args.routing.weights;
    p.dweights = args.dweights;
    p.num_experts = static_cast<int>(num_experts);
    p.f = hidden.cols;
    p.aligned = VectorAligned(args.gate_up) && VectorAligned(hidden);
    Launch(GatedGradKernel<T>, static_cast<unsigned>(DivideUp(rows.max_rows, kWarps)), 32 * kWarps,
           0, stream, p);
  });
}

// --- the grouped products ---

bool Fits(const ExpertsShape& shape, const DeviceLimits& limits,
          std::initializer_list<TensorView> views) {
  bool fits = limits.wgmma && shape.num_experts <= kMaxExperts;
  for (const TensorView& view : views) {
    fits = fits && view.dtype == DType::kBFloat16 && VectorAligned(view);
  }
  return fits;
}

template <ExpertsProduct kProduct>
ExpertsGradProblem<kProduct> MakeProblem(const ExpertsShape& shape, const TensorView& out) {
  ExpertsGradProblem<kProduct> problem = {};
  problem.out = out.data;
  problem.out_stride = out.row_stride;
  problem.num_experts = static_cast<int>(shape.num_experts);
  problem.n = static_cast<int>(out.cols);
  return problem;
}

int64_t MaxTiles(const ExpertsShape& shape, const TensorView& out) {
  return (out.rows / kTileM + std::min(shape.num_experts, out.rows)) * DivideUp(out.cols, kTileN);
}

// out[r] = a[r] w_e over sorted rows.
void GradInput(const TensorView& a, const TensorView& w, const Routing& routing,
               const SortedRows& rows, const ExpertsShape& shape, const DeviceLimits& limits,
               const TensorView& out, cudaStream_t stream) {
  CHECK(w.rows == shape.num_experts * a.cols && w.cols == out.cols && a.rows == out.rows);
  if (!Fits(shape, limits, {a, w, out})) {
    return ExpertsInputSimple(a, w, routing, rows, shape, out, stream);
  }
  auto problem = MakeProblem<ExpertsProduct::kInput>(shape, out);
  problem.first = rows.first;
  problem.weight_rows = problem.depth = static_cast<int>(a.cols);
  LaunchExpertsGrad(problem, a, w, MaxTiles(shape, out), limits.num_sms, stream);
}

// dw_e += sum over the expert's sorted rows of a^T b.
void GradWeight(const TensorView& a, const TensorView& b, const SortedRows& rows,
                const ExpertsShape& shape, const DeviceLimits& limits, const TensorView& dw,
                cudaStream_t stream) {
  CHECK(dw.dtype == DType::kFloat32 && dw.rows == shape.num_experts * a.cols && dw.cols == b.cols);
  if (!Fits(shape, limits, {a, b}) || !VectorAligned(dw)) {
    return ExpertsWeightSimple(a, b, rows, shape, dw, stream);
  }
  auto problem = MakeProblem<ExpertsProduct::kWeight>(shape, dw);
  problem.first = rows.first;
  problem.m = static_cast<int>(a.cols);
  const int64_t tiles = shape.num_experts * DivideUp(a.cols, kTileM) * DivideUp(dw.cols, kTileN);
  LaunchExpertsGrad(problem, a, b, tiles, limits.num_sms, stream);
}

// --- the workspace ---

class Carver {
 public:
  explicit Carver(void* memory) : base_(static_cast<char*>(memory)) {}
  void* Take(int64_t bytes) {
    void* at = base_ + used_;
    used_ += (bytes + 255) / 256 * 256;
    return at;
  }
  TensorView Matrix(DType dtype, int64_t rows, int64_t cols) {
    return {Take(rows * cols * SizeOf(dtype)), dtype, rows, cols, cols};
  }
  int32_t* Ints(int64_t n) { return static_cast<int32_t*>(Take(4 * n)); }
  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

struct Workspace {
  SortedRows rows;
  TensorView dout;      // [R, d] sorted; later the slots' dx
  TensorView x;         // [R, d]
  TensorView hidden;    // [R, f]
  TensorView dgate_up;  // [R, 2 f]
  int64_t bytes = 0;
};

Workspace Carve(const ExpertsShape& shape, int64_t slots, DType dtype, void* memory) {
  Carver carver(memory);
  Workspace w;
  w.rows.max_rows = MaxSortedRows(shape, slots);
  w.rows.first = carver.Ints(shape.num_experts + 1);
  w.rows.slots = carver.Ints(w.rows.max_rows);
  w.rows.places = carver.Ints(slots);
  w.dout = carver.Matrix(dtype, w.rows.max_rows, shape.d);
  w.x = carver.Matrix(dtype, w.rows.max_rows, shape.d);
  w.hidden = carver.Matrix(dtype, w.rows.max_rows, shape.f);
  w.dgate_up = carver.Matrix(dtype, w.rows.max_rows, 2 * shape.f);
  w.bytes = carver.used();
  return w;
}

}  // namespace

void ExpertsLinear(const TensorView& in, int64_t slots_per_row, const TensorView& w,
                   const ExpertsShape& shape, const Routing& routing, const DeviceLimits& limits,
                   const TensorView& out, cudaStream_t stream) {
  CHECK(in.rows * slots_per_row == out.rows && w.rows == shape.num_experts * out.cols);
  CHECK(w.cols == in.cols && w.dtype == in.dtype && out.dtype == in.dtype);
  if (out.num_elements() == 0) return;
  // A tensor-core step takes 16 terms; where those are not whole, the rollout's kernels do not
  // use tensor cores either.
  if (!Fits(shape, limits, {in, w, out}) || in.cols % 16 != 0) {
    return ExpertsForwardSimple(in, slots_per_row, w, routing, shape, out, stream);
  }
  auto problem = MakeProblem<ExpertsProduct::kForward>(shape, out);
  problem.a = static_cast<const bf16*>(in.data);
  problem.a_stride = in.row_stride;
  problem.slots_per_row = static_cast<int>(slots_per_row);
  problem.counts = routing.counts;
  problem.slots = routing.slots;
  problem.capacity = routing.capacity;
  problem.weight_rows = static_cast<int>(out.cols);
  problem.depth = static_cast<int>(in.cols);
  LaunchExpertsGrad(problem, in, w, MaxTiles(shape, out), limits.num_sms, stream);
}

int64_t RoutedExpertsGradWorkspaceBytes(const ExpertsShape& shape, int64_t rows, DType dtype) {
  return Carve(shape, rows * shape.top_k, dtype, nullptr).bytes;
}

void RoutedExpertsGrad(const RoutedExpertsGradArgs& args, const ExpertsShape& shape,
                       const DeviceLimits& limits, void* workspace, cudaStream_t stream) {
  const int64_t slots = args.dout.rows * shape.top_k;
  const DType dtype = args.dout.dtype;
  CHECK(args.dout.cols == shape.d && args.x.cols == shape.d && args.dx.cols == shape.d);
  CHECK(args.x.rows == args.dout.rows && args.dx.rows == args.dout.rows);
  CHECK(args.gate_up.rows == slots && args.gate_up.cols == 2 * shape.f);
  for (const TensorView& view : {args.x, args.gate_up, args.w_gate_up, args.w_down, args.dx}) {
    CHECK(view.dtype == dtype);
  }
  if (slots == 0) return;
  const Routing& routing = args.routing;
  const Workspace w = Carve(shape, slots, dtype, workspace);
  CUDA_CHECK(cudaMemsetAsync(args.dweights, 0, slots * sizeof(float), stream));  // of padding
  SortRows(routing, shape, w.rows, stream);
  SpreadRows(args.dout, w.rows, routing, shape, w.dout, stream);
  GradInput(w.dout, args.w_down, routing, w.rows, shape, limits, w.hidden, stream);
  GatedGrad(args, w.rows, shape.num_experts, w.hidden, w.dgate_up, stream);
  GradWeight(w.dout, w.hidden, w.rows, shape, limits, args.dw_down, stream);
  SpreadRows(args.x, w.rows, routing, shape, w.x, stream);
  GradWeight(w.dgate_up, w.x, w.rows, shape, limits, args.dw_gate_up, stream);
  GradInput(w.dgate_up, args.w_gate_up, routing, w.rows, shape, limits, w.dout, stream);
  SumSortedRows(w.dout, w.rows, routing, shape, args.dx, stream);
}

}  // namespace orrery::kernels::cuda
