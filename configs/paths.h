// Paths in an experiment's values: what lies beside the YAML file is found from any working
// directory.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "configs/experiment.h"

namespace orrery::configs {

// A relative `path` that exists in `folder`, or else below the working directory, as an absolute
// one; anything else (hf: names, story_math, what exists nowhere) as it is.
std::string ResolvePath(const std::string& path, const std::filesystem::path& folder);

// A command line in which every plain word (no quotes, no backslash) that is a file in `folder` is
// its absolute path. The first word only where it has a slash: a bare name is looked up in PATH.
std::string ResolveCommand(std::string_view command, const std::filesystem::path& folder);

// Both, for every path of the experiment. Values of overrides belong to the working directory
// alone.
void ResolvePaths(const std::filesystem::path& folder, Experiment& experiment);

}  // namespace orrery::configs
