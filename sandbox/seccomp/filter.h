// The system call filter of a sandbox, as a program of the kernel's (struct sock_filter[] in
// bytes).
//
// An allow-list for the kernel's own architecture. What answers what:
//   on the list                          allowed (some by argument: sockets, clone, ioctl,
//   personality) clone3, and numbers that this build  ENOSYS: the C library then uses what it used
//   before of libseccomp does not know every other call                     EPERM another
//   architecture's entry         EPERM (i386 and x32 on x86-64, arm32 on arm64)
// Emulated programs (qemu-user) make calls of the kernel's architecture, so there is one filter.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace orrery::sandbox {

//
// It comes in two parts, because installing the large one takes a third of a millisecond: the
// launcher has it for its life and hands it down, and each command adds a small one that takes back
// what launcher and init need themselves.
struct SeccompFilters {
  std::string launcher;  // the list above, kLauncherCalls and clone3
  std::string command;   // refuses kLauncherCalls, answers clone3 with ENOSYS, allows all else
};
absl::StatusOr<SeccompFilters> MakeSeccompFilters();

// The names on the list of a command, sorted, for the OCI exporter and the tests.
const std::vector<std::string>& AllowedCalls();
// What launcher and init need besides.
const std::vector<std::string>& LauncherCalls();

}  // namespace orrery::sandbox
