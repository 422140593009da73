// A new root: of a blank sandbox its first one, after a snapshot one above the frozen files.
#pragma once

#include "sandbox/protocol/error.h"

namespace orrery::sandbox {

// Moves init, and with it all that it starts later, to `root`, a detached mount; /proc, /sys and
// /dev go along as they are. REQUIRES: nothing but init runs in the sandbox.
Error MoveToNewRoot(int root);

}  // namespace orrery::sandbox
