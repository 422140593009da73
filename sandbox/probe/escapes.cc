#include <fcntl.h>
#include <linux/fs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "sandbox/launcher/system.h"
#include "sandbox/probe/probe.h"

namespace orrery::sandbox {
namespace {

int num_open = 0;

void Report(const char* name, bool held, const std::string& detail) {
  std::printf("%-28s %s %s\n", name, held ? "held" : "OPEN", detail.c_str());
  if (!held) ++num_open;
}

// An attempt that must fail: `result` is a system call's.
void MustFail(const char* name, long result) {
  const int error = errno;
  Report(name, result < 0, result < 0 ? std::strerror(error) : "it worked");
}

// An attempt that must fail with one error.
void MustAnswer(const char* name, long result, int wanted) {
  const int error = errno;
  Report(name, result < 0 && error == wanted, result < 0 ? std::strerror(error) : "it worked");
}

void TryOpen(const char* name, const char* path, int flags) {
  const int fd = ::open(path, flags | O_CLOEXEC);
  // Absent is as good as refused.
  MustFail(name, fd);
  if (fd >= 0) ::close(fd);
}

void KernelFiles() {
  TryOpen("core_pattern", "/proc/sys/kernel/core_pattern", O_WRONLY);
  TryOpen("modprobe path", "/proc/sys/kernel/modprobe", O_WRONLY);
  TryOpen("sysrq-trigger", "/proc/sysrq-trigger", O_WRONLY);
  TryOpen("user limits", "/proc/sys/user/max_inotify_instances", O_WRONLY);
  TryOpen("binfmt register", "/proc/sys/fs/binfmt_misc/register", O_WRONLY);
  TryOpen("uevent_helper", "/sys/kernel/uevent_helper", O_WRONLY);
  TryOpen("cgroup release_agent", "/sys/fs/cgroup/release_agent", O_WRONLY);
  TryOpen("host memory", "/dev/mem", O_RDONLY);
  TryOpen("kernel messages", "/dev/kmsg", O_RDONLY);
  char byte;
  const int kcore = ::open("/proc/kcore", O_RDONLY);
  Report("/proc/kcore", kcore < 0 || ::read(kcore, &byte, 1) <= 0, "empty or absent");
}

void Namespaces() {
  MustFail("mount", ::syscall(SYS_mount, "none", "/tmp", "tmpfs", 0, nullptr));
  MustFail("remount /proc/sys",
           ::syscall(SYS_mount, nullptr, "/proc/sys", nullptr, 0x1020, nullptr));
  MustFail("umount", ::syscall(SYS_umount2, "/proc/sys", 2));
  MustFail("fsopen", system::FsOpen("tmpfs"));
  MustFail("open_tree", system::OpenTree(AT_FDCWD, "/", OPEN_TREE_CLONE));
  MustFail("pivot_root", system::PivotRoot("/", "/"));
  MustFail("unshare user", ::unshare(CLONE_NEWUSER));
  MustFail("unshare mount", ::unshare(CLONE_NEWNS));
  MustFail("clone user", ::syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0));
  clone_args args{};
  args.exit_signal = SIGCHLD;
  MustAnswer("clone3", system::Clone3(args), ENOSYS);
  const int ns = ::open("/proc/self/ns/mnt", O_RDONLY);
  MustFail("setns", ::setns(ns, 0));
}

void Init() {
  TryOpen("init's memory", "/proc/1/mem", O_RDWR);
  TryOpen("init's descriptors", "/proc/1/fd/3", O_RDWR);
  TryOpen("init's environment", "/proc/1/environ", O_RDONLY);
  TryOpen("init's root", "/proc/1/root/etc", O_RDONLY);
  TryOpen("init's program", "/proc/1/exe", O_RDONLY);
  MustFail("ptrace init", ::ptrace(PTRACE_ATTACH, 1, nullptr, nullptr));
  MustFail("seize init", ::ptrace(PTRACE_SEIZE, 1, nullptr, nullptr));
  char byte = 0;
  iovec here{&byte, 1}, there{reinterpret_cast<void*>(0x400000), 1};
  MustFail("process_vm_writev", ::process_vm_writev(1, &here, 1, &there, 1, 0));
  MustFail("process_vm_readv", ::process_vm_readv(1, &here, 1, &there, 1, 0));
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, 1, 0));
  MustFail("pidfd_getfd", ::syscall(SYS_pidfd_getfd, pidfd, 3, 0));
  ::kill(1, SIGKILL);
  ::kill(1, SIGSTOP);
  Report("kill init", ::kill(1, 0) == 0, "it lives");
}

void TrySocket(const char* name, int family, int type, int protocol) {
  const int fd = ::socket(family, type, protocol);
  MustFail(name, fd);
  if (fd >= 0) ::close(fd);
}

// A packet to an address outside.
void TryRoute(const char* name, const sockaddr* address, socklen_t size) {
  const int fd = ::socket(address->sa_family, SOCK_DGRAM, 0);
  MustFail(name, ::connect(fd, address, size));
  ::close(fd);
}

void AddInterface() {
  struct {
    nlmsghdr header;
    ifinfomsg message;
  } request{};
  request.header = {sizeof(request), RTM_NEWLINK, NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE, 1, 0};
  const int fd = ::socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
  sockaddr_nl kernel{};
  kernel.nl_family = AF_NETLINK;
  ::sendto(fd, &request, sizeof(request), 0, reinterpret_cast<sockaddr*>(&kernel), sizeof(kernel));
  struct {
    nlmsghdr header;
    nlmsgerr error;
    char rest[256];
  } answer{};
  const ssize_t n = ::recv(fd, &answer, sizeof(answer), 0);
  errno = n > 0 ? -answer.error.error : errno;
  MustFail("new interface", n > 0 && answer.error.error == 0 ? 0 : -1);
  ::close(fd);
}

// A listener of the host, which the caller named.
void ConnectAbstract() {
  const char* name = std::getenv("PROBE_SOCKET");
  if (name == nullptr) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path + 1, name, sizeof(address.sun_path) - 2);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + std::strlen(name));
  MustFail("host's abstract socket", ::connect(fd, reinterpret_cast<sockaddr*>(&address), size));
  ::close(fd);
}

void Network() {
  TrySocket("raw socket", AF_INET, SOCK_RAW, IPPROTO_ICMP);
  TrySocket("packet socket", AF_PACKET, SOCK_RAW, 0);
  TrySocket("vsock", 40, SOCK_STREAM, 0);
  TrySocket("AF_ALG", 38, SOCK_SEQPACKET, 0);
  TrySocket("AF_BLUETOOTH", 31, SOCK_RAW, 1);
  TrySocket("AF_KEY", 15, SOCK_RAW, 2);
  TrySocket("netlink uevent", AF_NETLINK, SOCK_RAW, NETLINK_KOBJECT_UEVENT);
  TrySocket("netlink audit", AF_NETLINK, SOCK_RAW, NETLINK_AUDIT);
  TrySocket("netlink netfilter", AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER);
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(53);
  v4.sin_addr.s_addr = htonl(0x01010101);
  TryRoute("route out, IPv4", reinterpret_cast<sockaddr*>(&v4), sizeof(v4));
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(53);
  v6.sin6_addr.s6_addr[0] = 0x26;
  TryRoute("route out, IPv6", reinterpret_cast<sockaddr*>(&v6), sizeof(v6));
  AddInterface();
  ConnectAbstract();
}

void Devices() {
  MustFail("mknod char", ::mknod("/tmp/probe-mem", S_IFCHR | 0600, makedev(1, 1)));
  MustFail("mknod block", ::mknod("/tmp/probe-disk", S_IFBLK | 0600, makedev(8, 0)));
  MustFail("mknod whiteout", ::mknod("/tmp/probe-white", S_IFCHR, 0));
  MustFail("trusted xattr", ::setxattr("/tmp", "trusted.overlay.opaque", "y", 1, 0));
  TryOpen("fuse", "/dev/fuse", O_RDWR);
  TryOpen("loop", "/dev/loop-control", O_RDWR);
  TryOpen("kvm", "/dev/kvm", O_RDWR);
}

#if defined(__x86_64__)
long OldEntry(long number) {
  long result;
  asm volatile("int $0x80" : "=a"(result) : "a"(number) : "memory", "r8", "r9", "r10", "r11");
  return result;
}
#endif

void Calls() {
  char buffer[128] = {};
  MustFail("bpf", ::syscall(SYS_bpf, 0, buffer, sizeof(buffer)));
  MustFail("perf_event_open", ::syscall(SYS_perf_event_open, buffer, 0, -1, -1, 0));
  MustFail("io_uring_setup", ::syscall(SYS_io_uring_setup, 1, buffer));
  MustFail("userfaultfd", ::syscall(SYS_userfaultfd, 0));
  MustFail("add_key", ::syscall(SYS_add_key, "user", "probe", "x", 1, -3));
  MustFail("keyctl", ::syscall(SYS_keyctl, 0, -3, 1));
  MustFail("request_key", ::syscall(SYS_request_key, "user", "probe", nullptr, 0));
  MustFail("io_setup", ::syscall(SYS_io_setup, 1, buffer));
  MustFail("open_by_handle_at", ::syscall(SYS_open_by_handle_at, AT_FDCWD, buffer, 0));
  MustFail("init_module", ::syscall(SYS_init_module, buffer, 1, ""));
  MustFail("kexec_load", ::syscall(SYS_kexec_load, 0, 0, nullptr, 0));
  MustFail("reboot", ::syscall(SYS_reboot, 0, 0, 0, nullptr));
  MustFail("swapon", ::syscall(SYS_swapon, "/tmp", 0));
  MustFail("settimeofday", ::syscall(SYS_settimeofday, buffer, nullptr));
  MustFail("sethostname", ::sethostname("probe", 5));
  MustFail("syslog", ::syscall(SYS_syslog, 3, buffer, 64));
  MustFail("quotactl", ::syscall(SYS_quotactl, 0, nullptr, 0, nullptr));
  MustFail("TIOCSTI", ::ioctl(0, TIOCSTI, "x"));
  MustAnswer("unknown call", ::syscall(999), ENOSYS);
  MustAnswer("far unknown call", ::syscall(100000), ENOSYS);
#if defined(__x86_64__)
  errno = EPERM;
  Report("i386 entry", OldEntry(20) < 0, "getpid by int 0x80");
  MustFail("x32 entry", ::syscall(0x40000000 | SYS_getpid));
#endif
}

// Whose project quota a folder and what is made in it count for.
void Projects() {
  const int root = ::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  fsxattr attributes{};
  ::ioctl(root, FS_IOC_FSGETXATTR, &attributes);
  ++attributes.fsx_projid;
  MustFail("project of the root", ::ioctl(root, FS_IOC_FSSETXATTR, &attributes));
  --attributes.fsx_projid;
  attributes.fsx_xflags ^= FS_XFLAG_PROJINHERIT;
  MustFail("project of new files", ::ioctl(root, FS_IOC_FSSETXATTR, &attributes));
  ::close(root);
}

std::string Line(const char* path, const std::string& key) {
  FILE* file = std::fopen(path, "re");
  char line[256];
  std::string found;
  while (file != nullptr && std::fgets(line, sizeof(line), file) != nullptr) {
    if (std::strncmp(line, key.c_str(), key.size()) == 0) found = line + key.size();
  }
  if (file != nullptr) std::fclose(file);
  return found.empty() ? found : found.substr(0, found.size() - 1);
}

void Itself() {
  Report("no new privileges", ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1, "set");
  Report("filter", ::prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 2, "in force");
  const uint64_t bounding =
      std::strtoull(Line("/proc/self/status", "CapBnd:\t").c_str(), nullptr, 16);
  constexpr uint64_t kAllowed = 0x800405fb;
  Report("capabilities", bounding != 0 && (bounding & ~kAllowed) == 0,
         Line("/proc/self/status", "CapBnd:\t"));
  int inherited = 0;
  for (int fd = 3; fd < 1024; ++fd) inherited += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  Report("inherited descriptors", inherited == 0, std::to_string(inherited));
  rlimit core{};
  ::getrlimit(RLIMIT_CORE, &core);
  Report("core dumps", core.rlim_max == 0, "none");
}

}  // namespace

int TryEscapes() {
  Itself();
  KernelFiles();
  Namespaces();
  Network();
  Devices();
  Calls();
  Projects();
  Init();
  return num_open == 0 ? 0 : 1;
}

}  // namespace orrery::sandbox
