// The static helper (launcher and init) that this binary carries, as an executable that no path
// names and nobody can change.
#pragma once

#include "absl/status/statusor.h"
#include "sandbox/protocol/descriptor.h"

namespace orrery::sandbox {

// A sealed memfd with the program.
absl::StatusOr<Descriptor> MakeHelperProgram();

}  // namespace orrery::sandbox
