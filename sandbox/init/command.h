// Starting one command: pipes, a process in the command's own cgroup, its user, capabilities and
// system call filter, then its program (or one of init's file operations).
#pragma once

#include <sys/types.h>

#include "sandbox/protocol/descriptor.h"
#include "sandbox/protocol/error.h"
#include "sandbox/protocol/messages.h"

namespace orrery::sandbox {

struct StartedCommand {
  pid_t pid = 0;
  Descriptor output;        // what it writes; of a terminal its other end
  Descriptor error_output;  // of OutputMode::kSeparate
  Descriptor input;
  Descriptor failure;  // an encoded Failure where the program could not be started; else empty
};

// `cgroup`: a folder of the v2 hierarchy; the process is born in it.
Error StartCommand(const StartRequest& request, const InitConfig& config, int cgroup,
                   StartedCommand& started);

}  // namespace orrery::sandbox
