// Groups of scored episodes to what the trainer takes. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "configs/experiment.h"
#include "orchestrator/types.h"

namespace orrery {

// Whether all scored members have one score, so that their advantages are 0.
bool IsZeroStd(const EpisodeGroup& group);

struct BatcherOptions {
  bool drop_zero_std_groups = true;  // they leave the batch and its denominators
  bool mask_truncated = false;       // truncated: mask (they keep their place in the baseline)
  int64_t optimizer_steps = 1;       // batches to make, whole groups each
};
BatcherOptions ToBatcher(const configs::Experiment& experiment);

// Sequences of scored episodes, in submission order, cut into batches of about equal token counts.
// Batches without a trained token are left out. REQUIRES: advantages are set.
std::vector<TrainingBatch> MakeBatches(const std::vector<EpisodeGroup>& groups,
                                       const BatcherOptions& options);

// Every episode that came to a score, in one batch: what is measured of a rollout in which no group
// has a signal, and MakeBatches leaves nothing.
TrainingBatch MakeMeasuredBatch(const std::vector<EpisodeGroup>& groups);

// One sample as a sequence: ids of all segments, trained where the policy wrote.
TrainingSequence ToSequence(const Episode& episode, const Sample& sample);

}  // namespace orrery
