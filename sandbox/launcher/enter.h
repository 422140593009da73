// The first process of a sandbox, between clone3 and init: it mounts what belongs in the sandbox,
// makes it the root, and becomes init. It runs our code alone, with every capability in its own
// user namespace and none outside.
#pragma once

#include "sandbox/protocol/error.h"
#include "sandbox/protocol/messages.h"

namespace orrery::sandbox {

struct EnterArguments {
  const CreateRequest* request = nullptr;
  int go = -1;       // one byte arrives when id maps and cgroups are set; end of file: give up
  int control = -1;  // init's end of the control socket
  int root = -1;     // detached mounts
  int devices = -1;
  int emulator = -1;  // the program that an image of another architecture needs; -1: none
  int init = -1;      // the program
};

// Never returns: becomes init, or reports a Failure on the control socket and exits.
[[noreturn]] void EnterSandbox(const EnterArguments& arguments);

}  // namespace orrery::sandbox
