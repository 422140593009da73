// What the CPU's executor takes of memory while it trains, beside weights, gradients and the
// optimizer: bounds from shapes alone, for planning. Pure functions; bytes.
#pragma once

#include <cstdint>

#include "trainer/batch_bounds.h"
#include "trainer/model/model_spec.h"

namespace orrery::trainer {

struct CpuTrainingBytes {
  int64_t activations = 0;  // of the micro-batches at work at a time, with their gradients
  int64_t partial = 0;      // gradients of small models, of micro-batches until they are added

  int64_t sum() const { return activations + partial; }
};

// Whether micro-batches run side by side, one a thread, and not one after another.
bool RunsMicroBatchesSideBySide(int64_t num_weights);

// Of those, how many are worked on before their gradients are added: enough for long and short ones
// to even out over the threads.
int64_t MicroBatchesInFlight(int64_t threads);

// Of one micro-batch that is learnt from: TrainingOps::activation_bytes, and what experts keep.
int64_t ActivationBytes(const model::ModelSpec& spec, int64_t rows, bool recompute);

CpuTrainingBytes TrainingBytesOnCpu(const model::ModelSpec& spec, int64_t num_weights,
                                    const BatchBounds& bounds, bool recompute, int64_t threads);

}  // namespace orrery::trainer
