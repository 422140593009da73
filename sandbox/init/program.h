// Becoming the program of a command: its environment, and where it lies.
#pragma once

#include "sandbox/init/privileges.h"
#include "sandbox/protocol/error.h"
#include "sandbox/protocol/messages.h"

namespace orrery::sandbox {

// Returns only where it cannot be executed.
Error RunProgram(const StartRequest& request, const User& user);

}  // namespace orrery::sandbox
