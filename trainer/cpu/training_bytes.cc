#include "trainer/cpu/training_bytes.h"

#include <algorithm>

#include "trainer/cpu/arena.h"

namespace orrery::trainer {
namespace {

// Below this many bytes of gradients a buffer of them for every micro-batch costs little.
constexpr int64_t kSmallModelBytes = 8 << 20;
constexpr int64_t kFloat = sizeof(float);
// The least that an arena has, and no more than a part of a block lies idle at the end of each.
constexpr int64_t kTwoArenas = 2 * Arena::kBlockFloats * kFloat;

// What a row keeps in the arena, in one layer: both norms with their sums, projections, MLP.
int64_t ArenaFloats(const model::ModelSpec& spec, int64_t layer) {
  const int64_t attention = spec.heads.qkv_width() * (spec.qk_norm ? 2 : 1) + spec.heads.q_width();
  const int64_t mlp = spec.moe(layer) ? spec.num_experts : 3 * spec.intermediate_size;
  return 6 * spec.hidden_size + attention + mlp;
}

// And what experts keep outside of it: Routing and ExpertsState.
int64_t ExpertFloats(const model::ModelSpec& spec, int64_t layer) {
  if (!spec.moe(layer)) return 0;
  const int64_t slot = 2 * spec.hidden_size + 3 * spec.expert_width + 3;
  return spec.num_experts + spec.experts_per_token * slot;
}

// Each but the last has no room for the next sequence, and neighbours have more than one may have.
int64_t MostMicroBatches(const BatchBounds& bounds) {
  const int64_t most = bounds.micro_batch_tokens;
  const int64_t filled = std::max(most - bounds.sequence_tokens + 1, most / 2);
  return bounds.step_tokens / std::max<int64_t>(filled, 1) + 1;
}

}  // namespace

bool RunsMicroBatchesSideBySide(int64_t num_weights) {
  return num_weights * kFloat <= kSmallModelBytes;
}

int64_t MicroBatchesInFlight(int64_t threads) { return std::max<int64_t>(64, 4 * threads); }

int64_t ActivationBytes(const model::ModelSpec& spec, int64_t rows, bool recompute) {
  const int64_t d = spec.hidden_size;
  int64_t all = 0, largest = 0, experts = 0;
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    const int64_t floats = ArenaFloats(spec, layer), outside = ExpertFloats(spec, layer);
    all += floats + outside;
    largest = std::max(largest, floats + outside);
    experts = std::max(experts, outside);
  }
  // Embeddings, the last norm and sum, their gradients; between blocks the gradient of each input,
  // and where blocks are forgotten its two values. The gradients inside of one block, and what its
  // experts' backward needs at a time.
  const int64_t kept = recompute ? 3 * d * spec.num_layers + largest : all + d * spec.num_layers;
  const int64_t row = 8 * d + kept + largest + experts;
  const int64_t keys_and_values = 2 * spec.heads.kv_width();
  return rows * (row + keys_and_values) * kFloat + kTwoArenas;
}

CpuTrainingBytes TrainingBytesOnCpu(const model::ModelSpec& spec, int64_t num_weights,
                                    const BatchBounds& bounds, bool recompute, int64_t threads) {
  const int64_t rows = LargestMicroBatchRows(bounds);
  CpuTrainingBytes bytes;
  bytes.activations = ActivationBytes(spec, rows, recompute);
  if (!RunsMicroBatchesSideBySide(num_weights)) return bytes;
  const int64_t micros = MostMicroBatches(bounds);
  bytes.activations *= std::min(threads, micros);
  bytes.partial = std::min(micros, MicroBatchesInFlight(threads)) * num_weights * kFloat;
  return bytes;
}

}  // namespace orrery::trainer
