// The list: what ordinary programs need, by subject. Left out on purpose, beside what is obsolete:
// mounting and namespaces, modules, kexec, reboot, swap, clocks, bpf, perf, io_uring, userfaultfd,
// keyrings, asynchronous io (counted over the whole host), handles (open_by_handle_at), fanotify,
// quota, syslog, vm86, iopl. Calls that only another architecture has are skipped when the filter
// is made.
#include <algorithm>
#include <sstream>

#include "sandbox/seccomp/filter.h"

namespace orrery::sandbox {
namespace {

constexpr const char* kFiles = R"(
  access chdir chmod chown chown32 close close_range copy_file_range creat dup dup2 dup3 faccessat
  faccessat2 fadvise64 fadvise64_64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchown32
  fchownat fcntl fcntl64 fdatasync fgetxattr flistxattr flock fremovexattr fsetxattr fstat fstat64
  fstatat64 fstatfs fstatfs64 fsync ftruncate ftruncate64 futimesat getcwd getdents getdents64
  getxattr lchown lchown32 lgetxattr link linkat listxattr llistxattr lremovexattr lseek lsetxattr
  lstat lstat64 mkdir mkdirat mknod mknodat newfstatat open openat openat2 pipe pipe2 pread64 preadv
  preadv2 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv removexattr rename
  renameat renameat2 rmdir sendfile sendfile64 setxattr splice stat stat64 statfs statfs64 statx
  symlink symlinkat sync sync_file_range sync_file_range2 syncfs tee truncate truncate64 umask unlink
  unlinkat utime utimensat utimes vmsplice write writev cachestat chroot inotify_add_watch
  inotify_init inotify_init1 inotify_rm_watch name_to_handle_at ioprio_get ioprio_set
  getxattrat setxattrat listxattrat removexattrat
)";

constexpr const char* kMemory = R"(
  brk madvise map_shadow_stack membarrier memfd_create memfd_secret mincore mlock mlock2 mlockall
  mmap mmap2 mprotect mremap mseal msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect
  process_madvise process_mrelease remap_file_pages get_mempolicy mbind set_mempolicy
  set_mempolicy_home_node
)";

constexpr const char* kProcesses = R"(
  arch_prctl capget capset execve execveat exit exit_group fork futex futex_requeue futex_wait
  futex_waitv futex_wake get_robust_list get_thread_area getcpu getegid geteuid getgid getgroups
  getpgid getpgrp getpid getppid getpriority getresgid getresuid getrlimit getrusage getsid gettid
  getuid kcmp kill pidfd_getfd pidfd_open pidfd_send_signal prctl prlimit64 process_vm_readv
  process_vm_writev ptrace restart_syscall rseq rt_sigaction rt_sigpending rt_sigprocmask
  rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max
  sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler
  sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield
  seccomp set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid setgroups setpgid
  setpriority setregid setresgid setresuid setreuid setrlimit setsid setuid sigaltstack tgkill time
  times tkill ugetrlimit uname vfork wait4 waitid waitpid landlock_add_rule landlock_create_ruleset
  landlock_restrict_self sysinfo rt_tgsigqueueinfo riscv_flush_icache pause
)";

constexpr const char* kEventsAndTime = R"(
  alarm clock_getres clock_gettime clock_nanosleep epoll_create epoll_create1 epoll_ctl
  epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 getitimer
  gettimeofday getrandom nanosleep poll ppoll pselect6 select setitimer signalfd signalfd4
  timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create
  timerfd_gettime timerfd_settime
)";

constexpr const char* kCommunication = R"(
  accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg recvmsg
  sendmmsg sendmsg sendto setsockopt shutdown mq_getsetattr mq_notify mq_open mq_timedreceive
  mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd semctl semget semop semtimedop shmat shmctl shmdt
  shmget
)";

constexpr const char* kLauncher = R"(
  fsconfig fsmount fsopen mount mount_setattr move_mount open_tree pivot_root setdomainname
  sethostname setns umount umount2 unshare
)";

std::vector<std::string> Words(std::initializer_list<const char*> texts) {
  std::vector<std::string> all;
  for (const char* text : texts) {
    std::istringstream words(text);
    for (std::string word; words >> word;) all.push_back(word);
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

}  // namespace

const std::vector<std::string>& AllowedCalls() {
  static const std::vector<std::string> names =
      Words({kFiles, kMemory, kProcesses, kEventsAndTime, kCommunication});
  return names;
}

const std::vector<std::string>& LauncherCalls() {
  static const std::vector<std::string> names = Words({kLauncher});
  return names;
}

}  // namespace orrery::sandbox
