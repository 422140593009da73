// Dense products on a GPU: against double, and bitwise against themselves at other row counts.
#include "kernels/linear/linear.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/linear/linear_cuda.h"
#include "kernels/linear/linear_simple.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/dot.h"

namespace orrery::kernels::cuda {
namespace {

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16};

struct LinearShape {
  int64_t t, n, k;
};

struct LinearCase {
  LinearCase(Random* random, DType dtype, const LinearShape& s) : dtype(dtype), s(s) {
    x = Rounded(dtype, random->Floats(s.t * s.k));
    w = Rounded(dtype, random->Floats(s.n * s.k));
    bias = Rounded(dtype, random->Floats(s.n));
  }
  DType dtype;
  LinearShape s;
  std::vector<float> x, w, bias;
};

// Outputs to compare: all of a small product, a sample of a large one.
std::vector<int64_t> Outputs(Random* random, int64_t n) {
  constexpr int64_t kMost = 4000;
  std::vector<int64_t> outputs;
  for (int64_t i = 0; i < std::min(n, kMost); ++i) {
    outputs.push_back(n <= kMost ? i : random->Pick(0, n - 1));
  }
  return outputs;
}

void ExpectProduct(Random* random, const LinearCase& c, bool biased, DType out_dtype,
                   const std::vector<float>& out) {
  for (const int64_t i : Outputs(random, c.s.t * c.s.n)) {
    const int64_t t = i / c.s.n, n = i % c.s.n;
    Dot dot = DotOf(c.x.data() + t * c.s.k, c.w.data() + n * c.s.k, c.s.k);
    if (biased) dot.value += c.bias[n], dot.size += std::abs(c.bias[n]);
    const double error = SumError(dot, c.s.k);
    const double rounding =
        out_dtype == DType::kBFloat16 ? kBFloat16Eps * (std::abs(dot.value) + error) : 0;
    ASSERT_NEAR(out[i], dot.value, error + rounding)
        << c.s.t << " x " << c.s.n << " x " << c.s.k << " at " << t << ", " << n;
  }
}

using LinearFunction = void (*)(const TensorView&, const TensorView&, const TensorView&,
                                const DeviceLimits&, const TensorView&, cudaStream_t);

void PlainLinear(const TensorView& x, const TensorView& w, const TensorView& bias,
                 const DeviceLimits&, const TensorView& out, cudaStream_t stream) {
  LinearSimple(x, w, bias, out, stream);
}

void ExactLinear(const TensorView& x, const TensorView& w, const TensorView& bias,
                 const DeviceLimits& limits, const TensorView& out, cudaStream_t stream) {
  Linear(x, w, bias, limits, out, stream);
}
void FastLinear(const TensorView& x, const TensorView& w, const TensorView& bias,
                const DeviceLimits& limits, const TensorView& out, cudaStream_t stream) {
  Linear(x, w, bias, limits, out, stream, Numerics::kFast);
}
// cuBLASLt where it takes the shape.
void LibraryLinear(const TensorView& x, const TensorView& w, const TensorView& bias,
                   const DeviceLimits& limits, const TensorView& out, cudaStream_t stream) {
  static LinearLibrary* library = LinearLibrary::Create()->release();  // as long as the context
  if (!library->Run(x, w, bias, out, stream)) Linear(x, w, bias, limits, out, stream);
}

class CudaLinearTest : public CudaTest {
 protected:
  std::vector<float> Run(const LinearCase& c, LinearFunction linear, bool biased, DType out_dtype,
                         int64_t gap) {
    const DeviceMatrix x(c.dtype, c.x, c.s.t, c.s.k, gap), w(c.dtype, c.w, c.s.n, c.s.k, gap);
    const DeviceMatrix bias(c.dtype, c.bias, 1, c.s.n), out(out_dtype, c.s.t, c.s.n, gap);
    linear(x.view(), w.view(), biased ? bias.view() : TensorView{}, limits_, out.view(), nullptr);
    EXPECT_TRUE(out.GapsUntouched());
    return out.Download();
  }
};

TEST_F(CudaLinearTest, EqualsDoubleReference) {
  Random random(1);
  for (const DType dtype : kDTypes) {
    for (const LinearShape& s : std::vector<LinearShape>{{1, 1, 1},
                                                         {3, 5, 7},
                                                         {1, 16, 16},
                                                         {17, 97, 33},
                                                         {64, 64, 48},
                                                         {130, 72, 577},
                                                         {5, 960, 576},
                                                         {33, 1536, 576},
                                                         {1, 5120, 2048},
                                                         {7, 2048, 4096},
                                                         {129, 128, 2048},
                                                         {300, 5120, 2048}}) {
      const LinearCase c(&random, dtype, s);
      for (const bool biased : {false, true}) {
        for (const DType out_dtype : kDTypes) {
          if (dtype == DType::kFloat32 && out_dtype == DType::kBFloat16) continue;
          for (const LinearFunction linear : {ExactLinear, FastLinear, LibraryLinear}) {
            ExpectProduct(&random, c, biased, out_dtype, Run(c, linear, biased, out_dtype, 0));
          }
          if (s.k > 600) continue;
          for (const int64_t gap : {1, 8}) {
            ExpectProduct(&random, c, biased, out_dtype,
                          Run(c, ExactLinear, biased, out_dtype, gap));
          }
          ExpectProduct(&random, c, biased, out_dtype, Run(c, PlainLinear, biased, out_dtype, 0));
        }
      }
    }
  }
}

// Rows and columns of the batch in which a row's bits must not change.
TEST_F(CudaLinearTest, ARowHasTheSameBitsAtEveryRowCount) {
  Random random(2);
  struct Layer {
    int64_t n, k;
    DType out;
  };
  for (const DType dtype : kDTypes) {
    for (const Layer& layer : std::vector<Layer>{{5120, 2048, dtype},
                                                 {2048, 4096, dtype},
                                                 {128, 2048, DType::kFloat32},
                                                 {960, 576, dtype},
                                                 {576, 1536, dtype},
                                                 {49152, 576, dtype},
                                                 {70, 64, dtype},
                                                 {33, 61, dtype}}) {
      const bool large = layer.n * layer.k > (1 << 22);
      if (dtype == DType::kFloat32 && large) continue;
      // So many that both kernels serve some.
      const int64_t rows = layer.n > 40000 ? 130 : layer.n * layer.k < 1000000 ? 2600 : 1030;
      const LinearCase c(&random, dtype, {rows, layer.n, layer.k});
      const DeviceMatrix x(dtype, c.x, rows, layer.k), w(dtype, c.w, layer.n, layer.k);
      const DeviceMatrix whole_out(layer.out, rows, layer.n);
      Linear(x.view(), w.view(), {}, limits_, whole_out.view(), nullptr);
      const std::vector<float> whole = whole_out.Download();
      ExpectProduct(&random, c, false, layer.out, whole);
      for (const int64_t count :
           {1, 2, 7, 8, 9, 16, 17, 31, 33, 64, 65, 100, 128, 129, 200, 256, 257, 300, 513}) {
        if (count > rows) continue;
        // The last rows: they lie in other tiles than in the whole.
        const DeviceMatrix out(layer.out, count, layer.n);
        Linear(x.view().Rows(rows - count, count), w.view(), {}, limits_, out.view(), nullptr);
        const std::vector<float> part = out.Download();
        ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.end() - count * layer.n))
            << count << " rows of " << layer.n << " x " << layer.k;
      }
    }
  }
}

// By the definition: the roundings that the operands of each step have.
void ExpectSwiGlu(Random* random, const LinearCase& c, const std::vector<float>& out) {
  const int64_t f = c.s.n / 2, k = c.s.k;
  const double eps = Eps(c.dtype);
  for (const int64_t i : Outputs(random, c.s.t * f)) {
    const float* x = c.x.data() + i / f * k;
    const Dot gate = DotOf(x, c.w.data() + i % f * k, k);
    const Dot up = DotOf(x, c.w.data() + (f + i % f) * k, k);
    const double silu = gate.value / (1 + std::exp(-gate.value));
    const double gate_error = SumError(gate, k) + eps * std::abs(gate.value);
    const double up_error = SumError(up, k) + eps * std::abs(up.value);
    // silu's slope is below 1.1.
    const double error = 1.1 * gate_error * (std::abs(up.value) + up_error) +
                         std::abs(silu) * (up_error + 16 * kFloatEps * std::abs(up.value));
    ASSERT_NEAR(out[i], silu * up.value, error + eps * (std::abs(silu * up.value) + error))
        << c.s.t << " x " << f << " x " << k;
  }
}

TEST_F(CudaLinearTest, SwiGluEqualsDoubleAndRowsStandAlone) {
  Random random(3);
  for (const DType dtype : kDTypes) {
    for (const auto& [f, k] : std::vector<std::pair<int64_t, int64_t>>{
             {1536, 576}, {768, 2048}, {3, 5}, {40, 64}, {31, 17}}) {
      constexpr int64_t kRows = 1100;  // so many that both kernels serve some
      LinearCase c(&random, dtype, {kRows, 2 * f, k});
      for (float& v : c.w) v = Rounded(dtype, v / std::sqrt(static_cast<float>(k)));
      const DeviceMatrix x(dtype, c.x, kRows, k), w(dtype, c.w, 2 * f, k), whole(dtype, kRows, f);
      LinearSwiGlu(x.view(), w.view(), limits_, whole.view(), nullptr);
      const std::vector<float> expected = whole.Download();
      ExpectSwiGlu(&random, c, expected);
      for (const int64_t count : {1, 3, 8, 9, 17, 64, 65, 129, 299}) {
        const DeviceMatrix out(dtype, count, f, 2);
        LinearSwiGlu(x.view().Rows(kRows - count, count), w.view(), limits_, out.view(), nullptr);
        const std::vector<float> part = out.Download();
        ASSERT_TRUE(std::equal(part.begin(), part.end(), expected.end() - count * f)) << count;
        EXPECT_TRUE(out.GapsUntouched());
      }
    }
  }
}

TEST_F(CudaLinearTest, NoRowsAreNoWork) {
  const DeviceMatrix x(DType::kBFloat16, 0, 64), w(DType::kBFloat16, 32, 64);
  const DeviceMatrix out(DType::kBFloat16, 0, 32);
  Linear(x.view(), w.view(), {}, limits_, out.view(), nullptr);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace orrery::kernels::cuda
