// Whether a checkpoint is as it was written, asked before anything of it is used.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "orchestrator/loop/loop_state.h"
#include "orchestrator/run/checkpoints.h"

namespace orrery::commands {

enum class CheckpointUse {
  kState,  // all of it, for going on with its run
  kModel,  // what any model's folder has
};

// Every file that the use reads, against checksums.txt. A checkpoint of a version that wrote none
// gives one line of warning; a folder that is no run's checkpoint (a model from elsewhere) nothing.
absl::Status CheckCheckpoint(const std::string& folder, CheckpointUse use);

// Where the run stood at the end of a step, after the whole checkpoint was checked; errors as
// below.
absl::StatusOr<LoopState> ReadCheckpoint(const run::Checkpoints& checkpoints, int64_t step);

// A resume's error about its checkpoint with the way out: an earlier one where there is one.
absl::Status UnusableCheckpoint(const absl::Status& status, const run::Checkpoints& checkpoints,
                                int64_t step);

}  // namespace orrery::commands
