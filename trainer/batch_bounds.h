// The largest micro-batches that an experiment can bring to the trainer, made up from its settings:
// what memory is planned with before there is any data. The packer makes them, as it will make the
// real ones.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/packer.h"

namespace orrery::trainer {

struct BatchBounds {
  int64_t micro_batch_tokens = 0;
  int64_t sequence_tokens = 0;  // of the longest sequence, prompt and response
  int64_t prompt_tokens = 0;    // of these, those that the samples of a group share; 0: nothing
  int64_t samples = 1;          // of a group
  int64_t step_tokens = 0;      // of all sequences of a step; 0: without bound
};

// Rows of the largest: trainer.micro_batch_tokens, or what a longer sequence or a small step has.
int64_t LargestMicroBatchRows(const BatchBounds& bounds);

// Full micro-batches of the different kinds that take most of one thing or another: of long and of
// short sequences, and of one shared prompt.
std::vector<MicroBatch> LargestMicroBatches(const BatchBounds& bounds);

}  // namespace orrery::trainer
