#include "kernels/experts/experts_grad_product.cuh"
#include "kernels/experts/experts_grad_simple.h"
#include "kernels/experts/routed_experts_grad_cuda.h"

namespace orrery::kernels::cuda {
namespace {

// --- element by element ---

constexpr int kWarps = 4;

template <typename T>
struct GatedGradParams {
  Matrix<T> gate_up;  // in; its gradient out
  Matrix<T> dhidden;  // in: dout W_down, weight not applied; out: weight * hidden
  const float* weights = nullptr;
  const int32_t* experts = nullptr;
  float* dweights = nullptr;
  int64_t slots = 0, f = 0;
  bool aligned = false;
};

// A warp a slot.
template <typename T>
__global__ void __launch_bounds__(32 * kWarps) GatedGradKernel(GatedGradParams<T> p) {
  constexpr int kN = kVectorSize<T>;
  LetSuccessorStart();
  WaitForPredecessor();
  const int lane = threadIdx.x % 32;
  const int64_t slot = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (slot >= p.slots) return;
  if (p.experts[slot] < 0) {
    if (lane == 0) p.dweights[slot] = 0;
    return;
  }
  const float weight = p.weights[slot];
  T* const gates = p.gate_up.Row(slot);
  T* const ups = gates + p.f;
  T* const grads = p.dhidden.Row(slot);
  float dot = 0;
  for (int64_t i = lane * kN; i < p.f; i += 32 * kN) {
    float gate[kN], up[kN], grad[kN], hidden[kN];
    Unpack<T>(LoadUpTo(gates + i, p.f - i, p.aligned), gate);
    Unpack<T>(LoadUpTo(ups + i, p.f - i, p.aligned), up);
    Unpack<T>(LoadUpTo(grads + i, p.f - i, p.aligned), grad);
#pragma unroll
    for (int e = 0; e < kN; ++e) {
      const float h = ToFloat(SwiGlu<T>(gate[e], up[e]));
      const float s = 1.0f / (1.0f + __expf(-gate[e])), dh = weight * grad[e];
      dot += grad[e] * h;
      hidden[e] = weight * h;
      grad[e] = dh * gate[e] * s;
      gate[e] = dh * up[e] * s * (1.0f + gate[e] * (1.0f - s));
    }
    StoreUpTo(Pack<T>(gate), gates + i, p.f - i, p.aligned);
    StoreUpTo(Pack<T>(grad), ups + i, p.f - i, p.aligned);
    StoreUpTo(Pack<T>(hidden), grads + i, p.f - i, p.aligned);
  }
  dot = WarpSum(dot);
  if (lane == 0) p.dweights[slot] = dot;
}

void GatedGrad(const RoutedExpertsGradArgs& args, const TensorView& dhidden, cudaStream_t stream) {
  ForDType(dhidden.dtype, [&](auto tag) {
    using T = decltype(tag);
    GatedGradParams<T> p;
    p.gate_up = AsMatrix<T>(args.gate_up);
    p.dhidden = AsMatrix<T>(dhidden);
    p.weights = args.routing.weights;
    p.experts = args.routing.experts;
    p.dweights = args.dweights;
    p.slots = dhidden.rows;
    p.f = dhidden.cols;
    p.aligned = VectorAligned(args.gate_up) && VectorAligned(dhidden);
    Launch(GatedGradKernel<T>, static_cast<unsigned>(DivideUp(p.slots, kWarps)), 32 * kWarps, 0,
           stream, p);
  });
}

constexpr int kSumThreads = 256;

template <typename T>
struct SlotSumParams {
  Matrix<const T> slots;
  const int32_t* experts = nullptr;
  Matrix<T> out;
  int64_t cols = 0;
  int top_k = 0;
  bool aligned = false;
};

// out[t] = round(sum over the slots of t, in order).
template <typename T>
__global__ void __launch_bounds__(kSumThreads) SlotSumKernel(SlotSumParams<T> p) {
  constexpr int kN = kVectorSize<T>;
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t t = blockIdx.x, i = (int64_t{blockIdx.y} * kSumThreads + threadIdx.x) * kN;
  if (i >= p.cols) return;
  float sum[kN] = {};
#pragma unroll 4
  for (int k = 0; k < p.top_k; ++k) {
    const int64_t slot = t * p.top_k + k;
    if (p.experts[slot] < 0) continue;
    float x[kN];
    Unpack<T>(LoadUpTo(p.slots.Row(slot) + i, p.cols - i, p.aligned), x);
#pragma unroll
    for (int e = 0; e < kN; ++e) sum[e] += x[e];
  }
  StoreUpTo(Pack<T>(sum), p.out.Row(t) + i, p.cols - i, p.aligned);
}

void SlotSum(const TensorView& slots, const Routing& routing, int64_t top_k, const TensorView& out,
             cudaStream_t stream) {
  ForDType(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    SlotSumParams<T> p;
    p.slots = AsMatrix<const T>(slots);
    p.experts = routing.experts;
    p.out = AsMatrix<T>(out);
    p.cols = out.cols;
    p.top_k = static_cast<int>(top_k);
    p.aligned = VectorAligned(slots) && VectorAligned(out);
    const dim3 grid(static_cast<unsigned>(out.rows),
                    static_cast<unsigned>(DivideUp(out.cols, kSumThreads * kVectorSize<T>)));
    Launch(SlotSumKernel<T>, grid, kSumThreads, 0, stream, p);
  });
}

// --- the grouped products ---

SlotRows AsSlotRows(const SlotMatrix& matrix) {
  return {static_cast<const bf16*>(matrix.rows.data), matrix.rows.row_stride,
          static_cast<int>(matrix.slots_per_row)};
}

template <ExpertsProduct kProduct>
ExpertsGradProblem<kProduct> MakeProblem(const SlotMatrix& a, const Routing& routing,
                                         const ExpertsShape& shape, const TensorView& out) {
  ExpertsGradProblem<kProduct> problem = {};
  problem.a = AsSlotRows(a);
  problem.out = out.data;
  problem.out_stride = out.row_stride;
  problem.counts = routing.counts;
  problem.slots = routing.slots;
  problem.capacity = routing.capacity;
  problem.num_experts = static_cast<int>(shape.num_experts);
  problem.n = static_cast<int>(out.cols);
  return problem;
}

template <ExpertsProduct kProduct>
void RunLinear(const SlotMatrix& a, const TensorView& w, const Routing& routing,
               const ExpertsShape& shape, const DeviceLimits& limits, const TensorView& out,
               cudaStream_t stream) {
  auto problem = MakeProblem<kProduct>(a, routing, shape, out);
  problem.w = static_cast<const bf16*>(w.data);
  problem.weight_rows = w.rows / shape.num_experts;
  problem.weight_stride = w.row_stride;
  problem.depth = static_cast<int>(a.rows.cols);
  const int64_t row_tiles = out.rows / kTileM + std::min(shape.num_experts, out.rows);
  LaunchExpertsGrad(problem, row_tiles * DivideUp(out.cols, kTileN), limits.num_sms, stream);
}

bool Fits(const ExpertsShape& shape, const DeviceLimits& limits,
          std::initializer_list<TensorView> views) {
  bool fits = limits.wgmma && shape.num_experts <= kGradMaxExperts;
  for (const TensorView& view : views) {
    fits = fits && view.dtype == DType::kBFloat16 && VectorAligned(view);
  }
  return fits;
}

// out = a w_e^T, or a w_e (transposed).
void GroupedLinear(const SlotMatrix& a, const TensorView& w, bool transposed,
                   const Routing& routing, const ExpertsShape& shape, const DeviceLimits& limits,
                   const TensorView& out, cudaStream_t stream) {
  CHECK(a.rows.rows * a.slots_per_row == out.rows && w.rows % shape.num_experts == 0);
  CHECK_EQ(transposed ? w.cols : w.rows / shape.num_experts, out.cols);
  CHECK_EQ(transposed ? w.rows / shape.num_experts : w.cols, a.rows.cols);
  if (out.num_elements() == 0) return;
  if (!Fits(shape, limits, {a.rows, w, out}) || a.rows.cols % kSlab != 0) {
    return ExpertsLinearSimple(a, w, transposed, routing, shape, out, stream);
  }
  if (transposed) {
    RunLinear<ExpertsProduct::kInput>(a, w, routing, shape, limits, out, stream);
  } else {
    RunLinear<ExpertsProduct::kForward>(a, w, routing, shape, limits, out, stream);
  }
}

// dw_e += sum over the list of a^T b.
void GroupedGradWeight(const SlotMatrix& a, const SlotMatrix& b, const Routing& routing,
                       const ExpertsShape& shape, const DeviceLimits& limits, const TensorView& dw,
                       cudaStream_t stream) {
  CHECK(dw.dtype == DType::kFloat32 && dw.rows == shape.num_experts * a.rows.cols &&
        dw.cols == b.rows.cols);
  if (!Fits(shape, limits, {a.rows, b.rows}) || !VectorAligned(dw)) {
    return ExpertsGradWeightSimple(a, b, routing, shape, dw, stream);
  }
  auto problem = MakeProblem<ExpertsProduct::kWeight>(a, routing, shape, dw);
  problem.b = AsSlotRows(b);
  problem.m = static_cast<int>(a.rows.cols);
  const int64_t tiles =
      shape.num_experts * DivideUp(a.rows.cols, kTileM) * DivideUp(dw.cols, kTileN);
  LaunchExpertsGrad(problem, tiles, limits.num_sms, stream);
}

}  // namespace

void ExpertsLinear(const TensorView& in, int64_t slots_per_row, const TensorView& w,
                   const ExpertsShape& shape, const Routing& routing, const DeviceLimits& limits,
                   const TensorView& out, cudaStream_t stream) {
  GroupedLinear({in, slots_per_row}, w, /*transposed=*/false, routing, shape, limits, out, stream);
}

int64_t RoutedExpertsGradWorkspaceBytes(const ExpertsShape& shape, int64_t rows, DType dtype) {
  return rows * shape.top_k * (shape.f + shape.d) * SizeOf(dtype);
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
  const TensorView dx_slots = {workspace, dtype, slots, shape.d, shape.d};
  const TensorView hidden = {static_cast<char*>(workspace) + slots * shape.d * SizeOf(dtype), dtype,
                             slots, shape.f, shape.f};
  const Routing& routing = args.routing;
  const SlotMatrix dout = {args.dout, shape.top_k}, x = {args.x, shape.top_k};
  GroupedLinear(dout, args.w_down, /*transposed=*/true, routing, shape, limits, hidden, stream);
  GatedGrad(args, hidden, stream);
  GroupedGradWeight(dout, {hidden, 1}, routing, shape, limits, args.dw_down, stream);
  GroupedGradWeight({args.gate_up, 1}, x, routing, shape, limits, args.dw_gate_up, stream);
  GroupedLinear({args.gate_up, 1}, args.w_gate_up, true, routing, shape, limits, dx_slots, stream);
  SlotSum(dx_slots, routing, shape.top_k, args.dx, stream);
}

}  // namespace orrery::kernels::cuda
