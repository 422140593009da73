// Sequences with paged keys and values on a GPU, for tests of attention.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_simple.h"
#include "kernels/attention/float8_kv.h"
#include "tests/kernels/cuda/device_array.h"

namespace orrery::kernels::cuda {

// Sequences of given lengths whose blocks lie anywhere in the cache, and queries into them.
struct AttentionCase {
  AttentionCase(Random* random, DType dtype, const HeadShape& heads,
                const std::vector<int64_t>& lengths)
      : dtype(dtype), heads(heads), scale(1 / std::sqrt(static_cast<float>(heads.head_dim))) {
    const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    table_stride = longest / kBlockTokens + 3;
    num_blocks = 7;
    for (const int64_t n : lengths) num_blocks += (n + kBlockTokens - 1) / kBlockTokens;
    std::vector<int32_t> free(num_blocks);
    std::iota(free.begin(), free.end(), 0);
    for (int64_t i = num_blocks - 1; i > 0; --i) std::swap(free[i], free[random->Pick(0, i)]);
    tables.assign(lengths.size() * table_stride, 0);
    const int64_t elements = num_blocks * kBlockTokens * heads.kv_width();
    // Keys and values of positions that nobody wrote are finite.
    keys.assign(elements, 3.0f);
    values.assign(elements, -2.0f);
    const KvBlocks layout{nullptr, nullptr, dtype, num_blocks, heads.num_kv_heads, heads.head_dim};
    swizzled = layout.swizzled();
    for (size_t s = 0; s < lengths.size(); ++s) {
      k.push_back(Rounded(dtype, random->Floats(lengths[s] * heads.kv_width(), 2)));
      v.push_back(Rounded(dtype, random->Floats(lengths[s] * heads.kv_width())));
      for (int64_t j = 0; j < lengths[s]; ++j) {
        int32_t& block = tables[s * table_stride + j / kBlockTokens];
        if (j % kBlockTokens == 0) block = free.back(), free.pop_back();
        for (int64_t i = 0; i < heads.kv_width(); ++i) {
          const int64_t at =
              KvIndex(int64_t{block} * kBlockTokens + j % kBlockTokens, i / heads.head_dim,
                      i % heads.head_dim, heads.num_kv_heads, heads.head_dim, swizzled);
          keys[at] = k[s][j * heads.kv_width() + i];
          values[at] = v[s][j * heads.kv_width() + i];
        }
      }
    }
  }
  void AddRow(Random* random, int32_t sequence, int32_t position) {
    sequence_of.push_back(sequence);
    positions.push_back(position);
    const std::vector<float> row = Rounded(dtype, random->Floats(heads.qkv_width(), 2));
    qkv.insert(qkv.end(), row.begin(), row.end());
  }
  void AddRows(Random* random, int32_t sequence, int32_t first, int32_t count) {
    for (int32_t i = 0; i < count; ++i) AddRow(random, sequence, first + i);
  }
  // The first blocks of a sequence are those of another: a shared prompt.
  void ShareBlocks(int64_t from, int64_t to, int64_t blocks) {
    std::copy_n(tables.begin() + from * table_stride, blocks, tables.begin() + to * table_stride);
    const int64_t n = blocks * kBlockTokens * heads.kv_width();
    std::copy_n(k[from].begin(), n, k[to].begin());
    std::copy_n(v[from].begin(), n, v[to].begin());
  }
  // f(row) for the D keys, and values, of every position of the cache and head, there or not.
  template <typename F>
  void ForEachCacheRow(const F& f) {
    const int64_t d = heads.head_dim;
    std::vector<float> row(static_cast<size_t>(d));
    for (std::vector<float>* cache : {&keys, &values}) {
      for (int64_t item = 0; item < num_blocks * kBlockTokens * heads.num_kv_heads; ++item) {
        const int64_t slot = item / heads.num_kv_heads, head = item % heads.num_kv_heads;
        const auto at = [&](int64_t i) -> float& {
          return (*cache)[KvIndex(slot, head, i, heads.num_kv_heads, d, swizzled)];
        };
        for (int64_t i = 0; i < d; ++i) row[i] = at(i);
        f(cache == &keys, slot, head, std::span<float>(row));
        for (int64_t i = 0; i < d; ++i) at(i) = row[i];
      }
    }
  }
  int64_t rows() const { return static_cast<int64_t>(positions.size()); }

  DType dtype;
  HeadShape heads;
  float scale;
  int64_t table_stride, num_blocks;
  bool swizzled;
  std::vector<int32_t> tables, sequence_of, positions;
  std::vector<float> keys, values, qkv;
  std::vector<std::vector<float>> k, v;  // by sequence, in order
};

// Keys and values of a case as a cache in float8 holds them (kv_cache_cuda.h). Makes those of the
// case what they become by that.
struct Float8Cache {
  explicit Float8Cache(AttentionCase* c)
      : piece(KvBlocks::PieceBytes(c->heads.head_dim, c->dtype, KvFormat::kFloat8)),
        k(c->num_blocks * c->heads.num_kv_heads * piece),
        v(k.size()) {
    const int64_t d = c->heads.head_dim;
    c->ForEachCacheRow([&](bool is_key, int64_t slot, int64_t head, std::span<float> row) {
      const int64_t at = slot % kBlockTokens;
      uint8_t* to =
          (is_key ? k : v).data() + (slot / kBlockTokens * c->heads.num_kv_heads + head) * piece;
      const int exponent = Float8Exponent(row);
      for (int64_t i = 0; i < d; ++i) to[at * d + i] = ToFloat8(row[i], exponent);
      to[kBlockTokens * d + at] = static_cast<uint8_t>(exponent);
      RoundToFloat8(row);
    });
  }
  int64_t piece;
  std::vector<uint8_t> k, v;
};

enum class Kernels { kAlone, kTiles, kPortableTiles, kSimple };

// A case on the device; Run takes any of its rows.
struct AttentionRun {
  explicit AttentionRun(const AttentionCase& c)
      : c(c),
        format(KvFormat::kModel),
        qkv(c.dtype, c.qkv, c.rows(), c.heads.qkv_width()),
        k(c.dtype, c.keys, 1, static_cast<int64_t>(c.keys.size())),
        v(c.dtype, c.values, 1, static_cast<int64_t>(c.values.size())),
        tables(c.tables) {}
  // The same with keys and values in float8.
  AttentionRun(const AttentionCase& c, const Float8Cache& cache)
      : c(c),
        format(KvFormat::kFloat8),
        qkv(c.dtype, c.qkv, c.rows(), c.heads.qkv_width()),
        k(c.dtype, 1, 1),
        v(c.dtype, 1, 1),
        float8_k(cache.k),
        float8_v(cache.v),
        tables(c.tables) {}
  std::vector<float> Run(int64_t first, int64_t count, const DeviceLimits& limits, int64_t bound,
                         Kernels kernels = Kernels::kAlone) const {
    const std::span all_positions(c.positions), all_sequences(c.sequence_of);
    const auto host_positions = all_positions.subspan(first, count);
    const auto host_sequences = all_sequences.subspan(first, count);
    const DeviceArray<int32_t> positions({host_positions.begin(), host_positions.end()});
    const DeviceArray<int32_t> sequences({host_sequences.begin(), host_sequences.end()});
    AttentionDivision division;
    if (kernels == Kernels::kTiles || kernels == Kernels::kPortableTiles) {
      division = DivideRows(host_positions, host_sequences, c.heads);
    }
    const DeviceArray<AttentionTile> tiles(division.tiles);
    const DeviceArray<int32_t> lone_rows(division.lone_rows);
    const DeviceMatrix out(c.dtype, count, c.heads.q_width());
    AttentionRows rows;
    rows.positions = positions.get();
    rows.sequence_of = sequences.get();
    rows.block_tables = tables.get();
    rows.table_stride = c.table_stride;
    rows.tiles = tiles.get();
    rows.num_tiles = tiles.size();
    rows.lone_rows = lone_rows.get();
    rows.num_lone_rows = lone_rows.size();
    const bool float8 = format == KvFormat::kFloat8;
    const KvBlocks kv{float8 ? float8_k.get() : k.view().data,
                      float8 ? float8_v.get() : v.view().data,
                      c.dtype,
                      c.num_blocks,
                      c.heads.num_kv_heads,
                      c.heads.head_dim,
                      format};
    const TensorView queries = qkv.view().Rows(first, count);
    if (kernels == Kernels::kSimple) {
      AttentionSimple(queries, c.heads, c.scale, rows, kv, out.view(), nullptr);
      return out.Download();
    }
    AttentionPlan plan = PlanAttention(c.heads, rows.num_alone(count), bound, limits);
    if (kernels == Kernels::kPortableTiles) plan.warpgroup_blocks = 0;
    DeviceArray<uint8_t> workspace(plan.workspace_bytes);
    workspace.Zero();
    Attention(queries, c.heads, c.scale, rows, kv, plan, workspace.get(), out.view(), nullptr);
    return out.Download();
  }
  const AttentionCase& c;
  const KvFormat format;
  DeviceMatrix qkv, k, v;
  DeviceArray<uint8_t> float8_k{0}, float8_v{0};
  DeviceArray<int32_t> tables;
};

}  // namespace orrery::kernels::cuda
