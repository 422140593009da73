#include "sandbox/launcher/install_filter.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <vector>

namespace orrery::sandbox {

Error InstallFilter(const std::string& filter) {
  std::vector<sock_filter> program(filter.size() / sizeof(sock_filter));
  std::memcpy(program.data(), filter.data(), program.size() * sizeof(sock_filter));
  sock_fprog argument{static_cast<unsigned short>(program.size()), program.data()};
  // As runc does it: a program that asks for the slow mitigations gets them by prctl.
  if (::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &argument) ==
      0) {
    return {};
  }
  return LastError("installing the system call filter");
}

}  // namespace orrery::sandbox
