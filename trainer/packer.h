// Cuts training sequences into micro-batches of packed tokens. Sequences of one group that begin
// with the same prompt share its tokens: they are computed once, and the others' attention reads
// their keys and values. Packing changes no log-prob and no gradient beyond rounding of sums.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "orchestrator/types.h"
#include "trainer/model/transformer.h"

namespace orrery::trainer {

// A trained token: the hidden row that predicts it, and its id.
struct Target {
  int32_t row = 0;
  int32_t token_id = 0;
};

// One packed micro-batch; owns the arrays that a model::Batch borrows.
struct MicroBatch {
  std::vector<int32_t> token_ids, positions, slots;
  std::vector<std::vector<int32_t>> block_tables;  // one a span
  std::vector<kernels::SequenceSpan> spans;
  std::vector<kernels::KvCopy> copies;
  int64_t num_blocks = 0;

  // Routing replay: where each row's recorded experts lie, [layers with experts, top_k] ids as
  // RoutedExperts has them; borrowed from the sequences. Empty without replay.
  std::vector<const uint8_t*> routed_rows;
  int32_t routed_layers = 0, routed_top_k = 0, routed_id_bytes = 0;

  // Trained tokens, by sequence: those of sequences[i] are [target_offsets[i],
  // target_offsets[i+1]).
  std::vector<size_t> sequences;  // indices into the packed span
  std::vector<Target> targets;
  std::vector<int32_t> target_positions;  // index of the token in its sequence
  std::vector<size_t> target_offsets;

  model::Batch batch() const;
  bool replays_routing() const { return !routed_rows.empty(); }
  // For Batch::replay_experts: [layers with experts, T, top_k].
  std::vector<int32_t> ReplayExperts() const;
};

// Greedy in the given order: a micro-batch closes before it would pass max_tokens (a longer
// sequence gets one to itself). Depends on the sequences alone. REQUIRES: every sequence has two
// tokens or more, and its first token is not trained.
// With replay_routing it has the routed experts of all its tokens but the last, and prompts are
// shared only where their routing is one.
std::vector<MicroBatch> Pack(std::span<const TrainingSequence> sequences, int64_t max_tokens,
                             bool share_prefix, bool replay_routing = false);

}  // namespace orrery::trainer
