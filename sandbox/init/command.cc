#include "sandbox/init/command.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <termios.h>

#include "sandbox/init/file_commands.h"
#include "sandbox/init/privileges.h"
#include "sandbox/init/program.h"
#include "sandbox/launcher/install_filter.h"
#include "sandbox/launcher/system.h"

namespace orrery::sandbox {
namespace {

// The command's side of its standard descriptors.
struct Ends {
  Descriptor input, output, error_output, failure;
};

Error MakePipe(Descriptor& read_end, Descriptor& write_end) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return LastError("pipe");
  read_end.Reset(ends[0]);
  write_end.Reset(ends[1]);
  return {};
}

// A terminal of the sandbox's own devpts. Its peer is opened by ioctl: a path could have been
// mounted over or replaced.
Error MakeTerminal(const StartRequest& request, Descriptor& own, Ends& ends) {
  own.Reset(::open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC));
  int unlock = 0;
  if (!own.valid() || ::ioctl(own.get(), TIOCSPTLCK, &unlock) != 0) {
    return LastError("a new terminal");
  }
  ends.output.Reset(::ioctl(own.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!ends.output.valid()) return LastError("the terminal's other end");
  const winsize size{request.rows, request.columns, 0, 0};
  ::ioctl(own.get(), TIOCSWINSZ, &size);
  ends.input.Reset(::fcntl(ends.output.get(), F_DUPFD_CLOEXEC, 0));
  return {};
}

Error MakeEnds(const StartRequest& request, StartedCommand& started, Ends& ends) {
  ORRERY_TRY(MakePipe(started.failure, ends.failure));
  ::fcntl(started.failure.get(), F_SETFL, O_NONBLOCK);
  if (request.output == OutputMode::kTerminal) return MakeTerminal(request, started.output, ends);
  ORRERY_TRY(MakePipe(started.output, ends.output));
  if (request.output == OutputMode::kSeparate) {
    ORRERY_TRY(MakePipe(started.error_output, ends.error_output));
  }
  if (request.input) return MakePipe(ends.input, started.input);
  ends.input.Reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return ends.input.valid() ? Error{} : LastError("opening /dev/null");
}

// The launcher has set every signal to its default already.
void UnblockSignals() {
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Descriptors 0, 1, 2 for the program, 3 for a report of failure; nothing else stays open.
Error PlaceDescriptors(const StartRequest& request, Ends& ends) {
  const int error_output = ends.error_output.valid() ? ends.error_output.get() : ends.output.get();
  int placed[] = {ends.input.get(), ends.output.get(), error_output, ends.failure.get()};
  for (int& fd : placed) {  // above the places first
    fd = ::fcntl(fd, F_DUPFD_CLOEXEC, 10);
    if (fd < 0) return LastError("duplicating a descriptor");
  }
  for (int i = 0; i < 4; ++i) {
    if (::dup3(placed[i], i, i == 3 ? O_CLOEXEC : 0) < 0) return LastError("dup3");
  }
  system::CloseRange(4, ~0u);
  ::setsid();
  if (request.output == OutputMode::kTerminal && ::ioctl(0, TIOCSCTTY, 0) != 0) {
    return LastError("taking the terminal");
  }
  return {};
}

// Programs open /dev/stdout and /dev/stderr again, by which the pipe's owner counts.
void GiveDescriptors(const User& user) {
  for (int fd = 0; fd < 3; ++fd) {
    struct stat info {};
    if (::fstat(fd, &info) == 0 && !S_ISCHR(info.st_mode) &&
        ::fchown(fd, user.uid, user.gid) != 0) {
      continue;  // only the reopening fails
    }
  }
}

// In the new process. Returns only what went wrong.
Error RunInChild(const StartRequest& request, const InitConfig& config, Ends& ends) {
  UnblockSignals();
  ORRERY_TRY(PlaceDescriptors(request, ends));
  ::umask(022);
  User user;
  ORRERY_TRY(FindUser(request.user, user));
  GiveDescriptors(user);
  ORRERY_TRY(DropPrivileges(user, config.capabilities));
  if (!request.folder.empty() && ::chdir(request.folder.c_str()) != 0) {
    return LastError("working directory " + request.folder);
  }
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return LastError("no_new_privs");
  ORRERY_TRY(InstallFilter(config.seccomp));
  if (request.kind == CommandKind::kProgram) return RunProgram(request, user);
  const Error error = RunFileCommand(request);
  if (!error) ::_exit(0);
  return error;
}

[[noreturn]] void Child(const StartRequest& request, const InitConfig& config, Ends& ends) {
  const Error error = RunInChild(request, config, ends);
  const std::string body = Encode(Failure{error.number, error.what.substr(0, 3000)});
  [[maybe_unused]] const ssize_t n = ::write(3, body.data(), body.size());
  ::_exit(127);
}

}  // namespace

Error StartCommand(const StartRequest& request, const InitConfig& config, int cgroup,
                   StartedCommand& started) {
  Ends ends;
  ORRERY_TRY(MakeEnds(request, started, ends));
  clone_args args{};
  args.flags = CLONE_INTO_CGROUP;
  args.exit_signal = SIGCHLD;
  args.cgroup = static_cast<uint64_t>(cgroup);
  started.pid = static_cast<pid_t>(system::Clone3(args));
  if (started.pid == 0) Child(request, config, ends);
  return started.pid > 0 ? Error{} : LastError("starting a process");
}

}  // namespace orrery::sandbox
