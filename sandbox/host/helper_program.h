// The static helper (launcher and init) that this binary carries, as an executable that no path
// names and nobody can change.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "sandbox/protocol/descriptor.h"

namespace orrery::sandbox {

// A sealed memfd with the program.
absl::StatusOr<Descriptor> MakeHelperProgram();

// Its bytes: also the probe (probe/probe.h).
std::string_view HelperProgramBytes();

}  // namespace orrery::sandbox
