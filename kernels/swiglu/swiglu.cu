// A thread owns a vector of 16 bytes of gates and the ups that belong to it.
#include "kernels/cuda/launch.cuh"
#include "kernels/swiglu/gated_product.cuh"
#include "kernels/swiglu/swiglu_cuda.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
struct SwiGluParams {
  Matrix<const T> dy, gate_up;
  Matrix<T> out;  // the activation, or the gradient of gate_up
  int64_t f = 0;
  bool aligned = false;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) SwiGluKernel(SwiGluParams<T> p) {
  constexpr int kN = kVectorSize<T>;
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t t = blockIdx.x, i = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kN;
  if (i >= p.f) return;
  float gate[kN], up[kN], out[kN];
  Unpack<T>(LoadUpTo(p.gate_up.Row(t) + i, p.f - i, p.aligned), gate);
  Unpack<T>(LoadUpTo(p.gate_up.Row(t) + p.f + i, p.f - i, p.aligned), up);
#pragma unroll
  for (int e = 0; e < kN; ++e) out[e] = ToFloat(SwiGlu<T>(gate[e], up[e]));
  StoreUpTo(Pack<T>(out), p.out.Row(t) + i, p.f - i, p.aligned);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) SwiGluGradKernel(SwiGluParams<T> p) {
  constexpr int kN = kVectorSize<T>;
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t t = blockIdx.x, i = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kN;
  if (i >= p.f) return;
  float dy[kN], gate[kN], up[kN], dgate[kN], dup[kN];
  Unpack<T>(LoadUpTo(p.dy.Row(t) + i, p.f - i, p.aligned), dy);
  Unpack<T>(LoadUpTo(p.gate_up.Row(t) + i, p.f - i, p.aligned), gate);
  Unpack<T>(LoadUpTo(p.gate_up.Row(t) + p.f + i, p.f - i, p.aligned), up);
#pragma unroll
  for (int e = 0; e < kN; ++e) {
    const float s = 1.0f / (1.0f + __expf(-gate[e]));
    dgate[e] = dy[e] * up[e] * s * (1.0f + gate[e] * (1.0f - s));
    dup[e] = dy[e] * gate[e] * s;
  }
  StoreUpTo(Pack<T>(dgate), p.out.Row(t) + i, p.f - i, p.aligned);
  StoreUpTo(Pack<T>(dup), p.out.Row(t) + p.f + i, p.f - i, p.aligned);
}

template <typename T>
dim3 Grid(int64_t rows, int64_t f) {
  return dim3(static_cast<unsigned>(rows),
              static_cast<unsigned>(DivideUp(f, kThreads * kVectorSize<T>)));
}

// Both halves of a row must begin at a whole vector.
bool Aligned(const TensorView& gate_up, const TensorView& half) {
  return VectorAligned(gate_up) && VectorAligned(half);
}

}  // namespace

void SwiGlu(const TensorView& gate_up, const TensorView& out, cudaStream_t stream) {
  CHECK(gate_up.cols == 2 * out.cols && gate_up.rows == out.rows && gate_up.dtype == out.dtype);
  if (out.num_elements() == 0) return;
  ForDType(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    SwiGluParams<T> p;
    p.gate_up = AsMatrix<const T>(gate_up);
    p.out = AsMatrix<T>(out);
    p.f = out.cols;
    p.aligned = Aligned(gate_up, out);
    Launch(SwiGluKernel<T>, Grid<T>(out.rows, out.cols), kThreads, 0, stream, p);
  });
}

void SwiGluGrad(const TensorView& dy, const TensorView& gate_up, const TensorView& dgate_up,
                cudaStream_t stream) {
  CHECK(gate_up.cols == 2 * dy.cols && gate_up.rows == dy.rows && gate_up.dtype == dy.dtype);
  CHECK(dgate_up.cols == gate_up.cols && dgate_up.rows == dy.rows && dgate_up.dtype == dy.dtype);
  if (dy.num_elements() == 0) return;
  ForDType(dy.dtype, [&](auto tag) {
    using T = decltype(tag);
    SwiGluParams<T> p;
    p.dy = AsMatrix<const T>(dy);
    p.gate_up = AsMatrix<const T>(gate_up);
    p.out = AsMatrix<T>(dgate_up);
    p.f = dy.cols;
    p.aligned = Aligned(gate_up, dy) && VectorAligned(dgate_up);
    Launch(SwiGluGradKernel<T>, Grid<T>(dy.rows, dy.cols), kThreads, 0, stream, p);
  });
}

}  // namespace orrery::kernels::cuda
