#include "kernels/linear/linear.h"

#include <gtest/gtest.h>

#include "kernels/cpu/thread_pool.h"
#include "tests/kernels/random_data.h"

namespace orrery::kernels {
namespace {

// A weight in either dtype, with its packed form.
struct Weight {
  Weight(Random* random, int64_t n, int64_t k, DType dtype) {
    floats = random->Floats(n * k);
    for (float& x : floats) {
      if (dtype == DType::kBFloat16) x = RoundToBFloat16(x);
      halves.push_back(ToBFloat16(x));
    }
    view = View(floats, n, k);
    if (dtype == DType::kBFloat16) view = {halves.data(), dtype, n, k, k};
    memory.resize(static_cast<size_t>(PackedWeight::NumElements(n, k)));
    packed = PackWeight(view, memory.data());
  }
  std::vector<float> floats, memory;
  std::vector<uint16_t> halves;
  TensorView view;
  PackedWeight packed;
};

TEST(LinearTest, EqualsDoubleReferenceOverOddShapes) {
  Random random(1);
  for (const int64_t t : {1, 2, 15, 16, 17, 97, 200}) {
    for (const int64_t n : {1, 15, 16, 17, 33, 97}) {
      for (const int64_t k : {0, 1, 15, 17, 97}) {
        const DType dtype = random.Pick(0, 1) ? DType::kFloat32 : DType::kBFloat16;
        const Rounding rounding = random.Pick(0, 1) ? Rounding::kNone : Rounding::kBFloat16;
        Weight w(&random, n, k, dtype);
        std::vector<float> x = random.Floats(t * k), bias = random.Floats(n), out(t * n);
        const bool with_bias = random.Pick(0, 1) == 1;
        Linear(View(x, t, k), w.packed, with_bias ? bias.data() : nullptr, rounding,
               View(out, t, n));
        std::vector<double> expected(t * n);
        LinearReference(View(x, t, k), w.view, with_bias ? bias.data() : nullptr, expected.data());
        for (int64_t i = 0; i < t * n; ++i) {
          double size = with_bias ? std::abs(bias[i % n]) : 0;
          for (int64_t c = 0; c < k; ++c) {
            size += std::abs(x[i / n * k + c] * w.floats[i % n * k + c]);
          }
          double tolerance = static_cast<double>(k + 1) * kFloatEps * size;
          if (rounding == Rounding::kBFloat16) {
            tolerance += kBFloat16Eps * (std::abs(expected[i]) + tolerance);
            ASSERT_EQ(out[i], RoundToBFloat16(out[i]));
          }
          ASSERT_NEAR(out[i], expected[i], tolerance) << t << " x " << n << " x " << k;
        }
      }
    }
  }
}

TEST(LinearTest, ARowDoesNotDependOnTheOthers) {
  Random random(2);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    constexpr int64_t kRows = 40, kN = 53, kK = 61;
    Weight w(&random, kN, kK, dtype);
    std::vector<float> x = random.Floats(kRows * kK), whole(kRows * kN);
    Linear(View(x, kRows, kK), w.packed, nullptr, Rounding::kNone, View(whole, kRows, kN));
    for (int64_t rows = 1; rows <= kRows; ++rows) {
      std::vector<float> part(rows * kN);
      // The last rows: they lie in other tiles than in the whole.
      Linear(View(x, kRows, kK).Rows(kRows - rows, rows), w.packed, nullptr, Rounding::kNone,
             View(part, rows, kN));
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.end() - rows * kN)) << rows;
    }
  }
}

TEST(LinearTest, StridesAreFollowedAndGapsLeftAlone) {
  Random random(3);
  Weight w(&random, 19, 7, DType::kFloat32);
  std::vector<float> x = random.Floats(5 * 11), out(5 * 30, -7.0f), dense(5 * 7), plain(5 * 19);
  for (int64_t i = 0; i < 35; ++i) dense[i] = x[i / 7 * 11 + 2 + i % 7];
  Linear(View(dense, 5, 7), w.packed, nullptr, Rounding::kNone, View(plain, 5, 19));
  Linear(View(x, 5, 11).Cols(2, 7), w.packed, nullptr, Rounding::kNone,
         View(out, 5, 30).Cols(4, 19));
  for (int64_t t = 0; t < 5; ++t) {
    for (int64_t c = 0; c < 30; ++c) {
      EXPECT_EQ(out[t * 30 + c], c < 4 || c >= 23 ? -7.0f : plain[t * 19 + c - 4]);
    }
  }
}

TEST(LinearTest, GradientsEqualDoubleSums) {
  Random random(4);
  for (const int64_t t : {0, 1, 16, 17, 97}) {
    for (const int64_t n : {1, 16, 31}) {
      for (const int64_t k : {1, 17, 48}) {
        Weight w(&random, n, k, random.Pick(0, 1) ? DType::kFloat32 : DType::kBFloat16);
        std::vector<float> x = random.Floats(t * k), dy = random.Floats(t * n);
        std::vector<float> dx = random.Floats(t * k), dw = random.Floats(n * k);
        const std::vector<float> dx0 = dx, dw0 = dw;
        const bool accumulate = random.Pick(0, 1) == 1;
        LinearGradInput(View(dy, t, n), w.view, accumulate, View(dx, t, k));
        LinearGradWeight(View(dy, t, n), View(x, t, k), View(dw, n, k));
        for (int64_t i = 0; i < t * k; ++i) {
          double sum = accumulate ? dx0[i] : 0, size = std::abs(sum);
          for (int64_t j = 0; j < n; ++j) {
            const double term = static_cast<double>(dy[i / k * n + j]) * w.floats[j * k + i % k];
            sum += term, size += std::abs(term);
          }
          ASSERT_NEAR(dx[i], sum, static_cast<double>(n + 1) * kFloatEps * size);
        }
        for (int64_t i = 0; i < n * k; ++i) {
          double sum = dw0[i], size = std::abs(sum);
          for (int64_t r = 0; r < t; ++r) {
            const double term = static_cast<double>(dy[r * n + i / k]) * x[r * k + i % k];
            sum += term, size += std::abs(term);
          }
          ASSERT_NEAR(dw[i], sum, static_cast<double>(t + 1) * kFloatEps * size);
        }
      }
    }
  }
}

TEST(LinearTest, ThreadsChangeNoBit) {
  Random random(5);
  constexpr int64_t kT = 400, kN = 97, kK = 130;
  Weight w(&random, kN, kK, DType::kFloat32);
  std::vector<float> x = random.Floats(kT * kK), dy = random.Floats(kT * kN);
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 5}) {
    SetNumThreads(threads);
    std::vector<float> out(kT * kN), dx(kT * kK), dw(kN * kK);
    Linear(View(x, kT, kK), w.packed, nullptr, Rounding::kNone, View(out, kT, kN));
    LinearGradInput(View(dy, kT, kN), w.view, false, View(dx, kT, kK));
    LinearGradWeight(View(dy, kT, kN), View(x, kT, kK), View(dw, kN, kK));
    out.insert(out.end(), dx.begin(), dx.end());
    out.insert(out.end(), dw.begin(), dw.end());
    results.push_back(std::move(out));
  }
  SetNumThreads(0);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

}  // namespace
}  // namespace orrery::kernels
