#include <algorithm>

#include "kernels/sampler/top_logprobs.h"
#include "orchestrator/base/check.h"

namespace orrery::kernels {

TopLogprobsPlan PlanTopLogprobs(int64_t rows, int64_t vocabulary, int64_t n,
                                const DeviceLimits& limits) {
  constexpr int64_t kPiece = 1024, kMaxPieces = 256, kMaxRows = 65535, kMostWarps = 8;
  CHECK(n >= 1 && n <= kMaxTopLogprobs && n <= vocabulary) << n;
  CHECK(vocabulary <= kPiece * kMaxPieces && rows >= 0 && rows <= kMaxRows);
  TopLogprobsPlan plan;
  plan.rows = rows;
  plan.n = n;
  plan.num_pieces = (vocabulary + kPiece - 1) / kPiece;
  // Whole blocks where there is work for all multiprocessors, thin ones where there is not.
  plan.piece_warps = kMostWarps;
  while (plan.piece_warps > 1 &&
         rows * plan.num_pieces < plan.piece_warps * std::max(limits.num_sms, 1)) {
    plan.piece_warps /= 2;
  }
  plan.piece_blocks = (plan.num_pieces + plan.piece_warps - 1) / plan.piece_warps;
  plan.row_warps = 4;
  plan.row_blocks = (rows + plan.row_warps - 1) / plan.row_warps;
  plan.workspace_bytes = rows * plan.num_pieces * n * 8;
  return plan;
}

}  // namespace orrery::kernels
