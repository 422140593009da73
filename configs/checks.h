// Checks that look at several settings at once. All mistakes are reported together, a line each,
// with the place of the setting where it was set. Pure functions.
#pragma once

#include "absl/status/status.h"
#include "configs/experiment.h"

namespace orrery::configs {

// What no command can use; ParseExperiment calls it.
absl::Status CheckExperiment(const Experiment& experiment);

// What `run` needs besides. It refuses sampling that changes the distribution (DESIGN section 5):
// evaluation and serving allow it.
absl::Status CheckForTraining(const Experiment& experiment);

// What `sft` needs besides.
absl::Status CheckForSft(const Experiment& experiment);

}  // namespace orrery::configs
