#include "trainer/batch_bounds.h"

#include <algorithm>
#include <utility>

namespace orrery::trainer {
namespace {

TrainingSequence MakeSequence(int64_t tokens, int64_t prompt) {
  TrainingSequence s;
  s.token_ids.assign(static_cast<size_t>(tokens), 0);
  s.loss_mask.assign(static_cast<size_t>(tokens), 1);
  std::fill_n(s.loss_mask.begin(), std::max<int64_t>(1, prompt), 0);
  s.shared_prefix = static_cast<int32_t>(prompt);
  return s;
}

// `rows` rows in sequences of at most so many tokens; one row fewer than tokens is computed.
MicroBatch Fill(int64_t rows, int64_t tokens) {
  std::vector<TrainingSequence> sequences;
  for (int64_t left = rows; left > 0;) {
    const int64_t taken = std::min(left, std::max<int64_t>(tokens - 1, 1));
    sequences.push_back(MakeSequence(taken + 1, 0));
    left -= taken;
  }
  return std::move(Pack(sequences, rows, /*share_prefix=*/false).front());
}

// Groups of `samples` sequences that share a prompt, as many as fit in `rows`.
MicroBatch FillGroups(int64_t rows, const BatchBounds& bounds) {
  std::vector<TrainingSequence> sequences;
  int64_t left = rows, of_group = 0;
  const int64_t response = std::max<int64_t>(bounds.sequence_tokens - bounds.prompt_tokens, 1);
  for (uint64_t group = 0; left > 0;) {
    const int64_t prompt = of_group == 0 ? bounds.prompt_tokens : 0;
    // A response of one token has no row of its own.
    const int64_t fits = std::min(response, left - prompt + 1);
    if (fits < 1 || (fits == 1 && response > 1 && of_group > 0)) break;
    sequences.push_back(MakeSequence(bounds.prompt_tokens + fits, bounds.prompt_tokens));
    sequences.back().group_id = group;
    left -= prompt + fits - 1;
    if (++of_group == bounds.samples) ++group, of_group = 0;
    if (response == 1 && of_group == 0 && left < bounds.prompt_tokens) break;
  }
  if (sequences.empty()) return Fill(rows, bounds.sequence_tokens);
  return std::move(Pack(sequences, rows, /*share_prefix=*/true).front());
}

}  // namespace

int64_t LargestMicroBatchRows(const BatchBounds& bounds) {
  const int64_t longest = std::max<int64_t>(bounds.sequence_tokens, 2);
  const int64_t rows = std::max({bounds.micro_batch_tokens, longest - 1, int64_t{1}});
  return bounds.step_tokens > 0 ? std::min(rows, std::max(bounds.step_tokens, longest - 1)) : rows;
}

std::vector<MicroBatch> LargestMicroBatches(const BatchBounds& bounds) {
  const int64_t longest = std::max<int64_t>(bounds.sequence_tokens, 2);
  const int64_t rows = LargestMicroBatchRows(bounds);
  std::vector<MicroBatch> micros;
  micros.push_back(Fill(rows, longest));
  micros.push_back(Fill(rows, std::max<int64_t>(longest / 4, 2)));
  if (bounds.prompt_tokens > 0 && bounds.samples > 1 && bounds.prompt_tokens < longest) {
    micros.push_back(FillGroups(rows, bounds));
  }
  return micros;
}

}  // namespace orrery::trainer
