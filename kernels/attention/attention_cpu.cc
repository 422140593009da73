// foreach_target.h compiles this file once for each instruction set; what comes before it matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/attention_cpu.cc"
#include "kernels/cpu/highway_targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "hwy/cache_control.h"
#include "kernels/attention/attention.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/vector-inl.h"

#ifndef ORRERY_KERNELS_ATTENTION_ONCE
#define ORRERY_KERNELS_ATTENTION_ONCE
namespace orrery::kernels::internal {

// Queries of one key-value head of one sequence: `group` heads of each of `rows` positions.
struct HeadTask {
  const float* q;  // first query of the first row
  int64_t q_row;   // floats between rows
  int64_t rows, group, d;
  int64_t first_position;
  const int32_t* blocks;
  const float* k;  // of this head in block 0: + block * block_stride
  const float* v;
  int64_t block_stride;
  float scale;
  bool round;
  float* out;
  int64_t out_row;
  float* scores;          // [kMaxTile, scores_stride]
  int64_t scores_stride;  // multiple of 16, at least the positions in sight
};

inline constexpr int64_t kMaxTile = 4;  // queries handled together

}  // namespace orrery::kernels::internal
#endif

HWY_BEFORE_NAMESPACE();
namespace orrery::kernels::HWY_NAMESPACE {
using internal::HeadTask;

// Scores of kTile queries against kBlocks blocks of keys [D, 16], to positions [first, first + 16
// kBlocks) of each query's row of scores. last_block: the last one in sight.
template <int kTile, int kBlocks>
HWY_INLINE void BlockScores(const float* const* q, const HeadTask& task, int64_t first,
                            int64_t last_block) {
  const float* keys[kBlocks];
  for (int b = 0; b < kBlocks; ++b) {
    keys[b] = task.k + task.blocks[first / kBlockTokens + b] * task.block_stride;
  }
  Wide sum[kTile][kBlocks];
#pragma GCC unroll 4
  for (int i = 0; i < kTile; ++i) {
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) sum[i][b] = SetWide(0);
  }
  const int64_t d = task.d;
  // Keys and values of many sequences do not stay in the cache: while these keys are multiplied,
  // the ones after them and the values beside them are fetched, a line each a step.
  const int32_t* ahead = task.blocks + first / kBlockTokens;
  const float* next_keys[kBlocks];
  const float* values[kBlocks];
  for (int b = 0; b < kBlocks; ++b) {
    const int64_t next = std::min<int64_t>(kBlocks + b, last_block - first / kBlockTokens);
    next_keys[b] = task.k + ahead[next] * task.block_stride;
    values[b] = task.v + ahead[b] * task.block_stride;
  }
  for (int64_t c = 0; c < d; ++c) {
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) {
      hwy::Prefetch(next_keys[b] + c * kBlockTokens);
      hwy::Prefetch(values[b] + c * kBlockTokens);
      const Wide key = LoadWide(keys[b] + c * kBlockTokens);
#pragma GCC unroll 4
      for (int i = 0; i < kTile; ++i) sum[i][b] = MulAdd(SetWide(q[i][c]), key, sum[i][b]);
    }
  }
  const Wide scale = SetWide(task.scale);
#pragma GCC unroll 4
  for (int i = 0; i < kTile; ++i) {
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) {
      StoreWide(Mul(sum[i][b], scale),
                task.scores + i * task.scores_stride + first + b * kBlockTokens);
    }
  }
}

// Scores to exponentials, 0 beyond `count`; returns the sum.
HWY_INLINE float SoftmaxRow(float* scores, int64_t count) {
  const int64_t padded = (count + kWide - 1) / kWide * kWide;
  for (int64_t j = count; j < padded; ++j) scores[j] = -std::numeric_limits<float>::infinity();
  Wide max = LoadWide(scores);
  for (int64_t j = kWide; j < padded; j += kWide) max = Max(max, LoadWide(scores + j));
  const Wide top = SetWide(MaxWide(max));
  Wide sum = SetWide(0);
  for (int64_t j = 0; j < padded; j += kWide) {
    Wide e = Exp(Sub(LoadWide(scores + j), top));
    if (j + kWide > count) {
      StoreWide(e, scores + j);
      for (int64_t i = count; i < padded; ++i) scores[i] = 0;
      e = LoadWide(scores + j);
    }
    StoreWide(e, scores + j);
    sum = Add(sum, e);
  }
  return SumWide(sum);
}

// out = round(sum_j p_j v_j / total), one chain over j a column: the general case.
HWY_INLINE void ValueRow(const float* p, int64_t count, float total, const HeadTask& task,
                         float* out) {
  const Wide inverse = SetWide(1.0f / total);
  for (int64_t c = 0; c < task.d; c += kWide) {
    const int64_t left = task.d - c;
    Wide sum = SetWide(0);
    for (int64_t j = 0; j < count; ++j) {
      const float* v = task.v + task.blocks[j / kBlockTokens] * task.block_stride +
                       j % kBlockTokens * task.d + c;
      sum = MulAdd(SetWide(p[j]), LoadUpTo(v, left, 0), sum);
    }
    StoreUpTo(RoundIf(task.round, Mul(sum, inverse)), out + c, left);
  }
}

// Vectors of columns that kTile queries sum at a time: their accumulators fill the registers.
template <int kTile>
constexpr int kValueVectors = kTile == 1   ? 8
                              : kTile == 2 ? 4
                                           : 3;

// The same for kTile queries and kVectors vectors of columns from `column` on. The queries walk
// together as far as the one that sees least; each goes on alone.
template <int kTile, int kVectors>
HWY_INLINE void ValueColumns(const int64_t* count, int64_t shortest, const float* total,
                             const HeadTask& task, int64_t column, float* const* out) {
  const DF d;
  VF sum[kTile][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kTile; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::Zero(d);
  }
  const auto row_of = [&](int64_t j) {
    return task.v + task.blocks[j / kBlockTokens] * task.block_stride + j % kBlockTokens * task.d +
           column;
  };
  for (int64_t j0 = 0; j0 < shortest; j0 += kBlockTokens) {
    const float* row = row_of(j0);
    const int64_t end = std::min(shortest, j0 + kBlockTokens);
    for (int64_t j = j0; j < end; ++j, row += task.d) {
      VF value[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) value[v] = hn::LoadU(d, row + v * kWideLanes);
#pragma GCC unroll 8
      for (int i = 0; i < kTile; ++i) {
        const VF p = hn::Set(d, task.scores[i * task.scores_stride + j]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(p, value[v], sum[i][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kTile; ++i) {
    for (int64_t j = shortest; j < count[i]; ++j) {
      const float* row = row_of(j);
      const VF p = hn::Set(d, task.scores[i * task.scores_stride + j]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sum[i][v] = hn::MulAdd(p, hn::LoadU(d, row + v * kWideLanes), sum[i][v]);
      }
    }
    const VF inverse = hn::Set(d, 1.0f / total[i]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      VF result = hn::Mul(sum[i][v], inverse);
      if (task.round) result = RoundVector(result);
      hn::StoreU(result, d, out[i] + column + v * kWideLanes);
    }
  }
}

// `left` vectors of columns from `column` on.
template <int kTile, int kVectors = kValueVectors<kTile>>
HWY_INLINE void ValueRest(const int64_t* count, int64_t shortest, const float* total,
                          const HeadTask& task, int64_t column, int64_t left, float* const* out) {
  if constexpr (kVectors > 0) {
    if (left == kVectors) {
      ValueColumns<kTile, kVectors>(count, shortest, total, task, column, out);
    } else {
      ValueRest<kTile, kVectors - 1>(count, shortest, total, task, column, left, out);
    }
  }
}

template <int kTile>
HWY_INLINE void Values(const int64_t* count, const float* total, const HeadTask& task,
                       float* const* out) {
  if (task.d % kWideLanes != 0) {
    for (int i = 0; i < kTile; ++i) {
      ValueRow(task.scores + i * task.scores_stride, count[i], total[i], task, out[i]);
    }
    return;
  }
  const int64_t shortest = *std::min_element(count, count + kTile);
  int64_t left = task.d / kWideLanes, column = 0;
  for (; left >= kValueVectors<kTile>; left -= kValueVectors<kTile>) {
    ValueColumns<kTile, kValueVectors<kTile>>(count, shortest, total, task, column, out);
    column += kValueVectors<kTile> * kWideLanes;
  }
  ValueRest<kTile>(count, shortest, total, task, column, left, out);
}

template <int kTile>
HWY_INLINE void QueryTile(const HeadTask& task, int64_t first) {
  const float* q[kTile];
  float* out[kTile];
  int64_t count[kTile];
  int64_t longest = 0;
  for (int i = 0; i < kTile; ++i) {
    const int64_t row = (first + i) / task.group, head = (first + i) % task.group;
    q[i] = task.q + row * task.q_row + head * task.d;
    out[i] = task.out + row * task.out_row + head * task.d;
    count[i] = task.first_position + row + 1;
    longest = std::max(longest, count[i]);
  }
  // Enough independent chains at a time to keep both multipliers busy.
  constexpr int kBlocks = kTile == 1 ? 4 : kTile == 2 || (kTile == 3 && kWideVectors <= 2) ? 2 : 1;
  const int64_t last_block = (longest - 1) / kBlockTokens;
  int64_t j = 0;
  for (; j + (kBlocks - 1) * kBlockTokens < longest; j += kBlocks * kBlockTokens) {
    BlockScores<kTile, kBlocks>(q, task, j, last_block);
  }
  for (; j < longest; j += kBlockTokens) BlockScores<kTile, 1>(q, task, j, last_block);
  float total[kTile];
  for (int i = 0; i < kTile; ++i) {
    total[i] = SoftmaxRow(task.scores + i * task.scores_stride, count[i]);
  }
  Values<kTile>(count, total, task, out);
}

void HeadImpl(const HeadTask& task) {
  const int64_t queries = task.rows * task.group;
  int64_t i = 0;
  for (; i + 4 <= queries; i += 4) QueryTile<4>(task, i);
  if (queries - i == 3) QueryTile<3>(task, i);
  if (queries - i == 2) QueryTile<2>(task, i);
  if (queries - i == 1) QueryTile<1>(task, i);
}

// Scores [n] to probabilities in place, for the gradient.
void ProbabilitiesImpl(float* scores, int64_t count, int64_t width) {
  const float total = SoftmaxRow(scores, count);
  for (int64_t j = 0; j < count; ++j) scores[j] /= total;
  for (int64_t j = count; j < width; ++j) scores[j] = 0;
}

float DotImpl(const float* a, const float* b, int64_t n) { return DotRow(a, b, n); }

}  // namespace orrery::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/linear/linear.h"

namespace orrery::kernels {
namespace {

HWY_EXPORT(HeadImpl);
HWY_EXPORT(ProbabilitiesImpl);
HWY_EXPORT(DotImpl);

constexpr int64_t kTaskRows = 32;  // queries of a sequence that one task takes

int64_t RoundUp(int64_t n) { return (n + kBlockTokens - 1) / kBlockTokens * kBlockTokens; }

// Rows [first, first + count) of sequence `s`.
struct Piece {
  int64_t sequence, first, count;
};

std::vector<Piece> CutIntoPieces(std::span<const SequenceSpan> sequences) {
  std::vector<Piece> pieces;
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (int64_t r = 0; r < sequences[s].num_rows; r += kTaskRows) {
      pieces.push_back(
          {static_cast<int64_t>(s), r, std::min(kTaskRows, sequences[s].num_rows - r)});
    }
  }
  return pieces;
}

// Keys, values, queries of one (sequence, key-value head) as the gradient needs them: contiguous.
struct Gathered {
  int64_t n, queries, d;  // positions, rows * group, head size
  std::vector<float> q, k, v, p, dout, dp, dq, dk, dv, packed;
};

int64_t RowOfPosition(const SequenceSpan& s, int64_t position) {
  if (position >= s.first_position) return s.first_row + position - s.first_position;
  CHECK(s.prefix_first_row >= 0) << "gradient of a sequence whose beginning is not in the batch";
  return s.prefix_first_row + position;
}

void Gather(const SequenceSpan& s, const TensorView& qkv, const TensorView& dout,
            const HeadShape& heads, int64_t kv_head, Gathered* g) {
  const int64_t d = heads.head_dim, group = heads.group();
  g->d = d;
  g->n = s.first_position + s.num_rows;
  g->queries = s.num_rows * group;
  g->k.resize(g->n * d);
  g->v.resize(g->n * d);
  g->q.resize(g->queries * d);
  g->dout.resize(g->queries * d);
  const int64_t k_column = heads.q_width() + kv_head * d, v_column = k_column + heads.kv_width();
  for (int64_t j = 0; j < g->n; ++j) {
    const float* row = qkv.f32(RowOfPosition(s, j));
    std::memcpy(g->k.data() + j * d, row + k_column, d * sizeof(float));
    std::memcpy(g->v.data() + j * d, row + v_column, d * sizeof(float));
  }
  const int64_t width = group * d, column = kv_head * width;
  for (int64_t r = 0; r < s.num_rows; ++r) {
    std::memcpy(g->q.data() + r * width, qkv.f32(s.first_row + r) + column, width * sizeof(float));
    std::memcpy(g->dout.data() + r * width, dout.f32(s.first_row + r) + column,
                width * sizeof(float));
  }
}

// a @ b^T for small contiguous matrices.
void ProductTransposed(const std::vector<float>& a, int64_t rows, const std::vector<float>& b,
                       int64_t columns, int64_t depth, std::vector<float>* packed,
                       std::vector<float>* out) {
  packed->resize(PackedWeight::NumElements(columns, depth));
  out->resize(rows * columns);
  const PackedWeight w =
      PackWeight(TensorView::Float(const_cast<float*>(b.data()), columns, depth), packed->data());
  Linear(TensorView::Float(const_cast<float*>(a.data()), rows, depth), w, nullptr, Rounding::kNone,
         TensorView::Float(out->data(), rows, columns));
}

void HeadGrad(const SequenceSpan& s, float scale, int64_t group, const float* out_rows,
              int64_t out_stride, Gathered* g) {
  const int64_t d = g->d, n = g->n, queries = g->queries;
  const auto view = [](std::vector<float>& x, int64_t rows, int64_t cols) {
    return TensorView::Float(x.data(), rows, cols);
  };
  ProductTransposed(g->q, queries, g->k, n, d, &g->packed, &g->p);
  std::vector<float> row(static_cast<size_t>(RoundUp(n)));
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t count = s.first_position + i / group + 1;
    float* p = g->p.data() + i * n;
    for (int64_t j = 0; j < count; ++j) row[j] = p[j] * scale;
    HWY_DYNAMIC_DISPATCH(ProbabilitiesImpl)(row.data(), count, n);
    std::memcpy(p, row.data(), n * sizeof(float));
  }
  g->dv.assign(n * d, 0.0f);
  LinearGradWeight(view(g->p, queries, n), view(g->dout, queries, d), view(g->dv, n, d));
  ProductTransposed(g->dout, queries, g->v, n, d, &g->packed, &g->dp);
  for (int64_t i = 0; i < queries; ++i) {  // dS = P * (dP - dout . out), in place of dP
    const float* o = out_rows + i / group * out_stride + i % group * d;
    const float dot = HWY_DYNAMIC_DISPATCH(DotImpl)(g->dout.data() + i * d, o, d);
    float* dp = g->dp.data() + i * n;
    const float* p = g->p.data() + i * n;
    for (int64_t j = 0; j < n; ++j) dp[j] = p[j] * (dp[j] - dot) * scale;
  }
  g->dq.resize(queries * d);
  LinearGradInput(view(g->dp, queries, n), view(g->k, n, d), /*accumulate=*/false,
                  view(g->dq, queries, d));
  g->dk.assign(n * d, 0.0f);
  LinearGradWeight(view(g->dp, queries, n), view(g->q, queries, d), view(g->dk, n, d));
}

void Scatter(const SequenceSpan& s, const Gathered& g, const HeadShape& heads, int64_t kv_head,
             const TensorView& dqkv) {
  const int64_t d = g.d, width = heads.group() * d;
  for (int64_t r = 0; r < s.num_rows; ++r) {
    std::memcpy(dqkv.f32(s.first_row + r) + kv_head * width, g.dq.data() + r * width,
                width * sizeof(float));
  }
  const int64_t k_column = heads.q_width() + kv_head * d, v_column = k_column + heads.kv_width();
  for (int64_t j = 0; j < g.n; ++j) {
    float* row = dqkv.f32(RowOfPosition(s, j));
    for (int64_t i = 0; i < d; ++i) row[k_column + i] += g.dk[j * d + i];
    for (int64_t i = 0; i < d; ++i) row[v_column + i] += g.dv[j * d + i];
  }
}

}  // namespace

void WriteKv(const TensorView& qkv, const HeadShape& heads, std::span<const int32_t> slots,
             const KvBlocks& kv) {
  const int64_t d = heads.head_dim, block_size = heads.kv_width() * kBlockTokens;
  CHECK_EQ(qkv.rows, static_cast<int64_t>(slots.size()));
  for (int64_t t = 0; t < qkv.rows; ++t) {
    const int64_t block = slots[t] / kBlockTokens, offset = slots[t] % kBlockTokens;
    CHECK(block >= 0 && block < kv.num_blocks) << "block " << block;
    const float* k = qkv.f32(t) + heads.q_width();
    const float* v = k + heads.kv_width();
    for (int64_t h = 0; h < heads.num_kv_heads; ++h) {
      float* to = kv.k + block * block_size + h * d * kBlockTokens + offset;
      for (int64_t i = 0; i < d; ++i) to[i * kBlockTokens] = k[h * d + i];
      std::memcpy(kv.v + block * block_size + (h * kBlockTokens + offset) * d, v + h * d,
                  d * sizeof(float));
    }
  }
}

void CopyKv(std::span<const KvCopy> copies, const HeadShape& heads, const KvBlocks& kv) {
  const int64_t d = heads.head_dim, block_size = heads.kv_width() * kBlockTokens;
  for (const KvCopy& copy : copies) {
    const float* k = kv.k + copy.from_block * block_size;
    float* to_k = kv.k + copy.to_block * block_size;
    for (int64_t row = 0; row < heads.kv_width(); ++row) {
      std::memcpy(to_k + row * kBlockTokens, k + row * kBlockTokens, copy.count * sizeof(float));
    }
    for (int64_t h = 0; h < heads.num_kv_heads; ++h) {
      const int64_t at = h * kBlockTokens * d;
      std::memcpy(kv.v + copy.to_block * block_size + at, kv.v + copy.from_block * block_size + at,
                  copy.count * d * sizeof(float));
    }
  }
}

void Attention(const TensorView& qkv, const HeadShape& heads, float scale,
               std::span<const SequenceSpan> sequences, const KvBlocks& kv, Rounding rounding,
               const TensorView& out) {
  CHECK_EQ(out.cols, heads.q_width());
  const int64_t d = heads.head_dim, group = heads.group();
  const std::vector<Piece> pieces = CutIntoPieces(sequences);
  ParallelFor(static_cast<int64_t>(pieces.size()) * heads.num_kv_heads, [&](int64_t i) {
    const Piece& piece = pieces[i / heads.num_kv_heads];
    const int64_t kv_head = i % heads.num_kv_heads;
    const SequenceSpan& s = sequences[piece.sequence];
    const int64_t width = RoundUp(s.first_position + piece.first + piece.count);
    CHECK_LE(width, static_cast<int64_t>(s.blocks.size()) * kBlockTokens);
    static thread_local std::vector<float> scores;
    if (static_cast<int64_t>(scores.size()) < width * internal::kMaxTile) {
      scores.resize(width * internal::kMaxTile);
    }
    internal::HeadTask task;
    task.q = qkv.f32(s.first_row + piece.first) + kv_head * group * d;
    task.q_row = qkv.row_stride;
    task.rows = piece.count;
    task.group = group;
    task.d = d;
    task.first_position = s.first_position + piece.first;
    task.blocks = s.blocks.data();
    task.k = kv.k + kv_head * d * kBlockTokens;
    task.v = kv.v + kv_head * d * kBlockTokens;
    task.block_stride = heads.kv_width() * kBlockTokens;
    task.scale = scale;
    task.round = rounding == Rounding::kBFloat16;
    task.out = out.f32(s.first_row + piece.first) + kv_head * group * d;
    task.out_row = out.row_stride;
    task.scores = scores.data();
    task.scores_stride = width;
    HWY_DYNAMIC_DISPATCH(HeadImpl)(task);
  });
}

void AttentionGrad(const TensorView& dout, const TensorView& qkv, const TensorView& out,
                   const HeadShape& heads, float scale, std::span<const SequenceSpan> sequences,
                   const TensorView& dqkv) {
  const int64_t group = heads.group(), width = group * heads.head_dim;
  for (int64_t t = 0; t < dqkv.rows; ++t) {
    std::memset(dqkv.f32(t), 0, dqkv.cols * sizeof(float));
  }
  // Heads own their columns of dqkv, so they run in parallel; sequences of a head in order.
  ParallelFor(heads.num_kv_heads, [&](int64_t kv_head) {
    Gathered g;
    for (const SequenceSpan& s : sequences) {
      if (s.num_rows == 0) continue;
      Gather(s, qkv, dout, heads, kv_head, &g);
      HeadGrad(s, scale, group, out.f32(s.first_row) + kv_head * width, out.row_stride, &g);
      Scatter(s, g, heads, kv_head, dqkv);
    }
  });
}

}  // namespace orrery::kernels
#endif  // HWY_ONCE
