// Who owns a folder of STATE/hosts. A host holds a lock on its record for its life; besides, the
// record says boot, process and start time, for locks that a descriptor in some child kept alive.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sandbox/protocol/descriptor.h"

namespace orrery::sandbox {

// Makes the folder with its record, synced and locked for the descriptor's life.
absl::StatusOr<Descriptor> TakeOwnership(const std::string& folder);

// True where the owner of the folder lives. A folder without a whole record was just begun or is
// broken: it counts as owned while somebody locks its record.
bool OwnerLives(const std::string& folder);

}  // namespace orrery::sandbox
