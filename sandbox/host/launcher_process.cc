#include "sandbox/host/launcher_process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"

namespace orrery::sandbox {
namespace {

constexpr size_t kStackSize = 64 << 10;
constexpr int kSocketPlace = 3, kProgramPlace = 4;

struct ChildArguments {
  int socket, program, null;
};

// Runs on the parent's memory until it executes: system calls and nothing else.
int ExecuteLauncher(void* pointer) {
  const auto& arguments = *static_cast<ChildArguments*>(pointer);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // Above the places first.
  const int socket = ::fcntl(arguments.socket, F_DUPFD, 10);
  const int program = ::fcntl(arguments.program, F_DUPFD, 10);
  const int null = ::fcntl(arguments.null, F_DUPFD, 10);
  for (int fd = 0; fd < 3; ++fd) ::dup2(null, fd);
  ::dup2(socket, kSocketPlace);
  ::dup2(program, kProgramPlace);
  ::syscall(SYS_close_range, kProgramPlace + 1, ~0u, 0);
  ::setsid();
  char name[] = "orrery-sandbox-launcher";
  char* argv[] = {name, nullptr};
  char* envp[] = {nullptr};
  ::syscall(SYS_execveat, kProgramPlace, "", argv, envp, AT_EMPTY_PATH);
  ::_exit(127);
}

// All signals wait while a process shares our memory.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

absl::StatusOr<Descriptor> Spawn(ChildArguments arguments) {
  void* stack = ::mmap(nullptr, kStackSize, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED) return ErrnoStatus("cannot start", "the sandbox launcher", errno);
  int pidfd = -1, pid = -1, error = 0;
  {
    const SignalsBlocked blocked;
    // No exit signal: an owner that waits for its own children does not meet this one.
    pid = ::clone(&ExecuteLauncher, static_cast<char*>(stack) + kStackSize,
                  CLONE_VM | CLONE_VFORK | CLONE_NEWPID | CLONE_PIDFD, &arguments, &pidfd);
    error = errno;
  }
  ::munmap(stack, kStackSize);
  if (pid < 0) {
    return ErrnoStatus("cannot start (root is required)", "the sandbox launcher", error);
  }
  return Descriptor(pidfd);
}

}  // namespace

absl::Status ToStatus(const Failure& failure) {
  const std::string text = fmt::format("{}: {}", failure.what, std::strerror(failure.error));
  switch (failure.error) {
    case ENOENT:
    case ENOTDIR:
    case ELOOP:
    case EINVAL:
      return absl::Status(absl::StatusCode::kInvalidArgument, text);
    case ENOMEM:
    case ENOSPC:
    case EAGAIN:
    case EMFILE:
    case ENFILE:
      return absl::Status(absl::StatusCode::kResourceExhausted, text);
    default:
      return absl::Status(absl::StatusCode::kInternal, text);
  }
}

absl::StatusOr<std::unique_ptr<LauncherProcess>> LauncherProcess::Start(
    int program, int cgroup_procs, const LauncherConfig& config) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus("cannot make a socket for", "the sandbox launcher", errno);
  }
  Descriptor ours(ends[0]), theirs(ends[1]);
  const Descriptor null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ASSIGN_OR_RETURN(Descriptor process, Spawn({theirs.get(), program, null.get()}));
  theirs.Reset();
  auto launcher =
      std::unique_ptr<LauncherProcess>(new LauncherProcess(std::move(ours), std::move(process)));
  ASSIGN_OR_RETURN(const Frame ready, launcher->Ask(MessageType::kConfig, Encode(config), {}));
  if (ready.type != static_cast<uint16_t>(MessageType::kReady)) {
    return Failed("the sandbox launcher does not begin");
  }
  // It has begun nothing yet, so all of its offspring is in the group.
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", launcher->process_.get());
  ASSIGN_OR_RETURN(const std::string fdinfo, ReadFile(path));
  const size_t at = fdinfo.find("Pid:");
  const std::string pid =
      at == std::string::npos ? "" : std::to_string(std::atoi(fdinfo.c_str() + at + 4));
  if (::write(cgroup_procs, pid.data(), pid.size()) < 0) {
    return ErrnoStatus("cannot move the sandbox launcher into", "its control group", errno);
  }
  return launcher;
}

LauncherProcess::~LauncherProcess() {
  socket_.Reset();
  if (!process_.valid()) return;
  // Waits for everything below it too: it is the first of its pid namespace.
  ::syscall(SYS_pidfd_send_signal, process_.get(), SIGKILL, nullptr, 0);
  siginfo_t info{};
  while (::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(process_.get()), &info,
                  WEXITED | __WALL) != 0 &&
         errno == EINTR) {
  }
}

absl::StatusOr<Frame> LauncherProcess::Receive() {
  Frame frame;
  if (const int error = ReceiveFrame(socket_.get(), receiver_, frame); error != 0) {
    return Unavailable("the sandbox launcher has ended ({})", std::strerror(error));
  }
  if (frame.type != static_cast<uint16_t>(MessageType::kFailure)) return frame;
  const auto failure = Decode<Failure>(frame.body);
  return failure ? ToStatus(*failure) : Failed("the sandbox launcher talks nonsense");
}

absl::StatusOr<Frame> LauncherProcess::Ask(MessageType type, const std::string& body,
                                           const std::vector<int>& descriptors) {
  const std::lock_guard lock(mutex_);
  if (SendFrame(socket_.get(), static_cast<uint16_t>(type), body, descriptors) != 0) {
    return Unavailable("the sandbox launcher has ended");
  }
  return Receive();
}

absl::StatusOr<LauncherProcess::Created> LauncherProcess::TakeCreated(Frame frame, bool blank) {
  const auto reply = Decode<CreateReply>(frame.body);
  if (frame.type != static_cast<uint16_t>(MessageType::kCreated) || !reply ||
      frame.descriptors.size() != (blank ? 1 : 2)) {
    return Failed("the sandbox launcher talks nonsense");
  }
  Created created{reply->volume, std::move(frame.descriptors[0]), {}};
  if (!blank) created.upper = std::move(frame.descriptors[1]);
  return created;
}

absl::StatusOr<LauncherProcess::Created> LauncherProcess::Create(
    const CreateRequest& request, const std::vector<int>& descriptors) {
  ASSIGN_OR_RETURN(Frame frame, Ask(MessageType::kCreate, Encode(request), descriptors));
  return TakeCreated(std::move(frame), request.blank);
}

absl::StatusOr<LauncherProcess::Created> LauncherProcess::AskForRoot(VolumeAction action,
                                                                     uint64_t volume,
                                                                     const CreateRequest& root) {
  ASSIGN_OR_RETURN(Frame frame,
                   Ask(MessageType::kVolume, Encode(VolumeRequest{action, volume, root}), {}));
  return TakeCreated(std::move(frame), false);
}

absl::StatusOr<LauncherProcess::Created> LauncherProcess::Freeze(uint64_t volume,
                                                                 const CreateRequest& root) {
  return AskForRoot(VolumeAction::kFreeze, volume, root);
}

absl::StatusOr<LauncherProcess::Created> LauncherProcess::MakeRoot(const CreateRequest& root) {
  return AskForRoot(VolumeAction::kMake, 0, root);
}

absl::Status LauncherProcess::PrepareIds(const CreateRequest& root) {
  return Ask(MessageType::kVolume, Encode(VolumeRequest{VolumeAction::kPrepare, 0, root}), {})
      .status();
}

absl::Status LauncherProcess::Release(uint64_t volume) {
  return Ask(MessageType::kVolume, Encode(VolumeRequest{VolumeAction::kRelease, volume, {}}), {})
      .status();
}

}  // namespace orrery::sandbox
