#include "sandbox/seccomp/filter.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "orchestrator/base/status.h"
#include "sandbox/protocol/descriptor.h"

namespace orrery::sandbox {
namespace {

using Context = std::unique_ptr<void, decltype(&seccomp_release)>;

// Past the highest number that any kernel so far has.
constexpr int kLastCall = 600;
constexpr uint64_t kNewNamespaces = 0x7e020000;  // CLONE_NEWNS ... CLONE_NEWNET, without NEWTIME
constexpr int kNetlinkRoute = 0;

absl::Status Check(int result, std::string_view what) {
  if (result == 0) return absl::OkStatus();
  return Failed("the system call filter: {}: {}", what, std::string(strerror(-result)));
}

template <typename... Comparisons>
absl::Status Allow(void* context, const char* name, Comparisons... comparisons) {
  const int call = seccomp_syscall_resolve_name(name);
  if (call < 0) return absl::OkStatus();  // another architecture's
  return Check(
      seccomp_rule_add(context, SCMP_ACT_ALLOW, call, sizeof...(comparisons), comparisons...),
      name);
}

// Which families of sockets: no AF_VSOCK, AF_PACKET, AF_ALG and others, some of which reach
// through namespaces; of netlink what getifaddrs needs.
absl::Status AllowSockets(void* context) {
  for (const uint64_t family : {AF_UNIX, AF_INET, AF_INET6}) {
    RETURN_IF_ERROR(Allow(context, "socket", SCMP_A0_32(SCMP_CMP_EQ, family)));
  }
  RETURN_IF_ERROR(Allow(context, "socket", SCMP_A0_32(SCMP_CMP_EQ, AF_NETLINK),
                        SCMP_A2_32(SCMP_CMP_EQ, kNetlinkRoute)));
  return Allow(context, "socketpair", SCMP_A0_32(SCMP_CMP_EQ, AF_UNIX));
}

// All but typing into a terminal on behalf of its user, and console fonts and keys.
absl::Status AllowIoctls(void* context) {
  static_assert(TIOCSTI < TIOCLINUX);
  RETURN_IF_ERROR(Allow(context, "ioctl", SCMP_A1_32(SCMP_CMP_LT, TIOCSTI)));
  for (uint64_t request = TIOCSTI + 1; request < TIOCLINUX; ++request) {
    RETURN_IF_ERROR(Allow(context, "ioctl", SCMP_A1_32(SCMP_CMP_EQ, request)));
  }
  return Allow(context, "ioctl", SCMP_A1_32(SCMP_CMP_GT, TIOCLINUX));
}

absl::Status AllowByArgument(void* context) {
  RETURN_IF_ERROR(
      Allow(context, "clone", SCMP_A0(SCMP_CMP_MASKED_EQ, kNewNamespaces, uint64_t{0})));
  RETURN_IF_ERROR(AllowIoctls(context));
  for (const uint64_t persona : {0x0, 0x8, 0x20000, 0x20008}) {
    RETURN_IF_ERROR(Allow(context, "personality", SCMP_A0_32(SCMP_CMP_EQ, persona)));
  }
  return Allow(context, "personality", SCMP_A0_32(SCMP_CMP_EQ, 0xffffffffu));
}

// The default answer is EPERM; programs that find a new call missing use an old one.
absl::Status AnswerUnknown(void* context) {
  for (int call = 0; call <= kLastCall; ++call) {
    char* found = seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, call);
    const bool unknown = found == nullptr;
    std::free(found);
    if (!unknown) continue;
    RETURN_IF_ERROR(Check(seccomp_rule_add(context, SCMP_ACT_ERRNO(ENOSYS), call, 0), "unknown"));
  }
  return absl::OkStatus();
}

// In front of libseccomp's program: numbers above all those it was told of. x32's, which have bit
// 30 set, are left to it.
std::vector<sock_filter> AnswerBeyond() {
  return {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, seccomp_arch_native(), 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, kLastCall, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
  };
}

absl::StatusOr<std::string> Export(void* context) {
  const Descriptor file(::memfd_create("filter", MFD_CLOEXEC));
  if (!file.valid()) return Failed("the system call filter: no memfd");
  RETURN_IF_ERROR(Check(seccomp_export_bpf(context, file.get()), "export"));
  const auto size = static_cast<size_t>(::lseek(file.get(), 0, SEEK_END));
  std::string program(size, '\0');
  if (::pread(file.get(), program.data(), size, 0) != static_cast<ssize_t>(size)) {
    return Failed("the system call filter: cannot be read back");
  }
  return program;
}

absl::StatusOr<std::string> MakeLauncherFilter() {
  const Context context(seccomp_init(SCMP_ACT_ERRNO(EPERM)), &seccomp_release);
  if (context == nullptr) return Failed("the system call filter: libseccomp cannot begin");
  void* filter = context.get();
  RETURN_IF_ERROR(
      Check(seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_ERRNO(EPERM)), "badarch"));
  // A tree instead of a list: 9 comparisons a call instead of hundreds.
  RETURN_IF_ERROR(Check(seccomp_attr_set(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2), "optimize"));
  for (const std::string& name : AllowedCalls()) RETURN_IF_ERROR(Allow(filter, name.c_str()));
  for (const std::string& name : LauncherCalls()) RETURN_IF_ERROR(Allow(filter, name.c_str()));
  RETURN_IF_ERROR(Allow(filter, "clone3"));
  RETURN_IF_ERROR(AllowSockets(filter));
  RETURN_IF_ERROR(AllowByArgument(filter));
  RETURN_IF_ERROR(AnswerUnknown(filter));
  ASSIGN_OR_RETURN(const std::string program, Export(filter));
  const std::vector<sock_filter> front = AnswerBeyond();
  return std::string(reinterpret_cast<const char*>(front.data()),
                     front.size() * sizeof(sock_filter)) +
         program;
}

absl::StatusOr<std::string> MakeCommandFilter() {
  const Context context(seccomp_init(SCMP_ACT_ALLOW), &seccomp_release);
  if (context == nullptr) return Failed("the system call filter: libseccomp cannot begin");
  void* filter = context.get();
  RETURN_IF_ERROR(
      Check(seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_ERRNO(EPERM)), "badarch"));
  for (const std::string& name : LauncherCalls()) {
    const int call = seccomp_syscall_resolve_name(name.c_str());
    if (call < 0) continue;  // another architecture's
    RETURN_IF_ERROR(Check(seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), call, 0), name));
  }
  RETURN_IF_ERROR(
      Check(seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0), "clone3"));
  return Export(filter);
}

}  // namespace

absl::StatusOr<SeccompFilters> MakeSeccompFilters() {
  SeccompFilters filters;
  ASSIGN_OR_RETURN(filters.launcher, MakeLauncherFilter());
  ASSIGN_OR_RETURN(filters.command, MakeCommandFilter());
  return filters;
}

}  // namespace orrery::sandbox
