// get, put, stat, list, link and remove, run as a command's process inside the sandbox: as its
// user, under its limits and filter, with its view of files. Whatever a path leads through, it
// leads nowhere outside.
#pragma once

#include "sandbox/protocol/error.h"
#include "sandbox/protocol/messages.h"

namespace orrery::sandbox {

// get writes the file to standard output; put reads it from standard input; stat and list write
// FileEntry records, each an encoded string.
Error RunFileCommand(const StartRequest& request);

}  // namespace orrery::sandbox
