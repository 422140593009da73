#include "kernels/attention/attention_grad_plan.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>

#include "orchestrator/base/check.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int64_t kSimpleRows = 8;
constexpr int64_t kFewestRows = 64 * 16;  // packed queries that are not worth cutting

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

// Cuts a tile's runs into `parts` of about as many rows each.
void CutTile(const KeyTile& tile, int64_t parts, AttentionGradPlan* plan) {
  const int64_t rows = NumQueries(tile, plan->runs), share = (rows + parts - 1) / parts;
  plan->sums.push_back({tile.first_row, tile.num_rows, Int(plan->num_partials), 0});
  KeyTile part = tile;
  int64_t left = 0;  // of the part at hand
  const auto close = [&] {
    part.num_runs = Int(static_cast<int64_t>(plan->runs.size())) - part.first_run;
    plan->key_tiles.push_back(part);
  };
  for (int32_t i = 0; i < tile.num_runs; ++i) {
    QueryRun run = plan->runs[tile.first_run + i];
    while (run.num_rows > 0) {
      if (left == 0) {
        if (part.partial >= 0) close();
        part.partial = Int(plan->num_partials++);
        ++plan->sums.back().num_partials;
        part.first_run = Int(static_cast<int64_t>(plan->runs.size()));
        left = share;
      }
      const int32_t taken = Int(std::min<int64_t>(left, run.num_rows));
      plan->runs.push_back({run.first_row, taken, run.key_end});
      run.first_row += taken;
      run.num_rows -= taken;
      left -= taken;
    }
  }
  close();
}

// Cuts the tiles that alone would take longer than all tiles shared evenly.
void CutLongTiles(const HeadShape& heads, const DeviceLimits& limits, AttentionGradPlan* plan) {
  const std::vector<KeyTile> tiles = std::move(plan->key_tiles);
  plan->key_tiles.clear();
  int64_t total = 0;
  for (const KeyTile& tile : tiles) total += NumQueries(tile, plan->runs) * heads.group();
  const int64_t places = limits.num_sms * (heads.head_dim == 128 ? 1 : 2);  // blocks at a time
  const int64_t even = std::max(kFewestRows, total * heads.num_kv_heads / places);
  for (const KeyTile& tile : tiles) {
    const int64_t queries = NumQueries(tile, plan->runs) * heads.group();
    if (queries <= even) {
      plan->key_tiles.push_back(tile);
    } else {
      CutTile(tile, (2 * queries + even - 1) / even, plan);
    }
  }
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
  Append(sums, &words);
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
  if (plan.tensor_cores) CutLongTiles(heads, limits, &plan);
  std::stable_sort(plan.query_tiles.begin(), plan.query_tiles.end(),
                   [](const QueryTile& a, const QueryTile& b) { return NumKeys(a) > NumKeys(b); });
  std::stable_sort(plan.key_tiles.begin(), plan.key_tiles.end(),
                   [&](const KeyTile& a, const KeyTile& b) {
                     return NumQueries(a, plan.runs) > NumQueries(b, plan.runs);
                   });
  // Log of the sum and delta of each (row, head); partial dk and dv of each key-value head.
  plan.workspace_bytes = 8 * plan.num_rows * heads.num_heads;
  plan.workspace_bytes = (plan.workspace_bytes + 15) / 16 * 16;
  plan.workspace_bytes += 8 * plan.num_partials * size.key_rows * heads.kv_width();
  return plan;
}

}  // namespace orrery::kernels::cuda
