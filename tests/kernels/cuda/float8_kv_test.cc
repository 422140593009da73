// Keys and values in eight bits on a GPU, against their definition on the host.
#include "kernels/attention/float8_kv.h"

#include <gtest/gtest.h>

#include "kernels/rope/qk_norm_rope_cuda.h"
#include "tests/kernels/cuda/attention_case.h"

namespace orrery::kernels::cuda {
namespace {

class CudaFloat8KvTest : public CudaTest {};

const HeadShape kHeadShapes[] = {{32, 4, 128}, {9, 3, 64}, {8, 8, 64}, {6, 2, 128}};

// The bits of the bfloat16 kernels over the rounded keys and values: alone, split, and in tiles.
TEST_F(CudaFloat8KvTest, AttentionIsThatOverTheRoundedKeysAndValues) {
  Random random(1);
  DeviceLimits many = limits_;  // with which the plan splits all
  many.num_sms = 1 << 20;
  for (const HeadShape& heads : kHeadShapes) {
    SCOPED_TRACE(testing::Message()
                 << heads.num_heads << "/" << heads.num_kv_heads << " d " << heads.head_dim);
    AttentionCase c(&random, DType::kBFloat16, heads, {300, 1103, 777, 2100, 19});
    // Rows of every size: small, large, zero.
    c.ForEachCacheRow([&](bool, int64_t slot, int64_t head, std::span<float> row) {
      const float size = std::ldexp(1.0f, static_cast<int>((slot * 7 + head) % 9) - 6);
      for (float& x : row) x = slot % 31 == 0 ? 0 : x * size;
    });
    const Float8Cache cache(&c);
    c.AddRow(&random, 0, 299);
    c.AddRow(&random, 3, 2099);
    c.AddRows(&random, 1, 0, 143);
    c.AddRows(&random, 2, 369, 300);
    c.AddRow(&random, 0, -1);
    c.AddRows(&random, 4, 0, 19);
    c.AddRows(&random, 3, 1019, 45);
    c.AddRow(&random, 1, 1102);
    const AttentionRun rounded(c), float8(c, cache);
    const auto expect_same = [&](const std::vector<float>& a, const std::vector<float>& b) {
      const int64_t width = c.heads.q_width();
      for (int64_t i = 0; i < static_cast<int64_t>(a.size()); ++i) {
        if (c.positions[i / width] < 0) continue;
        ASSERT_EQ(a[i], b[i]) << "row " << i / width;
      }
    };
    const std::vector<float> expected = rounded.Run(0, c.rows(), limits_, 2099);
    expect_same(float8.Run(0, c.rows(), limits_, 2099), expected);
    expect_same(float8.Run(0, c.rows(), many, 2099), expected);
    expect_same(float8.Run(0, c.rows(), limits_, 2099, Kernels::kTiles), expected);
    expect_same(float8.Run(0, c.rows(), limits_, 2099, Kernels::kPortableTiles), expected);
  }
}

struct WrittenCache {
  std::vector<uint8_t> k, v;
};

// The cache's bytes after rows at those slots were written and blocks copied.
WrittenCache Write(const HeadShape& heads, KvFormat format, const DeviceMatrix& qkv,
                   const std::vector<int32_t>& slots, const std::vector<float>& norm,
                   int64_t blocks, const std::vector<KvCopy>& copies) {
  const int64_t d = heads.head_dim, rows = static_cast<int64_t>(slots.size());
  std::vector<float> inv_freq;
  for (int64_t j = 0; j < d / 2; ++j) {
    inv_freq.push_back(static_cast<float>(std::pow(1e4, -2.0 * j / d)));
  }
  const RopeTable table(inv_freq, rows);
  std::vector<float> rope;
  for (int64_t p = 0; p < rows; ++p) rope.insert(rope.end(), table.Row(p), table.Row(p) + d);
  const DeviceArray<float> device_rope(rope);
  std::vector<int32_t> positions(slots.size());
  std::iota(positions.begin(), positions.end(), 0);
  const DeviceArray<int32_t> device_positions(positions), device_slots(slots);
  const DeviceMatrix device_norm(DType::kBFloat16, norm, 1, d);
  const int64_t bytes = KvBlocks::NumBytes(heads, DType::kBFloat16, blocks, format) / 2;
  DeviceArray<uint8_t> k(bytes), v(bytes);
  k.Zero();
  v.Zero();
  const KvBlocks kv{k.get(), v.get(), DType::kBFloat16, blocks, heads.num_kv_heads, d, format};
  QkNormRopeArgs args;
  args.heads = heads;
  args.q_norm = args.k_norm = device_norm.view();
  args.eps = 1e-6f;
  args.rope = device_rope.get();
  args.positions = device_positions.get();
  args.slots = device_slots.get();
  QkNormRopeWriteKv(qkv.view(), args, kv, nullptr);
  const DeviceArray<KvCopy> device_copies(copies);
  CopyKv(device_copies.get(), device_copies.size(), kv, nullptr);
  return {k.Download(), v.Download()};
}

// What is written is the rounding of what a cache in bfloat16 holds, also after copies.
TEST_F(CudaFloat8KvTest, TheCacheHoldsTheRoundedRows) {
  Random random(2);
  constexpr int64_t kBlocks = 6, kRows = 40;
  for (const HeadShape& heads : kHeadShapes) {
    const int64_t d = heads.head_dim;
    std::vector<float> values = Rounded(DType::kBFloat16, random.Floats(kRows * heads.qkv_width()));
    for (int64_t i = 0; i < kRows * heads.qkv_width(); ++i) {  // rows of many sizes, one of zeros
      const int64_t row = i / heads.qkv_width();
      values[i] *= row == 7 ? 0.0f : std::ldexp(1.0f, static_cast<int>(row) - 20);
    }
    const std::vector<float> norm = Rounded(DType::kBFloat16, random.Floats(d, 1.5));
    std::vector<int32_t> slots;
    for (int64_t i = 0; i < kRows; ++i) slots.push_back(static_cast<int32_t>(i + 3));
    const std::vector<KvCopy> copies = {{0, 3, 7}, {1, 4, 16}, {2, 5, 1}};
    const auto write = [&](KvFormat format) {
      const DeviceMatrix qkv(DType::kBFloat16, values, kRows, heads.qkv_width());
      return Write(heads, format, qkv, slots, norm, kBlocks, copies);
    };
    const WrittenCache whole = write(KvFormat::kModel), float8 = write(KvFormat::kFloat8);
    const int64_t piece = KvBlocks::PieceBytes(d, DType::kBFloat16, KvFormat::kFloat8);
    const KvBlocks layout{nullptr, nullptr, DType::kBFloat16, kBlocks, heads.num_kv_heads, d};
    const auto check = [&](const std::vector<uint8_t>& exact, const std::vector<uint8_t>& got,
                           int64_t slot, int64_t head) {
      std::vector<float> row(static_cast<size_t>(d));
      for (int64_t i = 0; i < d; ++i) {
        uint16_t half;
        const int64_t at = KvIndex(slot, head, i, heads.num_kv_heads, d, layout.swizzled());
        std::memcpy(&half, exact.data() + 2 * at, 2);
        row[i] = FromBFloat16(half);
      }
      const uint8_t* from = got.data() + (slot / kBlockTokens * heads.num_kv_heads + head) * piece;
      const int k = Float8Exponent(row);
      ASSERT_EQ(static_cast<int8_t>(from[kBlockTokens * d + slot % kBlockTokens]), k) << slot;
      for (int64_t i = 0; i < d; ++i) {
        const uint8_t byte = from[slot % kBlockTokens * d + i];
        ASSERT_EQ(FromFloat8(byte, k), FromFloat8(ToFloat8(row[i], k), k))
            << "slot " << slot << " head " << head << " value " << row[i];
      }
    };
    for (int64_t slot = 0; slot < kBlocks * kBlockTokens; ++slot) {
      for (int64_t head = 0; head < heads.num_kv_heads; ++head) {
        check(whole.k, float8.k, slot, head);
        check(whole.v, float8.v, slot, head);
      }
    }
  }
}

}  // namespace
}  // namespace orrery::kernels::cuda
