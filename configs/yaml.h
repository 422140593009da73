// Reads an experiment from YAML, and writes one back. The only reader of configuration files; a
// mistake names file, line, column, key, value and the fix, and all mistakes of a file are reported
// together, a line each. Exceptions of the YAML library stay inside. Free functions, safe from any
// thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "configs/experiment.h"

namespace orrery::configs {

// Reads `path` and applies overrides, each "a.b=c" with c in YAML. Relative paths in the file
// (model.path, data.source, evals.N.data.source, files in a reward's command) that exist beside the
// file become absolute, else those that exist below the working directory; paths of overrides
// belong to the working directory alone. hf: names and paths that exist nowhere stay as they are.
absl::StatusOr<Experiment> LoadExperiment(const std::string& path,
                                          std::span<const std::string> overrides = {});

// The same from memory, paths untouched. `file_name` is for messages.
absl::StatusOr<Experiment> ParseExperiment(std::string_view text, const std::string& file_name,
                                           std::span<const std::string> overrides = {});

// Every setting as YAML; ParseExperiment reads it back to an equal value.
std::string PrintExperiment(const Experiment& experiment);

// Every key with its default, type, unit, allowed values and meaning: a YAML file of the defaults
// with comments.
std::string ExplainExperiment();

}  // namespace orrery::configs
