// Programs of another architecture: qemu-user, registered with the binfmt_misc of the sandbox's own
// user namespace (Linux 6.7), so that the host knows nothing of it. The kernel keeps the emulator's
// program open (flag F): it need not be in the image.
#pragma once

#include "sandbox/protocol/descriptor.h"
#include "sandbox/protocol/error.h"
#include "sandbox/protocol/messages.h"

namespace orrery::sandbox {

// In the launcher, which sees the host's tree. Fine where the request names no emulator.
Error OpenEmulator(const CreateRequest& request, Descriptor& emulator);

// In the sandbox's root, with /proc mounted and not yet sealed: what seals /proc/sys hides
// binfmt_misc below it, mounted still.
Error RegisterEmulator(const CreateRequest& request, int emulator);

}  // namespace orrery::sandbox
