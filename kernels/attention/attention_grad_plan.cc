#include "kernels/attention/attention_grad_plan.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>

#include "orchestrator/base/check.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int64_t kSimpleRows = 8;

int32_t Int(int64_t x) {
  CHECK(x >= 0 && x <= std::numeric_limits<int32_t>::max());
  return static_cast<int32_t>(x);
}

bool FitsTensorCores(const HeadShape& heads, DType dtype, const DeviceLimits& limits) {
  return limits.wgmma && dtype == DType::kBFloat16 && heads.group() <= 16 &&
         (heads.head_dim == 64 || heads.head_dim == 128);
}

// Spans that continue a span, by the row at which that begins; those side by side are merged.
std::map<int64_t, std::vector<QueryRun>> Dependents(std::span<const SequenceSpan> spans) {
  std::map<int64_t, int64_t> beginnings;  // first row -> rows
  for (const SequenceSpan& s : spans) {
    if (s.num_rows > 0 && s.first_position == 0) beginnings[s.first_row] = s.num_rows;
  }
  std::map<int64_t, std::vector<QueryRun>> dependents;
  for (const SequenceSpan& s : spans) {
    if (s.num_rows == 0 || s.first_position == 0) continue;
    CHECK(s.prefix_first_row >= 0) << "gradient of a sequence whose beginning is not in the batch";
    const auto prefix = beginnings.find(s.prefix_first_row);
    CHECK(prefix != beginnings.end() && prefix->second >= s.first_position)
        << "row " << s.first_row << ": its prefix of " << s.first_position << " rows from row "
        << s.prefix_first_row << " on is not the beginning of one sequence";
    std::vector<QueryRun>& runs = dependents[s.prefix_first_row];
    const int32_t first = Int(s.first_row), end = Int(s.prefix_first_row + s.first_position);
    if (!runs.empty() && runs.back().key_end == end &&
        runs.back().first_row + runs.back().num_rows == first) {
      runs.back().num_rows += Int(s.num_rows);
    } else {
      runs.push_back({first, Int(s.num_rows), end});
    }
  }
  return dependents;
}

void AddQueryTiles(const SequenceSpan& s, int64_t tile_rows, std::vector<QueryTile>* tiles) {
  for (int64_t r = 0; r < s.num_rows; r += tile_rows) {
    QueryTile tile;
    tile.first_row = Int(s.first_row + r);
    tile.num_rows = Int(std::min(tile_rows, s.num_rows - r));
    tile.span_first_row = Int(s.first_row);
    tile.prefix_first_row = s.first_position > 0 ? Int(s.prefix_first_row) : 0;
    tile.prefix_rows = Int(s.first_position);
    tiles->push_back(tile);
  }
}

void AddKeyTiles(const SequenceSpan& s, int64_t tile_rows, const std::vector<QueryRun>& dependents,
                 AttentionGradPlan* plan) {
  for (int64_t r = 0; r < s.num_rows; r += tile_rows) {
    KeyTile tile;
    tile.first_row = Int(s.first_row + r);
    tile.num_rows = Int(std::min(tile_rows, s.num_rows - r));
    tile.first_run = Int(static_cast<int64_t>(plan->runs.size()));
    plan->runs.push_back({tile.first_row, Int(s.num_rows - r), -1});
    for (const QueryRun& run : dependents) {
      if (run.key_end > tile.first_row) plan->runs.push_back(run);
    }
    tile.num_runs = Int(static_cast<int64_t>(plan->runs.size())) - tile.first_run;
    plan->key_tiles.push_back(tile);
  }
}

int64_t NumKeys(const QueryTile& tile) {
  return int64_t{tile.prefix_rows} + tile.first_row + tile.num_rows - tile.span_first_row;
}

int64_t NumQueries(const KeyTile& tile, const std::vector<QueryRun>& runs) {
  int64_t rows = 0;
  for (int32_t i = 0; i < tile.num_runs; ++i) rows += runs[tile.first_run + i].num_rows;
  return rows;
}

template <typename T>
void Append(const std::vector<T>& records, std::vector<int32_t>* words) {
  static_assert(sizeof(T) % sizeof(int32_t) == 0);
  const size_t at = words->size(), bytes = records.size() * sizeof(T);
  words->resize(at + bytes / sizeof(int32_t));
  if (bytes > 0) std::memcpy(words->data() + at, records.data(), bytes);
}

}  // namespace

std::vector<int32_t> AttentionGradPlan::Words() const {
  std::vector<int32_t> words;
  Append(query_tiles, &words);
  Append(key_tiles, &words);
  Append(runs, &words);
  return words;
}

AttentionGradTile SizeOfAttentionGradTile(const HeadShape& heads, bool tensor_cores) {
  if (!tensor_cores) return {kSimpleRows, kSimpleRows};
  const int64_t rows = heads.head_dim == 128 ? 128 : 64;
  return {rows / heads.group(), rows};
}

AttentionGradPlan PlanAttentionGrad(std::span<const SequenceSpan> spans, const HeadShape& heads,
                                    DType dtype, const DeviceLimits& limits) {
  AttentionGradPlan plan;
  plan.tensor_cores = FitsTensorCores(heads, dtype, limits);
  const AttentionGradTile size = SizeOfAttentionGradTile(heads, plan.tensor_cores);
  const auto dependents = Dependents(spans);
  for (const SequenceSpan& s : spans) {
    if (s.num_rows == 0) continue;
    plan.num_rows = std::max(plan.num_rows, s.first_row + s.num_rows);
    AddQueryTiles(s, size.query_rows, &plan.query_tiles);
    const auto found = s.first_position == 0 ? dependents.find(s.first_row) : dependents.end();
    AddKeyTiles(s, size.key_rows,
                found == dependents.end() ? std::vector<QueryRun>() : found->second, &plan);
  }
  std::stable_sort(plan.query_tiles.begin(), plan.query_tiles.end(),
                   [](const QueryTile& a, const QueryTile& b) { return NumKeys(a) > NumKeys(b); });
  std::stable_sort(plan.key_tiles.begin(), plan.key_tiles.end(),
                   [&](const KeyTile& a, const KeyTile& b) {
                     return NumQueries(a, plan.runs) > NumQueries(b, plan.runs);
                   });
  // Log of the sum and delta of each (row, head).
  plan.workspace_bytes = 2 * plan.num_rows * heads.num_heads * static_cast<int64_t>(sizeof(float));
  return plan;
}

}  // namespace orrery::kernels::cuda
