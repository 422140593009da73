// The operators that work on one row at a time: RMSNorm, SwiGLU, log-softmax, embedding, rotation.
#include <gtest/gtest.h>

#include <limits>

#include "kernels/cpu/thread_pool.h"
#include "kernels/embedding/embedding.h"
#include "kernels/head/log_softmax.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/qk_norm_rope.h"
#include "kernels/swiglu/swiglu.h"
#include "tests/kernels/random_data.h"

namespace orrery::kernels {
namespace {

constexpr int64_t kWidths[] = {1, 2, 15, 16, 17, 31, 97, 256};
constexpr float kNormEps = 1e-6f;

double NormLoss(const std::vector<double>& x, const std::vector<double>& w,
                const std::vector<float>& dy) {
  double sum = 0, loss = 0;
  for (const double v : x) sum += v * v;
  const double r = 1 / std::sqrt(sum / static_cast<double>(x.size()) + kNormEps);
  for (size_t i = 0; i < x.size(); ++i) loss += dy[i] * w[i] * x[i] * r;
  return loss;
}

TEST(RmsNormTest, EqualsDoubleReference) {
  Random random(1);
  for (const int64_t d : kWidths) {
    std::vector<float> x = random.Floats(70 * d, 3), w = random.Floats(d), out(70 * d);
    std::vector<float> rounded(70 * d);
    RmsNorm(View(x, 70, d), w.data(), kNormEps, Rounding::kNone, View(out, 70, d));
    RmsNorm(View(x, 70, d), w.data(), kNormEps, Rounding::kBFloat16, View(rounded, 70, d));
    std::vector<double> expected(d);
    for (int64_t t = 0; t < 70; ++t) {
      RmsNormReference(x.data() + t * d, d, w.data(), kNormEps, expected.data());
      for (int64_t i = 0; i < d; ++i) {
        // A sum of d squares (all positive), a root, a division, two products.
        const double relative = static_cast<double>(d + 8) * kFloatEps;
        ASSERT_NEAR(out[t * d + i], expected[i], relative * std::abs(expected[i]));
        ASSERT_NEAR(rounded[t * d + i], expected[i], 2.1 * kBFloat16Eps * std::abs(expected[i]));
        ASSERT_EQ(rounded[t * d + i], RoundToBFloat16(rounded[t * d + i]));
      }
    }
  }
}

TEST(RmsNormTest, AdditionIsThatOfTheParts) {
  Random random(2);
  for (const Rounding rounding : {Rounding::kNone, Rounding::kBFloat16}) {
    for (const int64_t d : {1, 17, 64}) {
      std::vector<float> x = random.Floats(9 * d), delta = random.Floats(9 * d);
      std::vector<float> w = random.Floats(d), sum(9 * d), out(9 * d), norm(9 * d);
      AddRmsNorm(View(x, 9, d), View(delta, 9, d), w.data(), kNormEps, rounding, View(sum, 9, d),
                 View(out, 9, d));
      for (int64_t i = 0; i < 9 * d; ++i) {
        const float exact = x[i] + delta[i];
        EXPECT_EQ(sum[i], rounding == Rounding::kNone ? exact : RoundToBFloat16(exact));
      }
      RmsNorm(View(sum, 9, d), w.data(), kNormEps, rounding, View(norm, 9, d));
      EXPECT_EQ(out, norm);
      std::vector<float> again(9 * d);
      AddRmsNorm(View(x, 9, d), View(delta, 9, d), w.data(), kNormEps, rounding, View(x, 9, d),
                 View(again, 9, d));  // sum in place of x
      EXPECT_EQ(x, sum);
      EXPECT_EQ(again, norm);
    }
  }
}

TEST(RmsNormTest, GradientIsTheSlope) {
  Random random(3);
  for (const int64_t d : {1, 5, 17, 40}) {
    std::vector<float> x = random.Floats(d, 2), w = random.Floats(d), dy = random.Floats(d);
    std::vector<float> dx = random.Floats(d), dw = random.Floats(d);
    const std::vector<float> dx0 = dx, dw0 = dw;
    RmsNormGrad(View(dy, 1, d), View(x, 1, d), w.data(), kNormEps, true, View(dx, 1, d), dw.data());
    const std::vector<double> xd(x.begin(), x.end()), wd(w.begin(), w.end());
    const auto by_x = Slopes([&](const auto& v) { return NormLoss(v, wd, dy); }, x);
    const auto by_w = Slopes([&](const auto& v) { return NormLoss(xd, v, dy); }, w);
    double sum = 0, terms = 0;
    for (int64_t i = 0; i < d; ++i) {
      sum += static_cast<double>(x[i]) * x[i];
      terms += std::abs(static_cast<double>(w[i]) * dy[i] * x[i]);
    }
    const double r = 1 / std::sqrt(sum / static_cast<double>(d) + kNormEps);
    const double n = static_cast<double>(d);
    for (int64_t i = 0; i < d; ++i) {
      const double size = std::abs(w[i] * dy[i]) * r + std::abs(x[i]) * r * r * r / n * terms;
      const double slope_error = kSlopeError * (1 + r * r * r);
      EXPECT_NEAR(dx[i] - dx0[i], by_x[i], 4 * (n + 8) * kFloatEps * (size + 1) + slope_error);
      EXPECT_NEAR(dw[i] - dw0[i], by_w[i],
                  (n + 8) * kFloatEps * (std::abs(by_w[i]) + 2) + slope_error);
    }
  }
}

TEST(RmsNormTest, WeightGradientAddsRowsWhateverTheThreads) {
  Random random(4);
  constexpr int64_t kT = 200, kD = 33;
  std::vector<float> x = random.Floats(kT * kD), dy = random.Floats(kT * kD), w = random.Floats(kD);
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 4}) {
    SetNumThreads(threads);
    std::vector<float> dx(kT * kD), dw(kD);
    RmsNormGrad(View(dy, kT, kD), View(x, kT, kD), w.data(), kNormEps, false, View(dx, kT, kD),
                dw.data());
    dx.insert(dx.end(), dw.begin(), dw.end());
    results.push_back(dx);
  }
  SetNumThreads(0);
  EXPECT_EQ(results[0], results[1]);
}

TEST(SwiGluTest, EqualsDoubleReferenceAndItsSlope) {
  Random random(5);
  for (const int64_t f : kWidths) {
    std::vector<float> gate_up = random.Floats(3 * 2 * f, 8), dy = random.Floats(3 * f);
    if (f > 2) gate_up[0] = -90, gate_up[1] = 90;  // exp over- and underflows
    std::vector<float> out(3 * f), rounded(3 * f), grad(3 * 2 * f);
    SwiGlu(View(gate_up, 3, 2 * f), Rounding::kNone, View(out, 3, f));
    SwiGlu(View(gate_up, 3, 2 * f), Rounding::kBFloat16, View(rounded, 3, f));
    SwiGluGrad(View(dy, 3, f), View(gate_up, 3, 2 * f), View(grad, 3, 2 * f));
    std::vector<double> expected(f);
    for (int64_t t = 0; t < 3; ++t) {
      const float* row = gate_up.data() + t * 2 * f;
      SwiGluReference(row, row + f, f, expected.data());
      for (int64_t i = 0; i < f; ++i) {
        // Highway's exp has an error of a few units in the last place, and moves its argument by
        // some of them: 16 roundings in all, and one of the argument.
        const double relative = (16 + std::abs(row[i])) * kFloatEps;
        ASSERT_NEAR(out[t * f + i], expected[i], relative * std::abs(expected[i]) + 1e-30);
        ASSERT_EQ(rounded[t * f + i], RoundToBFloat16(out[t * f + i]));
        const double g = row[i], u = row[f + i], s = 1 / (1 + std::exp(-g)), d = dy[t * f + i];
        ASSERT_NEAR(grad[t * 2 * f + i], d * u * s * (1 + g * (1 - s)),
                    2 * relative * std::abs(d * u * s) * (1 + std::abs(g)) + 1e-30);
        ASSERT_NEAR(grad[t * 2 * f + f + i], d * g * s, relative * std::abs(d * g * s) + 1e-30);
      }
    }
    // The formula of the gradient itself.
    const auto loss = [&](const std::vector<double>& x) {
      double sum = 0;
      for (int64_t i = 0; i < f; ++i) sum += dy[i] * x[i] / (1 + std::exp(-x[i])) * x[f + i];
      return sum;
    };
    const auto slopes = Slopes(loss, {gate_up.begin(), gate_up.begin() + 2 * f});
    for (int64_t i = 0; i < 2 * f; ++i) {
      EXPECT_NEAR(grad[i], slopes[i], 100 * kFloatEps * (1 + 8 * 8) + 1000 * kSlopeError);
    }
  }
}

TEST(LogSoftmaxTest, EqualsDoubleReference) {
  Random random(6);
  for (const int64_t n : {1, 2, 15, 16, 17, 97, 1000}) {
    for (const float inverse : {1.0f, 1 / 0.7f, 0.5f, 20.0f}) {
      std::vector<float> logits = random.Floats(n, 12), exps(n);
      const LogSoftmaxStats stats = LogSoftmax(logits.data(), n, inverse, exps.data());
      std::vector<double> expected(n);
      const double entropy = LogSoftmaxReference(logits.data(), n, inverse, expected.data());
      ASSERT_TRUE(stats.finite);
      double largest = 0;
      for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(expected[i]));
      // Terms of the size of the largest log-prob and logit, and a sum of n exponentials.
      const double tolerance =
          kFloatEps * (4 * (largest + 12 * inverse) + static_cast<double>(n) / 16 + 16);
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_NEAR(stats.Logprob(logits[i], inverse), expected[i], tolerance);
        ASSERT_NEAR(exps[i], std::exp(logits[i] * double{inverse} - stats.max),
                    2 * tolerance * exps[i] + 1e-30);
      }
      EXPECT_NEAR(stats.entropy, entropy, 4 * tolerance * (1 + std::log(n + 1)));
      // In place.
      const LogSoftmaxStats again = LogSoftmax(logits.data(), n, inverse, logits.data());
      EXPECT_EQ(again.log_sum, stats.log_sum);
      EXPECT_EQ(logits, exps);
    }
  }
}

TEST(LogSoftmaxTest, SeesWhatIsNotFinite) {
  Random random(7);
  for (const int64_t n : {1, 16, 50}) {
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
      for (const int64_t at : {int64_t{0}, n / 2, n - 1}) {
        std::vector<float> logits = random.Floats(n);
        logits[at] = bad;
        EXPECT_FALSE(LogSoftmax(logits.data(), n, 1, nullptr).finite) << bad << " at " << at;
      }
    }
  }
}

TEST(LogSoftmaxTest, GradientIsTheSlope) {
  Random random(8);
  for (const int64_t n : {2, 17, 40}) {
    for (const float inverse : {1.0f, 1 / 0.7f}) {
      std::vector<float> logits = random.Floats(n, 3), grad(n);
      const int64_t target = n / 2;
      const LogSoftmaxStats stats = LogSoftmax(logits.data(), n, inverse, nullptr);
      LogSoftmaxGrad(logits.data(), n, inverse, stats, target, 0.8f, -0.3f, grad.data());
      const auto loss = [&](const std::vector<double>& x) {
        double sum = 0, entropy = 0;
        for (const double v : x) sum += std::exp(v * inverse);
        for (const double v : x) {
          entropy -= std::exp(v * inverse) / sum * (v * inverse - std::log(sum));
        }
        return 0.8f * (x[target] * inverse - std::log(sum)) + -0.3f * entropy;
      };
      const auto slopes = Slopes(loss, logits);
      for (int64_t i = 0; i < n; ++i) {
        EXPECT_NEAR(grad[i], slopes[i], inverse * (100 * kFloatEps + 10 * kSlopeError));
      }
    }
  }
}

TEST(EmbeddingTest, CopiesRowsAndAddsTheirGradientsInOrder) {
  Random random(9);
  constexpr int64_t kV = 11, kD = 300;
  std::vector<float> table = random.Floats(kV * kD), out(5 * kD), grad(kV * kD, 0.0f);
  const std::vector<int32_t> ids = {3, 0, 3, 10, 3};
  Embedding(View(table, kV, kD), ids, View(out, 5, kD));
  for (int64_t i = 0; i < 5 * kD; ++i) EXPECT_EQ(out[i], table[ids[i / kD] * kD + i % kD]);
  std::vector<uint16_t> halves;
  for (const float x : table) halves.push_back(ToBFloat16(x));
  Embedding({halves.data(), DType::kBFloat16, kV, kD, kD}, ids, View(out, 5, kD));
  for (int64_t i = 0; i < 5 * kD; ++i) {
    EXPECT_EQ(out[i], RoundToBFloat16(table[ids[i / kD] * kD + i % kD]));
  }
  std::vector<float> dy = random.Floats(5 * kD);
  EmbeddingGrad(View(dy, 5, kD), ids, View(grad, kV, kD));
  for (int64_t i = 0; i < kD; ++i) {
    EXPECT_EQ(grad[3 * kD + i], dy[i] + dy[2 * kD + i] + dy[4 * kD + i]);
    EXPECT_EQ(grad[1 * kD + i], 0);
  }
  const std::vector<int32_t> beyond = {11};
  EXPECT_DEATH(Embedding(View(table, kV, kD), beyond, View(out, 1, kD)), "token id 11");
}

struct RopeCase {
  HeadShape heads;
  std::vector<float> inv_freq, qkv, q_norm, k_norm;
  std::vector<int32_t> positions;
  std::unique_ptr<RopeTable> table;
  QkNormRopeArgs args;
  int64_t rows() const { return static_cast<int64_t>(positions.size()); }
};

RopeCase MakeRope(Random* random, int64_t d, bool norm, std::vector<int32_t> positions) {
  RopeCase c;
  c.heads = {4, 2, d};
  for (int64_t j = 0; j < d / 2; ++j) {
    c.inv_freq.push_back(
        static_cast<float>(std::pow(1e4, -2.0 * static_cast<double>(j) / static_cast<double>(d))));
  }
  c.positions = std::move(positions);
  c.table = std::make_unique<RopeTable>(c.inv_freq, 1000);
  c.qkv = random->Floats(c.rows() * c.heads.qkv_width());
  c.q_norm = random->Floats(d);
  c.k_norm = random->Floats(d);
  c.args.heads = c.heads;
  c.args.q_norm = norm ? c.q_norm.data() : nullptr;
  c.args.k_norm = norm ? c.k_norm.data() : nullptr;
  c.args.eps = kNormEps;
  c.args.rope = c.table.get();
  return c;
}

TEST(QkNormRopeTest, EqualsDoubleReference) {
  Random random(10);
  for (const int64_t d : {2, 6, 16, 34, 64}) {
    for (const bool norm : {false, true}) {
      RopeCase c = MakeRope(&random, d, norm, {0, 1, 17, 999, 500});
      c.args.positions = c.positions;
      const int64_t width = c.heads.qkv_width();
      std::vector<float> out(c.qkv.size()), rounded(c.qkv.size());
      QkNormRope(View(c.qkv, 5, width), c.args, View(out, 5, width));
      c.args.rounding = Rounding::kBFloat16;
      QkNormRope(View(c.qkv, 5, width), c.args, View(rounded, 5, width));
      std::vector<double> expected(d);
      for (int64_t i = 0; i < 5 * 8; ++i) {
        const int64_t t = i / 8, head = i % 8;
        const float* in = c.qkv.data() + t * width + head * d;
        const float* got = out.data() + t * width + head * d;
        if (head >= 6) {  // values
          EXPECT_TRUE(std::equal(in, in + d, got));
          continue;
        }
        const float* weight = !norm ? nullptr : head < 4 ? c.q_norm.data() : c.k_norm.data();
        QkNormRopeReference(in, d, weight, kNormEps, c.inv_freq.data(), c.positions[t],
                            expected.data());
        const double size = MaxAbs(expected) * 1.5 + 0.5;
        for (int64_t j = 0; j < d; ++j) {
          ASSERT_NEAR(got[j], expected[j], static_cast<double>(d + 16) * kFloatEps * size);
          // Two roundings in the norm, of both terms of the rotation, and one at the end.
          const float half = rounded[t * width + head * d + j];
          ASSERT_NEAR(half, expected[j], (norm ? 6.0 : 1.1) * kBFloat16Eps * size);
        }
      }
      std::vector<float> in_place = c.qkv;
      c.args.rounding = Rounding::kNone;
      QkNormRope(View(in_place, 5, width), c.args, View(in_place, 5, width));
      EXPECT_EQ(in_place, out);
    }
  }
}

TEST(QkNormRopeTest, GradientIsTheSlope) {
  Random random(11);
  for (const bool norm : {false, true}) {
    constexpr int64_t kD = 6;
    RopeCase c = MakeRope(&random, kD, norm, {0, 3, 700});
    c.args.positions = c.positions;
    const int64_t width = c.heads.qkv_width();
    std::vector<float> dout = random.Floats(3 * width), grad = dout, dq(kD), dk(kD);
    QkNormRopeGrad(View(c.qkv, 3, width), c.args, View(grad, 3, width), norm ? dq.data() : nullptr,
                   norm ? dk.data() : nullptr);
    const auto loss = [&](const std::vector<double>& x, const std::vector<double>& qn,
                          const std::vector<double>& kn) {
      double sum = 0;
      for (int64_t i = 0; i < 3 * 8; ++i) {
        const int64_t at = i / 8 * width + i % 8 * kD;
        double squares = 0;
        for (int64_t j = 0; j < kD; ++j) squares += x[at + j] * x[at + j];
        const bool rotates = i % 8 < 6;
        const double r = rotates && norm ? 1 / std::sqrt(squares / kD + kNormEps) : 1;
        std::vector<double> u(kD);
        for (int64_t j = 0; j < kD; ++j) {
          const double w = !(rotates && norm) ? 1 : i % 8 < 4 ? qn[j] : kn[j];
          u[j] = w * x[at + j] * r;
        }
        for (int64_t j = 0; j < kD / 2 && rotates; ++j) {
          const double angle = static_cast<float>(c.positions[i / 8]) * c.inv_freq[j];
          const double a = u[j], b = u[j + kD / 2];
          u[j] = a * std::cos(angle) - b * std::sin(angle);
          u[j + kD / 2] = b * std::cos(angle) + a * std::sin(angle);
        }
        for (int64_t j = 0; j < kD; ++j) sum += dout[at + j] * u[j];
      }
      return sum;
    };
    const std::vector<double> x(c.qkv.begin(), c.qkv.end()), qn(c.q_norm.begin(), c.q_norm.end()),
        kn(c.k_norm.begin(), c.k_norm.end());
    const auto by_x = Slopes([&](const auto& v) { return loss(v, qn, kn); }, c.qkv);
    const double tolerance = 64 * kFloatEps * (1 + MaxAbs(by_x)) + 100 * kSlopeError;
    for (size_t i = 0; i < grad.size(); ++i) EXPECT_NEAR(grad[i], by_x[i], tolerance);
    if (!norm) continue;
    const auto by_q = Slopes([&](const auto& v) { return loss(x, v, kn); }, c.q_norm);
    const auto by_k = Slopes([&](const auto& v) { return loss(x, qn, v); }, c.k_norm);
    for (int64_t j = 0; j < kD; ++j) {
      EXPECT_NEAR(dq[j], by_q[j], 64 * kFloatEps * 12 * 2 + 100 * kSlopeError);
      EXPECT_NEAR(dk[j], by_k[j], 64 * kFloatEps * 12 * 2 + 100 * kSlopeError);
    }
  }
}

TEST(BFloat16Test, RoundsToNearestEven) {
  EXPECT_EQ(RoundToBFloat16(1 + 0x1p-8f), 1.0f);         // a tie, to even
  EXPECT_EQ(RoundToBFloat16(1 + 0x3p-8f), 1 + 0x1p-6f);  // a tie, up to even
  EXPECT_EQ(RoundToBFloat16(1 + 0x1.01p-8f), 1 + 0x1p-7f);
  EXPECT_TRUE(std::isnan(RoundToBFloat16(std::nanf("1"))));
  EXPECT_TRUE(std::isinf(RoundToBFloat16(std::numeric_limits<float>::max())));
  EXPECT_EQ(RoundToBFloat16(-0.0f), 0.0f);
}

}  // namespace
}  // namespace orrery::kernels
