#include "sandbox/host/helper_program.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "orchestrator/base/file.h"

// ORRERY_SANDBOX_HELPER is the path of the helper in the build folder.
asm(".section .rodata\n"
    ".balign 16\n"
    ".global orrery_sandbox_helper_begin\n"
    "orrery_sandbox_helper_begin:\n"
    ".incbin \"" ORRERY_SANDBOX_HELPER
    "\"\n"
    ".global orrery_sandbox_helper_end\n"
    "orrery_sandbox_helper_end:\n"
    ".byte 0\n"
    ".previous\n");
extern "C" const char orrery_sandbox_helper_begin[], orrery_sandbox_helper_end[];

namespace orrery::sandbox {
namespace {

#ifndef MFD_EXEC
constexpr unsigned MFD_EXEC = 0x10;  // Linux 6.3
#endif

Descriptor MakeMemfd() {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  int fd = ::memfd_create("orrery-init", kFlags | MFD_EXEC);
  if (fd < 0 && errno == EINVAL) fd = ::memfd_create("orrery-init", kFlags);
  return Descriptor(fd);
}

bool WriteAll(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t n = ::write(fd, data, size);
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) data += n, size -= static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

std::string_view HelperProgramBytes() {
  return {orrery_sandbox_helper_begin,
          static_cast<size_t>(orrery_sandbox_helper_end - orrery_sandbox_helper_begin)};
}

absl::StatusOr<Descriptor> MakeHelperProgram() {
  Descriptor program = MakeMemfd();
  const auto size = static_cast<size_t>(orrery_sandbox_helper_end - orrery_sandbox_helper_begin);
  if (!program.valid() || !WriteAll(program.get(), orrery_sandbox_helper_begin, size) ||
      ::fchmod(program.get(), 0555) != 0 ||
      ::fcntl(program.get(), F_ADD_SEALS,
              F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0) {
    return ErrnoStatus("cannot place the sandbox helper in", "a memfd", errno);
  }
  return program;
}

}  // namespace orrery::sandbox
