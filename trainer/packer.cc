#include "trainer/packer.h"

#include <algorithm>

#include "orchestrator/base/check.h"

namespace orrery::trainer {
namespace {

constexpr int64_t kBlock = kernels::kBlockTokens;

// Consecutive sequences that share their first `prefix` tokens.
struct Family {
  size_t first = 0, count = 0;
  int64_t prefix = 0;
};

// The last token of a sequence predicts nothing: it is not computed.
int64_t NumRows(const TrainingSequence& s) { return static_cast<int64_t>(s.token_ids.size()) - 1; }

bool SameRouting(const RoutedExperts& a, const RoutedExperts& b, int64_t positions) {
  const int64_t bytes = positions * a.token_bytes();
  if (a.prompt == b.prompt && a.prompt_bytes() >= bytes) return true;
  for (int64_t p = 0; p < positions; ++p) {
    if (!std::equal(a.At(p), a.At(p) + a.token_bytes(), b.At(p))) return false;
  }
  return true;
}

bool SamePrefix(const TrainingSequence& a, const TrainingSequence& b, int64_t n, bool replay) {
  return NumRows(a) >= n && NumRows(b) >= n &&
         std::equal(a.token_ids.begin(), a.token_ids.begin() + n, b.token_ids.begin()) &&
         (!replay || SameRouting(*a.routed_experts, *b.routed_experts, n));
}

// The longest run from `first` on that may be computed together within max_tokens.
Family NextFamily(std::span<const TrainingSequence> sequences, size_t first, int64_t max_tokens,
                  bool share, bool replay) {
  const TrainingSequence& head = sequences[first];
  const int64_t prefix = share ? std::min<int64_t>(head.shared_prefix, NumRows(head)) : 0;
  Family family{first, 1, 0};
  if (prefix == 0) return family;
  int64_t tokens = NumRows(head);
  while (first + family.count < sequences.size()) {
    const TrainingSequence& next = sequences[first + family.count];
    if (next.group_id != head.group_id || next.shared_prefix != head.shared_prefix ||
        !SamePrefix(head, next, prefix, replay) || tokens + NumRows(next) - prefix > max_tokens) {
      break;
    }
    tokens += NumRows(next) - prefix;
    ++family.count;
  }
  if (family.count > 1) family.prefix = prefix;
  return family;
}

int64_t FamilyTokens(std::span<const TrainingSequence> sequences, const Family& family) {
  int64_t tokens = family.prefix;
  for (size_t i = 0; i < family.count; ++i) {
    tokens += NumRows(sequences[family.first + i]) - family.prefix;
  }
  return tokens;
}

class Builder {
 public:
  Builder(std::span<const TrainingSequence> sequences, bool replay)
      : sequences_(sequences), replay_(replay) {
    out_.target_offsets.push_back(0);
  }

  int64_t num_tokens() const { return static_cast<int64_t>(out_.token_ids.size()); }

  void Add(const Family& family) {
    int32_t prefix_row = -1;
    std::vector<int32_t> prefix_blocks;
    if (family.prefix > 0) {
      prefix_row = static_cast<int32_t>(num_tokens());
      AddSpan(sequences_[family.first], 0, family.prefix, {}, -1);
      prefix_blocks = out_.block_tables.back();
    }
    for (size_t i = 0; i < family.count; ++i) {
      const TrainingSequence& s = sequences_[family.first + i];
      std::vector<int32_t> shared(prefix_blocks.begin(),
                                  prefix_blocks.begin() + family.prefix / kBlock);
      const int64_t tail = family.prefix % kBlock;
      if (tail > 0) {
        const int32_t own = static_cast<int32_t>(out_.num_blocks++);
        out_.copies.push_back({prefix_blocks.back(), own, static_cast<int32_t>(tail)});
        shared.push_back(own);
      }
      const int32_t first_row = static_cast<int32_t>(num_tokens());
      AddSpan(s, family.prefix, NumRows(s) - family.prefix, std::move(shared), prefix_row);
      AddTargets(family.first + i, family.prefix, prefix_row, first_row);
    }
  }

  MicroBatch Finish() {
    for (size_t i = 0; i < out_.spans.size(); ++i) out_.spans[i].blocks = out_.block_tables[i];
    return std::move(out_);
  }

 private:
  void AddSpan(const TrainingSequence& s, int64_t first, int64_t count, std::vector<int32_t> blocks,
               int32_t prefix_row) {
    kernels::SequenceSpan span;
    span.first_row = num_tokens();
    span.num_rows = count;
    span.first_position = first;
    span.prefix_first_row = prefix_row;
    while (static_cast<int64_t>(blocks.size()) * kBlock < first + count) {
      blocks.push_back(static_cast<int32_t>(out_.num_blocks++));
    }
    for (int64_t p = first; p < first + count; ++p) {
      out_.token_ids.push_back(s.token_ids[p]);
      out_.positions.push_back(static_cast<int32_t>(p));
      out_.slots.push_back(static_cast<int32_t>(blocks[p / kBlock] * kBlock + p % kBlock));
    }
    out_.spans.push_back(span);
    out_.block_tables.push_back(std::move(blocks));
    if (replay_) AddRouting(*s.routed_experts, first, count);
  }

  void AddRouting(const RoutedExperts& routed, int64_t first, int64_t count) {
    CHECK_GE(routed.num_positions(), first + count);
    out_.routed_layers = routed.num_layers;
    out_.routed_top_k = routed.top_k;
    out_.routed_id_bytes = routed.id_bytes;
    for (int64_t p = first; p < first + count; ++p) out_.routed_rows.push_back(routed.At(p));
  }

  void AddTargets(size_t index, int64_t prefix, int32_t prefix_row, int32_t first_row) {
    const TrainingSequence& s = sequences_[index];
    for (size_t p = 1; p < s.token_ids.size(); ++p) {
      if (!s.loss_mask[p]) continue;
      const int64_t before = static_cast<int64_t>(p) - 1;
      const int64_t row = before < prefix ? prefix_row + before : first_row + before - prefix;
      out_.targets.push_back({static_cast<int32_t>(row), s.token_ids[p]});
      out_.target_positions.push_back(static_cast<int32_t>(p));
    }
    out_.sequences.push_back(index);
    out_.target_offsets.push_back(out_.targets.size());
  }

  std::span<const TrainingSequence> sequences_;
  bool replay_;
  MicroBatch out_;
};

}  // namespace

model::Batch MicroBatch::batch() const {
  model::Batch batch;
  batch.token_ids = token_ids;
  batch.positions = positions;
  batch.slots = slots;
  batch.sequences = spans;
  batch.copies = copies;
  return batch;
}

std::vector<int32_t> MicroBatch::ReplayExperts() const {
  const auto rows = static_cast<int64_t>(routed_rows.size());
  std::vector<int32_t> ids(static_cast<size_t>(rows * routed_layers * routed_top_k));
  for (int64_t t = 0; t < rows; ++t) {
    const uint8_t* from = routed_rows[t];
    for (int64_t layer = 0; layer < routed_layers; ++layer) {
      int32_t* to = ids.data() + (layer * rows + t) * routed_top_k;
      for (int64_t s = 0; s < routed_top_k; ++s, from += routed_id_bytes) {
        to[s] = routed_id_bytes == 1 ? from[0] : from[0] | from[1] << 8;
      }
    }
  }
  return ids;
}

std::vector<MicroBatch> Pack(std::span<const TrainingSequence> sequences, int64_t max_tokens,
                             bool share_prefix, bool replay_routing) {
  std::vector<MicroBatch> out;
  Builder builder(sequences, replay_routing);
  for (size_t i = 0; i < sequences.size();) {
    CHECK_GE(sequences[i].token_ids.size(), size_t{2});
    CHECK(!sequences[i].loss_mask[0]) << "the first token of a sequence has no prediction";
    const Family family = NextFamily(sequences, i, max_tokens, share_prefix, replay_routing);
    if (builder.num_tokens() > 0 &&
        builder.num_tokens() + FamilyTokens(sequences, family) > max_tokens) {
      out.push_back(builder.Finish());
      builder = Builder(sequences, replay_routing);
    }
    builder.Add(family);
    i += family.count;
  }
  if (builder.num_tokens() > 0) out.push_back(builder.Finish());
  return out;
}

}  // namespace orrery::trainer
