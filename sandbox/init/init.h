// PID 1 of a sandbox: starts commands, reaps whatever is orphaned to it, reports how commands end,
// and ends when the host hangs up (the kernel then kills all that is left).
//
// It is a target for what runs in the sandbox, so: it is not dumpable (no ptrace, /proc/1/mem or
// pidfd_getfd without CAP_SYS_PTRACE, which nothing inside has), it keeps no descriptor that a
// command inherits, it takes orders from the control socket alone, and of the sandbox's files it
// reads /etc/passwd and /etc/group alone, in the command's own process.
#pragma once

namespace orrery::sandbox {

int RunInit(int control);

}  // namespace orrery::sandbox
