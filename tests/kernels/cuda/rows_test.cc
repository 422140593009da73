// Embedding, norm, rotation and the paged cache on a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "kernels/embedding/embedding_cuda.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rms_norm/rms_norm_cuda.h"
#include "kernels/rope/qk_norm_rope_cuda.h"
#include "tests/kernels/cuda/device_array.h"

namespace orrery::kernels::cuda {
namespace {

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16};
constexpr float kNormEps = 1e-6f;

class CudaEmbeddingTest : public CudaTest {};
class CudaRmsNormTest : public CudaTest {};
class CudaRopeTest : public CudaTest {};

TEST_F(CudaEmbeddingTest, TakesRowsOfIdsAndOfTokensOfTheStepBefore) {
  Random random(1);
  constexpr int64_t kVocabulary = 50;
  const std::vector<int32_t> ids = {3, 0, 49, -1, 50, 1 << 30, 7, -3, -2}, previous = {4, 60, 22};
  const int64_t rows = static_cast<int64_t>(ids.size());
  for (const DType dtype : kDTypes) {
    for (const int64_t d : {1, 7, 64, 100, 2048, 5001}) {
      for (const int64_t gap : {0, 3, 8}) {
        const std::vector<float> table = Rounded(dtype, random.Floats(kVocabulary * d));
        const DeviceMatrix device(dtype, table, kVocabulary, d, gap, gap % 2);
        DeviceMatrix out(dtype, rows, d, gap);
        const DeviceArray<int32_t> device_ids(ids), device_previous(previous);
        Embedding(device.view(), device_ids.get(), device_previous.get(), out.view(), nullptr);
        const std::vector<float> got = out.Download();
        for (int64_t t = 0; t < rows; ++t) {
          int64_t id = ids[t] < 0 ? previous[-1 - ids[t]] : ids[t];
          if (id >= kVocabulary) id = 0;
          ASSERT_TRUE(
              std::equal(got.begin() + t * d, got.begin() + (t + 1) * d, table.begin() + id * d))
              << d << ", row " << t;
        }
        EXPECT_TRUE(out.GapsUntouched());
      }
    }
  }
}

// What goes into a norm, on the host.
struct NormCase {
  NormCase(Random* random, DType dtype, int64_t rows, int64_t d, int64_t top_k)
      : dtype(dtype), rows(rows), d(d), top_k(top_k) {
    x = Rounded(dtype, random->Floats(rows * d, 2));
    delta = Rounded(dtype, random->Floats(rows * std::max<int64_t>(top_k, 1) * d));
    w = Rounded(dtype, random->Floats(d, 1.5));
    weights = random->Floats(rows * top_k);
    for (int64_t i = 0; i < rows * top_k; ++i) {
      experts.push_back(random->Pick(0, 5) == 0 ? -1 : static_cast<int32_t>(random->Pick(0, 90)));
    }
  }
  // round(x + delta), by the definition: bitwise what the kernel must write.
  std::vector<float> Sum(bool with_delta) const {
    std::vector<float> sum = x;
    if (!with_delta) return sum;
    for (int64_t i = 0; i < rows * d; ++i) {
      float add = top_k == 0 ? delta[i] : 0;
      for (int64_t s = 0; s < top_k; ++s) {
        const int64_t slot = i / d * top_k + s;
        if (experts[slot] >= 0) add += weights[slot] * delta[slot * d + i % d];
      }
      sum[i] = Rounded(dtype, x[i] + Rounded(dtype, add));
    }
    return sum;
  }
  void ExpectNormed(const std::vector<float>& sum, const std::vector<float>& out) const {
    std::vector<double> expected(d);
    for (int64_t t = 0; t < rows; ++t) {
      RmsNormReference(sum.data() + t * d, d, w.data(), kNormEps, expected.data());
      for (int64_t i = 0; i < d; ++i) {
        // The sum of d squares halves in the root; then two products are rounded.
        const double tolerance =
            (static_cast<double>(d + 8) * kFloatEps + 2.1 * Eps(dtype)) * std::abs(expected[i]);
        ASSERT_NEAR(out[t * d + i], expected[i], tolerance) << "row " << t << " of " << d;
      }
    }
  }
  DType dtype;
  int64_t rows, d, top_k;
  std::vector<float> x, delta, w, weights;
  std::vector<int32_t> experts;
};

// A case on the device.
struct NormRun {
  NormRun(const NormCase& c, int64_t gap, int64_t offset)
      : x(c.dtype, c.x, c.rows, c.d, gap, offset),
        delta(c.dtype, c.delta, c.rows * std::max<int64_t>(c.top_k, 1), c.d, gap, offset),
        w(c.dtype, c.w, 1, c.d),
        sum(c.dtype, c.rows, c.d, gap, offset),
        out(c.dtype, c.rows, c.d, gap, offset),
        weights(c.weights),
        experts(c.experts),
        args{delta.view(), nullptr, nullptr, 0} {
    if (c.top_k > 0) args = {delta.view(), weights.get(), experts.get(), c.top_k};
  }
  DeviceMatrix x, delta, w, sum, out;
  DeviceArray<float> weights;
  DeviceArray<int32_t> experts;
  Delta args;
};

TEST_F(CudaRmsNormTest, EqualsReferenceWithAndWithoutDelta) {
  Random random(2);
  for (const DType dtype : kDTypes) {
    for (const int64_t d : {1, 2, 7, 64, 100, 576, 2048, 5000, 8192, 16384}) {
      for (const int64_t top_k : {0, 1, 3, 8}) {
        const NormCase c(&random, dtype, d > 4000 ? 3 : 37, d, top_k);
        const std::vector<float> sum = c.Sum(true);
        NormRun run(c, 0, 0);
        AddRmsNorm(run.x.view(), run.args, run.w.view(), kNormEps, run.sum.view(), run.out.view(),
                   nullptr);
        ASSERT_EQ(run.sum.Download(), sum) << d << " with top_k " << top_k;
        const std::vector<float> out = run.out.Download();
        c.ExpectNormed(sum, out);
        EXPECT_EQ(run.x.Download(), c.x);

        // Rows that cannot be read in vectors, in place: the same bits.
        NormRun odd(c, 3, 1);
        AddRmsNorm(odd.x.view(), odd.args, odd.w.view(), kNormEps, odd.x.view(), odd.out.view(),
                   nullptr);
        EXPECT_EQ(odd.x.Download(), sum);
        EXPECT_EQ(odd.out.Download(), out) << d;
        EXPECT_TRUE(odd.x.GapsUntouched() && odd.out.GapsUntouched());
      }
      const NormCase c(&random, dtype, 5, d, 0);
      NormRun run(c, 8, 0);
      AddRmsNorm(run.x.view(), {}, run.w.view(), kNormEps, run.sum.view(), run.out.view(), nullptr);
      c.ExpectNormed(c.x, run.out.Download());
      for (const float x : run.sum.Download()) ASSERT_TRUE(std::isnan(x));  // not written
    }
  }
}

TEST_F(CudaRmsNormTest, GatheredRowsHaveTheSameBits) {
  Random random(3);
  const std::vector<int32_t> rows = {4, 0, -1, 11, 4};
  for (const DType dtype : kDTypes) {
    for (const int64_t top_k : {0, 8}) {
      const NormCase c(&random, dtype, 12, 576, top_k);
      NormRun run(c, 0, 0);
      AddRmsNorm(run.x.view(), run.args, run.w.view(), kNormEps, run.sum.view(), run.out.view(),
                 nullptr);
      const DeviceArray<int32_t> device_rows(rows);
      DeviceMatrix out(dtype, 5, c.d);
      AddRmsNormGathered(run.x.view(), run.args, device_rows.get(), run.w.view(), kNormEps,
                         out.view(), nullptr);
      const std::vector<float> whole = run.out.Download(), got = out.Download();
      for (int64_t i = 0; i < 5 * c.d; ++i) {
        const int64_t row = rows[i / c.d];
        ASSERT_TRUE(std::isfinite(got[i]));
        if (row < 0) continue;
        ASSERT_EQ(got[i], whole[row * c.d + i % c.d]);
      }
    }
  }
}

struct RopeCase {
  RopeCase(Random* random, DType dtype, const HeadShape& heads, bool norm)
      : dtype(dtype), heads(heads), norm(norm) {
    const int64_t d = heads.head_dim;
    for (int64_t j = 0; j < d / 2; ++j) {
      inv_freq.push_back(static_cast<float>(std::pow(1e4, -2.0 * j / d)));
    }
    positions = {0, 17, -1, 999, 3, -1, 500};
    qkv = Rounded(dtype, random->Floats(rows() * heads.qkv_width(), 2));
    q_norm = Rounded(dtype, random->Floats(d, 1.5));
    k_norm = Rounded(dtype, random->Floats(d, 1.5));
    for (int64_t i = 0; i < rows(); ++i) slots.push_back(static_cast<int32_t>(i * 9 + 5));
  }
  int64_t rows() const { return static_cast<int64_t>(positions.size()); }
  DType dtype;
  HeadShape heads;
  bool norm;
  std::vector<float> inv_freq, qkv, q_norm, k_norm;
  std::vector<int32_t> positions, slots;
};

constexpr int64_t kBlocks = 5, kTablePositions = 1000;

void ExpectRotated(const RopeCase& c, int64_t t, int64_t head, const std::vector<float>& got) {
  const int64_t d = c.heads.head_dim;
  const float* in = c.qkv.data() + t * c.heads.qkv_width() + head * d;
  const std::vector<float>& w = head < c.heads.num_heads ? c.q_norm : c.k_norm;
  std::vector<double> expected(d);
  QkNormRopeReference(in, d, c.norm ? w.data() : nullptr, kNormEps, c.inv_freq.data(),
                      c.positions[t], expected.data());
  const double size = MaxAbs(expected) * 1.5 + 0.5;
  // As in the test of the CPU's: two roundings in the norm, of both terms, and one at the end.
  const double tolerance = c.dtype == DType::kFloat32
                               ? static_cast<double>(d + 16) * kFloatEps * size
                               : (c.norm ? 6.0 : 1.1) * kBFloat16Eps * size;
  for (int64_t j = 0; j < d; ++j) ASSERT_NEAR(got[j], expected[j], tolerance) << d;
}

// Rotated queries, keys and values.
std::vector<std::vector<float>> CheckRope(const RopeCase& c, int64_t gap) {
  const HeadShape& s = c.heads;
  const int64_t d = s.head_dim, width = s.qkv_width();
  const RopeTable table(c.inv_freq, kTablePositions);
  std::vector<float> rope;
  for (int64_t p = 0; p < kTablePositions; ++p) {
    rope.insert(rope.end(), table.Row(p), table.Row(p) + d);
  }
  const DeviceArray<float> device_rope(rope);
  const DeviceArray<int32_t> positions(c.positions), slots(c.slots);
  DeviceMatrix qkv(c.dtype, c.qkv, c.rows(), width, gap);
  const DeviceMatrix q_norm(c.dtype, c.q_norm, 1, d), k_norm(c.dtype, c.k_norm, 1, d);
  const DeviceMatrix k(c.dtype, 1, kBlocks * kBlockTokens * s.kv_width());
  const DeviceMatrix v(c.dtype, 1, kBlocks * kBlockTokens * s.kv_width());
  const KvBlocks kv{k.view().data, v.view().data, c.dtype, kBlocks, s.num_kv_heads, d};
  QkNormRopeArgs args;
  args.heads = s;
  if (c.norm) args.q_norm = q_norm.view(), args.k_norm = k_norm.view();
  args.eps = kNormEps;
  args.rope = device_rope.get();
  args.positions = positions.get();
  args.slots = slots.get();
  QkNormRopeWriteKv(qkv.view(), args, kv, nullptr);

  const std::vector<float> out = qkv.Download(), keys = k.Download(), values = v.Download();
  const auto cached = [&](const std::vector<float>& cache, int64_t slot, int64_t head) {
    std::vector<float> row(d);
    for (int64_t i = 0; i < d; ++i) {
      row[i] = cache[KvIndex(slot, head, i, s.num_kv_heads, d, kv.swizzled())];
    }
    return row;
  };
  for (int64_t t = 0; t < c.rows(); ++t) {
    const float* in = c.qkv.data() + t * width;
    if (c.positions[t] < 0) {
      EXPECT_TRUE(std::equal(in, in + width, out.begin() + t * width));
      for (const float x : cached(keys, c.slots[t], 0)) EXPECT_TRUE(std::isnan(x));
      continue;
    }
    for (int64_t h = 0; h < s.num_heads; ++h) {
      const auto first = out.begin() + t * width + h * d;
      ExpectRotated(c, t, h, {first, first + d});
    }
    for (int64_t h = 0; h < s.num_kv_heads; ++h) {
      ExpectRotated(c, t, s.num_heads + h, cached(keys, c.slots[t], h));
      const float* value = in + s.q_width() + s.kv_width() + h * d;
      EXPECT_EQ(cached(values, c.slots[t], h), std::vector<float>(value, value + d));
    }
  }
  // Every other slot is untouched.
  const int64_t written =
      std::count_if(c.positions.begin(), c.positions.end(), [](int32_t p) { return p >= 0; });
  for (const std::vector<float>* cache : {&keys, &values}) {
    const int64_t numbers =
        std::count_if(cache->begin(), cache->end(), [](float x) { return !std::isnan(x); });
    EXPECT_EQ(numbers, written * s.kv_width());
  }
  EXPECT_TRUE(qkv.GapsUntouched());
  return {out, keys, values};
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_F(CudaRopeTest, RotatesQueriesAndWritesTheCache) {
  Random random(4);
  for (const DType dtype : kDTypes) {
    for (const int64_t d : {2, 6, 16, 34, 64, 80, 128, 256}) {
      for (const bool norm : {false, true}) {
        for (const HeadShape& heads : {HeadShape{6, 2, d}, HeadShape{3, 3, d}}) {
          SCOPED_TRACE(testing::Message() << "d " << d << " norm " << norm);
          const RopeCase c(&random, dtype, heads, norm);
          const auto whole = CheckRope(c, 0);
          // Rows that cannot be read in vectors, nor in pairs: the same bits.
          for (const int64_t gap : {2, 5}) {
            const auto got = CheckRope(c, gap);
            for (int i = 0; i < 3; ++i) EXPECT_TRUE(SameBits(got[i], whole[i])) << gap;
          }
        }
      }
    }
  }
}

TEST_F(CudaRopeTest, CopiesTheBeginningsOfBlocks) {
  Random random(5);
  const std::vector<KvCopy> copies = {{0, 3, 5}, {1, 4, 16}, {0, 2, 1}};
  for (const DType dtype : kDTypes) {
    for (const int64_t d : {6, 64, 128}) {
      constexpr int64_t kHeads = 3;
      const int64_t piece = kBlockTokens * d, n = kBlocks * kHeads * piece;
      std::vector<float> keys = Rounded(dtype, random.Floats(n));
      std::vector<float> values = Rounded(dtype, random.Floats(n));
      const DeviceMatrix k(dtype, keys, 1, n), v(dtype, values, 1, n);
      const KvBlocks kv{k.view().data, v.view().data, dtype, kBlocks, kHeads, d};
      const DeviceArray<KvCopy> device(copies);
      CopyKv(device.get(), 3, kv, nullptr);
      for (const KvCopy& copy : copies) {
        for (int64_t h = 0; h < kHeads; ++h) {
          for (std::vector<float>* cache : {&keys, &values}) {
            const auto at = [&](int64_t block, int64_t j, int64_t i) -> float& {
              return (*cache)[KvIndex(block * kBlockTokens + j, h, i, kHeads, d, kv.swizzled())];
            };
            for (int64_t j = 0; j < copy.count; ++j) {
              for (int64_t i = 0; i < d; ++i) at(copy.to_block, j, i) = at(copy.from_block, j, i);
            }
          }
        }
      }
      EXPECT_EQ(k.Download(), keys);
      EXPECT_EQ(v.Download(), values);
    }
  }
}

}  // namespace
}  // namespace orrery::kernels::cuda
