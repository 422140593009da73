#include "sandbox/launcher/enter.h"

#include <fcntl.h>
#include <grp.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstring>

#include "sandbox/launcher/emulation.h"
#include "sandbox/launcher/inside_mounts.h"
#include "sandbox/launcher/system.h"
#include "sandbox/protocol/frame.h"

namespace orrery::sandbox {
namespace {

constexpr uint64_t kMaxDetachedMounts = 32;
constexpr int kControlFd = 3, kInitFd = 4;

Error WaitForGo(int go) {
  char byte = 0;
  ssize_t n;
  do {
    n = ::read(go, &byte, 1);
  } while (n < 0 && errno == EINTR);
  return n == 1 ? Error{} : Error{ECANCELED, "the launcher gave up"};
}

Error BecomeRoot() {
  if (::setgroups(0, nullptr) != 0 || ::setresgid(0, 0, 0) != 0 || ::setresuid(0, 0, 0) != 0) {
    return LastError("becoming the sandbox's root");
  }
  return {};
}

// The network namespace has a loopback device and nothing else; it begins switched off.
Error RaiseLoopback() {
  Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return LastError("socket for the loopback device");
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  if (::ioctl(socket.get(), SIOCSIFFLAGS, &request) != 0) return LastError("raising loopback");
  return {};
}

Error WriteSysctl(const char* path, uint64_t value) {
  Descriptor file(::open(path, O_WRONLY | O_CLOEXEC));
  if (!file.valid()) return errno == ENOENT ? Error{} : LastError(path);
  const std::string text = std::to_string(value);
  return ::write(file.get(), text.data(), text.size()) < 0 ? LastError(path) : Error{};
}

// Kernel objects that are counted by user over the whole host: without these one sandbox takes them
// all. The user namespace is the sandbox's own, and its own processes may not write them.
Error CapUserObjects(uint64_t most) {
  // No new namespaces (those that exist stay); every detached mount of ours counts as one.
  for (const char* kind : {"user", "pid", "net", "ipc", "uts", "cgroup", "time"}) {
    ORRERY_TRY(WriteSysctl((std::string("/proc/sys/user/max_") + kind + "_namespaces").c_str(), 0));
  }
  ORRERY_TRY(WriteSysctl("/proc/sys/user/max_mnt_namespaces", kMaxDetachedMounts));
  ORRERY_TRY(WriteSysctl("/proc/sys/user/max_inotify_instances", most));
  ORRERY_TRY(WriteSysctl("/proc/sys/user/max_inotify_watches", most * 256));
  ORRERY_TRY(WriteSysctl("/proc/sys/user/max_fanotify_groups", most));
  return WriteSysctl("/proc/sys/user/max_fanotify_marks", most * 256);
}

Error PinTo(const std::vector<uint32_t>& cpus) {
  if (cpus.empty()) return {};
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const uint32_t cpu : cpus) {
    if (cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  }
  return ::sched_setaffinity(0, sizeof(set), &set) == 0 ? Error{} : LastError("sched_setaffinity");
}

Error Prepare(const EnterArguments& arguments) {
  const CreateRequest& request = *arguments.request;
  ORRERY_TRY(WaitForGo(arguments.go));
  ORRERY_TRY(BecomeRoot());
  // Now, so that its root is the cgroup that the launcher has just put this process in.
  if (::unshare(CLONE_NEWCGROUP) != 0) return LastError("unshare of the cgroup namespace");
  if (::sethostname(request.hostname.data(), request.hostname.size()) != 0) {
    return LastError("sethostname");
  }
  ORRERY_TRY(RaiseLoopback());
  ORRERY_TRY(MountInside(request, arguments.root, arguments.devices));
  ORRERY_TRY(RegisterEmulator(request, arguments.emulator));
  return PinTo(request.cpus);
}

// Leaves nothing open but the control socket and init's program.
Error BecomeInit(const EnterArguments& arguments) {
  // Above the two places first: one of them may be in the other's.
  const int control = ::fcntl(arguments.control, F_DUPFD_CLOEXEC, 10);
  const int init = ::fcntl(arguments.init, F_DUPFD_CLOEXEC, 10);
  if (control < 0 || init < 0 || ::dup2(control, kControlFd) < 0 ||
      ::dup3(init, kInitFd, O_CLOEXEC) < 0) {
    return LastError("placing init's descriptors");
  }
  system::CloseRange(kInitFd + 1, ~0u);
  char name[] = "init";
  char* argv[] = {name, nullptr};
  char* envp[] = {nullptr};
  system::ExecveAt(kInitFd, argv, envp);
  return LastError("executing init");
}

}  // namespace

void EnterSandbox(const EnterArguments& arguments) {
  Error error = Prepare(arguments);
  if (!error) error = CapUserObjects(arguments.request->max_user_objects);
  if (!error) error = SealKernelFiles();
  int control = arguments.control;
  if (!error) {
    error = BecomeInit(arguments);
    control = kControlFd;
  }
  SendFrame(control, static_cast<uint16_t>(MessageType::kFailure),
            Encode(Failure{error.number, error.what}), {});
  ::_exit(1);
}

}  // namespace orrery::sandbox
