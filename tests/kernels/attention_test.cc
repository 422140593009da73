#include "kernels/attention/attention.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "kernels/cpu/thread_pool.h"
#include "tests/kernels/random_data.h"

namespace orrery::kernels {
namespace {

// Keys and values of one layer, everything NaN that was not written: nobody may read it.
struct Cache {
  Cache(const HeadShape& heads, int64_t blocks) {
    const size_t n = static_cast<size_t>(KvBlocks::NumElements(heads, blocks));
    k.assign(n, std::numeric_limits<float>::quiet_NaN());
    v = k;
    view = {k.data(), v.data(), blocks};
  }
  std::vector<float> k, v;
  KvBlocks view;
};

struct Sequence {
  HeadShape heads;
  int64_t n;
  std::vector<float> qkv;
  std::vector<int32_t> blocks;

  std::vector<int32_t> Slots(int64_t first, int64_t count) const {
    std::vector<int32_t> slots;
    for (int64_t p = first; p < first + count; ++p) {
      slots.push_back(blocks[p / kBlockTokens] * 16 + static_cast<int32_t>(p % kBlockTokens));
    }
    return slots;
  }
  // Attention of positions [first, first + count), after their keys and values were written.
  std::vector<float> Run(int64_t first, int64_t count, Cache* cache, Rounding rounding) {
    const TensorView rows = View(qkv, n, heads.qkv_width()).Rows(first, count);
    WriteKv(rows, heads, Slots(first, count), cache->view);
    std::vector<float> out(count * heads.q_width());
    SequenceSpan span;
    span.num_rows = count;
    span.first_position = first;
    span.blocks = blocks;
    Attention(rows, heads, 0.3f, {&span, 1}, cache->view, rounding,
              View(out, count, heads.q_width()));
    return out;
  }
};

Sequence MakeSequence(Random* random, const HeadShape& heads, int64_t n, int64_t num_blocks) {
  Sequence s{heads, n, random->Floats(n * heads.qkv_width(), 2), {}};
  s.blocks.resize(static_cast<size_t>(num_blocks));
  std::iota(s.blocks.begin(), s.blocks.end(), 0);
  for (size_t i = s.blocks.size() - 1; i > 0; --i) {
    std::swap(s.blocks[i], s.blocks[random->Pick(0, static_cast<int64_t>(i))]);
  }
  return s;
}

constexpr HeadShape kShapes[] = {{4, 2, 8},  {2, 2, 6},  {6, 1, 32},
                                 {3, 3, 64}, {5, 5, 34}, {7, 1, 2}};

TEST(AttentionTest, EqualsDoubleReference) {
  Random random(1);
  for (const HeadShape& heads : kShapes) {
    for (const int64_t n : {1, 15, 16, 17, 70}) {
      Sequence s = MakeSequence(&random, heads, n, 6);
      Cache cache(heads, 6), again(heads, 6);
      const std::vector<float> out = s.Run(0, n, &cache, Rounding::kNone);
      const std::vector<float> rounded = s.Run(0, n, &again, Rounding::kBFloat16);
      const int64_t d = heads.head_dim, width = heads.qkv_width();
      std::vector<double> expected(d);
      for (int64_t t = 0; t < n; ++t) {
        for (int64_t h = 0; h < heads.num_heads; ++h) {
          const float* q = s.qkv.data() + t * width + h * d;
          const float* k = s.qkv.data() + heads.q_width() + h / heads.group() * d;
          AttentionReference(q, k, k + heads.kv_width(), t + 1, d, width, 0.3f, expected.data());
          double score = 0;
          for (int64_t j = 0; j <= t; ++j) {
            double sum = 0;
            for (int64_t i = 0; i < d; ++i) sum += std::abs(q[i] * k[j * width + i]) * 0.3;
            score = std::max(score, sum);
          }
          // Errors of a score become relative errors of probabilities; values are at most 2.
          const double tolerance =
              2 * kFloatEps *
              (2 * static_cast<double>(d + 4) * score + 2 * static_cast<double>(t + 17) + 16);
          for (int64_t i = 0; i < d; ++i) {
            const int64_t at = (t * heads.num_heads + h) * d + i;
            ASSERT_NEAR(out[at], expected[i], tolerance);
            ASSERT_EQ(rounded[at], RoundToBFloat16(out[at]));
          }
        }
      }
    }
  }
}

TEST(AttentionTest, DecodePrefillAndChunksAreBitwiseEqual) {
  Random random(2);
  for (const HeadShape& heads : kShapes) {
    constexpr int64_t kN = 67;
    Sequence s = MakeSequence(&random, heads, kN, 7);
    Cache whole(heads, 7);
    const std::vector<float> expected = s.Run(0, kN, &whole, Rounding::kNone);
    for (const int64_t chunk : {1, 2, 3, 7, 16, 33}) {
      Cache cache(heads, 7);
      std::vector<float> got;
      for (int64_t first = 0; first < kN; first += chunk) {
        const auto part = s.Run(first, std::min(chunk, kN - first), &cache, Rounding::kNone);
        got.insert(got.end(), part.begin(), part.end());
      }
      EXPECT_EQ(got, expected) << "chunks of " << chunk << ", head size " << heads.head_dim;
    }
    SetNumThreads(3);
    Cache cache(heads, 7);
    EXPECT_EQ(s.Run(0, kN, &cache, Rounding::kNone), expected);
    SetNumThreads(0);
  }
}

TEST(AttentionTest, ACopiedTailIsTheSamePrompt) {
  Random random(3);
  const HeadShape heads{4, 2, 16};
  constexpr int64_t kPrompt = 21, kN = 40;
  Sequence s = MakeSequence(&random, heads, kN, 4);
  Cache whole(heads, 8), shared(heads, 8);
  const std::vector<float> expected = s.Run(0, kN, &whole, Rounding::kNone);
  s.Run(0, kPrompt, &shared, Rounding::kNone);
  const KvCopy copy{s.blocks[1], 6, kPrompt - 16};
  CopyKv({&copy, 1}, heads, shared.view);
  s.blocks[1] = 6;
  s.blocks[2] = 7;
  const auto rest = s.Run(kPrompt, kN - kPrompt, &shared, Rounding::kNone);
  EXPECT_TRUE(std::equal(rest.begin(), rest.end(), expected.begin() + kPrompt * heads.q_width()));
}

// Two sequences that share a prompt of 5 rows, and one of its own.
std::vector<SequenceSpan> SharedSpans() {
  std::vector<SequenceSpan> spans(4);
  spans[0].num_rows = 5;
  spans[1] = {5, 3, 5, {}, 0};
  spans[2] = {8, 2, 5, {}, 0};
  spans[3] = {10, 4, 0, {}, -1};
  return spans;
}

double AttentionLoss(const std::vector<double>& qkv, const HeadShape& heads, double scale,
                     const std::vector<float>& dout, std::vector<double>* out) {
  const int64_t d = heads.head_dim, width = heads.qkv_width();
  double loss = 0;
  for (const SequenceSpan& s : SharedSpans()) {
    for (int64_t r = 0; r < s.num_rows; ++r) {
      const int64_t t = s.first_row + r, n = s.first_position + r + 1;
      for (int64_t h = 0; h < heads.num_heads; ++h) {
        const int64_t key = heads.q_width() + h / heads.group() * d;
        const auto row = [&](int64_t p) {
          return (p < s.first_position ? s.prefix_first_row + p
                                       : s.first_row + p - s.first_position) *
                 width;
        };
        std::vector<double> p(n);
        double sum = 0;
        for (int64_t j = 0; j < n; ++j) {
          double dot = 0;
          for (int64_t i = 0; i < d; ++i) dot += qkv[t * width + h * d + i] * qkv[row(j) + key + i];
          sum += p[j] = std::exp(dot * scale);
        }
        for (int64_t i = 0; i < d; ++i) {
          double value = 0;
          for (int64_t j = 0; j < n; ++j) {
            value += p[j] / sum * qkv[row(j) + key + heads.kv_width() + i];
          }
          const int64_t at = t * heads.q_width() + h * d + i;
          if (out != nullptr) (*out)[at] = value;
          loss += dout[at] * value;
        }
      }
    }
  }
  return loss;
}

TEST(AttentionTest, GradientIsTheSlopeThroughASharedPrompt) {
  Random random(4);
  for (const HeadShape& heads : {HeadShape{4, 2, 4}, HeadShape{3, 1, 2}}) {
    constexpr int64_t kT = 14;
    std::vector<float> qkv = random.Floats(kT * heads.qkv_width());
    std::vector<float> dout = random.Floats(kT * heads.q_width()), grad(qkv.size(), 9.0f);
    std::vector<double> exact(dout.size());
    AttentionLoss({qkv.begin(), qkv.end()}, heads, 0.5, dout, &exact);
    std::vector<float> out(exact.begin(), exact.end());
    const auto spans = SharedSpans();
    AttentionGrad(View(dout, kT, heads.q_width()), View(qkv, kT, heads.qkv_width()),
                  View(out, kT, heads.q_width()), heads, 0.5f, spans,
                  View(grad, kT, heads.qkv_width()));
    const auto slopes =
        Slopes([&](const auto& x) { return AttentionLoss(x, heads, 0.5, dout, nullptr); }, qkv);
    // All operands are below 1; a key's gradient sums over at most 10 rows of each of `group`
    // heads.
    const double terms = static_cast<double>(10 * heads.group() + heads.head_dim + 16);
    for (size_t i = 0; i < grad.size(); ++i) {
      ASSERT_NEAR(grad[i], slopes[i], 4 * terms * kFloatEps + 10 * kSlopeError) << i;
    }
    std::vector<float> threaded(grad.size());
    SetNumThreads(3);
    AttentionGrad(View(dout, kT, heads.q_width()), View(qkv, kT, heads.qkv_width()),
                  View(out, kT, heads.q_width()), heads, 0.5f, spans,
                  View(threaded, kT, heads.qkv_width()));
    SetNumThreads(0);
    EXPECT_EQ(threaded, grad);
  }
}

}  // namespace
}  // namespace orrery::kernels
