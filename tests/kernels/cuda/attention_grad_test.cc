// Attention's gradient on a GPU: against double, with prefixes shared and lengths of all kinds.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/attention/attention_grad_cuda.h"
#include "tests/kernels/cuda/device_array.h"

namespace orrery::kernels::cuda {
namespace {

// A packed batch: families of a beginning and sequences that continue it.
struct Family {
  int64_t prefix = 0;            // rows of the first span
  std::vector<int64_t> lengths;  // of those that continue it
  int64_t shared = -1;           // rows of it that they share; -1: all
};

std::vector<SequenceSpan> SpansOf(const std::vector<Family>& families) {
  std::vector<SequenceSpan> spans;
  int64_t row = 0;
  const auto add = [&](int64_t rows, int64_t first_position, int64_t prefix_row) {
    SequenceSpan span;
    span.first_row = row;
    span.num_rows = rows;
    span.first_position = first_position;
    span.prefix_first_row = prefix_row;
    spans.push_back(span);
    row += rows;
  };
  for (const Family& family : families) {
    const int64_t prefix_row = row;
    add(family.prefix, 0, -1);
    const int64_t shared = family.shared < 0 ? family.prefix : family.shared;
    for (const int64_t length : family.lengths) add(length, shared, prefix_row);
  }
  return spans;
}

// Values and the largest errors that they may have.
struct Bounded {
  std::vector<double> value, error;
  explicit Bounded(int64_t n) : value(n), error(n) {}
  void Add(int64_t i, double v, double e) {
    value[i] += v;
    error[i] += e;
  }
};

// The gradient in double, with `out` as the kernel gets it.
struct Reference {
  Reference(DType dtype, const HeadShape& heads, float scale,
            const std::vector<SequenceSpan>& spans, const std::vector<float>& qkv,
            const std::vector<float>& dout)
      : heads(heads), scale(scale), eps(Eps(dtype)), qkv(qkv), dout(dout) {
    rows = static_cast<int64_t>(qkv.size()) / heads.qkv_width();
    out.resize(rows * heads.q_width());
    for (const SequenceSpan& s : spans) {
      for (int64_t i = 0; i < s.num_rows; ++i) {
        for (int64_t h = 0; h < heads.num_heads; ++h) Forward(s, i, h, dtype);
      }
    }
  }
  const float* Query(int64_t row, int64_t head) const {
    return qkv.data() + row * heads.qkv_width() + head * heads.head_dim;
  }
  const float* Key(int64_t row, int64_t head) const {
    return Query(row, heads.num_heads + head / heads.group());
  }
  const float* Value(int64_t row, int64_t head) const { return Key(row, head) + heads.kv_width(); }
  static std::vector<int64_t> KeyRows(const SequenceSpan& s, int64_t i) {
    std::vector<int64_t> keys;
    for (int64_t p = 0; p < s.first_position; ++p) keys.push_back(s.prefix_first_row + p);
    for (int64_t p = 0; p <= i; ++p) keys.push_back(s.first_row + p);
    return keys;
  }
  struct Sum {
    double value = 0, size = 0;
  };
  Sum Dot(const float* a, const float* b) const {
    Sum sum;
    for (int64_t i = 0; i < heads.head_dim; ++i) {
      const double term = static_cast<double>(a[i]) * b[i];
      sum.value += term;
      sum.size += std::abs(term);
    }
    return sum;
  }
  std::vector<double> Probabilities(const std::vector<int64_t>& keys, int64_t row, int64_t head,
                                    double* score_size) const {
    std::vector<double> p;
    *score_size = 0;
    for (const int64_t key : keys) {
      const Sum s = Dot(Query(row, head), Key(key, head));
      p.push_back(s.value * scale);
      *score_size = std::max(*score_size, s.size * scale);
    }
    const double top = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& x : p) sum += x = std::exp(x - top);
    for (double& x : p) x /= sum;
    return p;
  }
  void Forward(const SequenceSpan& s, int64_t i, int64_t head, DType dtype) {
    const int64_t row = s.first_row + i, d = heads.head_dim;
    const std::vector<int64_t> keys = KeyRows(s, i);
    double size;
    const std::vector<double> p = Probabilities(keys, row, head, &size);
    for (int64_t c = 0; c < d; ++c) {
      double sum = 0;
      for (size_t j = 0; j < keys.size(); ++j) sum += p[j] * Value(keys[j], head)[c];
      out[row * heads.q_width() + head * d + c] = Rounded(dtype, static_cast<float>(sum));
    }
  }
  // One query's share of all gradients.
  void Backward(const SequenceSpan& s, int64_t i, int64_t head, Bounded* dqkv) const {
    const int64_t row = s.first_row + i, d = heads.head_dim, width = heads.qkv_width();
    const std::vector<int64_t> keys = KeyRows(s, i);
    double score_size;
    const std::vector<double> p = Probabilities(keys, row, head, &score_size);
    const float* grad = dout.data() + row * heads.q_width() + head * d;
    const Sum delta = Dot(grad, out.data() + row * heads.q_width() + head * d);
    const double sum_eps = 2 * static_cast<double>(d + 1) * kFloatEps;
    // A score's error is a probability's relative one, and that of the sum it is divided by;
    // online, a maximum's change is one more rounding a key. Then the rounding for the product.
    const double p_error = 2 * (sum_eps * score_size + 16 * kFloatEps * (1 + score_size)) +
                           static_cast<double>(keys.size()) * kFloatEps + eps;
    // Errors of sums of up to so many terms.
    const double long_sum = 2 * static_cast<double>(rows * heads.group() + 1) * kFloatEps;
    for (size_t j = 0; j < keys.size(); ++j) {
      const Sum dp = Dot(grad, Value(keys[j], head));
      const double ds = p[j] * (dp.value - delta.value) * scale;
      const double ds_error = std::abs(ds) * (p_error + eps + long_sum) +
                              1.1 * p[j] * scale * sum_eps * (dp.size + delta.size);
      const int64_t q_at = row * width + head * d;
      const int64_t k_at = Key(keys[j], head) - qkv.data(),
                    v_at = Value(keys[j], head) - qkv.data();
      for (int64_t c = 0; c < d; ++c) {
        const double k = Key(keys[j], head)[c], q = Query(row, head)[c], g = grad[c];
        dqkv->Add(q_at + c, ds * k, ds_error * std::abs(k));
        dqkv->Add(k_at + c, ds * q, ds_error * std::abs(q));
        dqkv->Add(v_at + c, p[j] * g, p[j] * std::abs(g) * (p_error + long_sum));
      }
    }
  }
  Bounded Gradient(const std::vector<SequenceSpan>& spans) const {
    Bounded dqkv(static_cast<int64_t>(qkv.size()));
    for (const SequenceSpan& s : spans) {
      for (int64_t i = 0; i < s.num_rows; ++i) {
        for (int64_t h = 0; h < heads.num_heads; ++h) Backward(s, i, h, &dqkv);
      }
    }
    return dqkv;
  }

  HeadShape heads;
  double scale, eps;
  std::vector<float> qkv, dout, out;
  int64_t rows;
};

struct Case {
  DType dtype;
  HeadShape heads;
  std::vector<Family> families;
};

class CudaAttentionGradTest : public CudaTest {
 protected:
  std::vector<float> Run(const Case& c, const std::vector<SequenceSpan>& spans, float scale,
                         const Reference& r, int64_t extra_rows) {
    const int64_t rows = r.rows + extra_rows;
    const auto padded = [&](std::vector<float> x, int64_t width) {
      x.resize(rows * width, 1.0f);
      return x;
    };
    const int64_t q_width = c.heads.q_width(), width = c.heads.qkv_width();
    const DeviceMatrix qkv(c.dtype, padded(r.qkv, width), rows, width, 8);
    const DeviceMatrix out(c.dtype, padded(r.out, q_width), rows, q_width, 16);
    const DeviceMatrix dout(c.dtype, padded(r.dout, q_width), rows, q_width, 8);
    const DeviceMatrix dqkv(c.dtype, rows, width, 24);
    const AttentionGradPlan plan = PlanAttentionGrad(spans, c.heads, c.dtype, limits_);
    const DeviceArray<int32_t> words(plan.Words());
    const DeviceArray<uint8_t> workspace(plan.workspace_bytes);
    AttentionGrad(dout.view(), qkv.view(), out.view(), c.heads, scale, plan, words.get(),
                  workspace.get(), dqkv.view(), nullptr);
    CUDA_CHECK(cudaDeviceSynchronize());
    EXPECT_TRUE(dqkv.GapsUntouched());
    std::vector<float> got = dqkv.Download();
    for (int64_t i = r.rows * width; i < rows * width; ++i) EXPECT_TRUE(std::isnan(got[i]));
    got.resize(r.rows * width);
    return got;
  }
};

const std::vector<Family> kMixed = {{1, {}},       {70, {30, 1, 65, 128}}, {64, {}}, {5, {3}},
                                    {129, {1, 2}}, {70, {20, 9}, 33},      {37, {}}};

TEST_F(CudaAttentionGradTest, EqualsDouble) {
  const std::vector<Case> cases = {
      {DType::kBFloat16, {9, 3, 64}, kMixed},                                // SmolLM2-135M
      {DType::kBFloat16, {9, 3, 64}, {{100, {200, 150, 301}}, {64, {64}}}},  //
      {DType::kBFloat16, {16, 8, 128}, {{300, {}}, {129, {77, 40}}}},        // Qwen3-1.7B
      {DType::kBFloat16, {4, 2, 128}, kMixed},
      {DType::kBFloat16, {4, 1, 128}, {{150, {300, 1, 260}}, {20, {}}}},  // keys shared by tiles
      {DType::kBFloat16, {12, 4, 64}, {{100, {90, 90, 90, 90, 90, 90, 90, 90}}, {70, {}}}},
      {DType::kBFloat16, {16, 2, 128}, {{90, {70, 33}}, {1, {1, 1}}}},  // group of Qwen3-30B-A3B
      {DType::kBFloat16, {16, 1, 64}, {{40, {33, 100}}}},
      {DType::kBFloat16, {5, 1, 128}, kMixed},
      {DType::kBFloat16, {3, 3, 128}, kMixed},
      {DType::kBFloat16, {2, 2, 64}, {{700, {}}}},
      {DType::kBFloat16, {4, 2, 80}, {{40, {20, 1}}}},
      {DType::kBFloat16, {17, 1, 64}, {{20, {5}}}},
      {DType::kFloat32, {9, 3, 64}, {{40, {20, 1, 60}}, {33, {}}}},
      {DType::kFloat32, {4, 1, 256}, {{20, {20, 1}}}},
      {DType::kFloat32, {3, 1, 6}, kMixed},
  };
  Random random(1);
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message() << c.heads.num_heads << "/" << c.heads.num_kv_heads << " d "
                                    << c.heads.head_dim << " " << static_cast<int>(c.dtype));
    const std::vector<SequenceSpan> spans = SpansOf(c.families);
    const int64_t rows = spans.back().first_row + spans.back().num_rows;
    const float scale = 1 / std::sqrt(static_cast<float>(c.heads.head_dim));
    const Reference reference(c.dtype, c.heads, scale, spans,
                              Rounded(c.dtype, random.Floats(rows * c.heads.qkv_width(), 2)),

                              Rounded(c.dtype, random.Floats(rows * c.heads.q_width())));
    const std::vector<float> got = Run(c, spans, scale, reference, 3);
    const Bounded expected = reference.Gradient(spans);
    double error2 = 0, size2 = 0, worst = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double error = std::abs(got[i] - expected.value[i]);
      const double bound =
          expected.error[i] + Eps(c.dtype) * (std::abs(expected.value[i]) + expected.error[i]);
      ASSERT_LE(error, bound) << "row " << i / c.heads.qkv_width() << " column "
                              << i % c.heads.qkv_width() << ": " << got[i] << ", not "
                              << expected.value[i];
      error2 += error * error;
      size2 += expected.value[i] * expected.value[i];
      if (bound > 0) worst = std::max(worst, error / bound);
    }
    // Rounding errors have signs: all in all they are about one rounding of P, dS and the result.
    EXPECT_LE(std::sqrt(error2 / size2), 4 * Eps(c.dtype) + 1e-5) << "worst " << worst;
    const std::vector<float> again = Run(c, spans, scale, reference, 0);
    EXPECT_EQ(std::memcmp(got.data(), again.data(), got.size() * sizeof(float)), 0);
  }
}

TEST_F(CudaAttentionGradTest, NothingToDo) {
  const AttentionGradPlan plan = PlanAttentionGrad({}, {4, 2, 128}, DType::kBFloat16, limits_);
  const DeviceMatrix qkv(DType::kBFloat16, 0, 8 * 128), out(DType::kBFloat16, 0, 4 * 128);
  AttentionGrad(out.view(), qkv.view(), out.view(), {4, 2, 128}, 1, plan, nullptr, nullptr,
                qkv.view(), nullptr);
  CUDA_CHECK(cudaDeviceSynchronize());
}

}  // namespace
}  // namespace orrery::kernels::cuda
