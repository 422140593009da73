#include "sandbox/image/trusted_git.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "orchestrator/base/utf8.h"
#include "sandbox/image/tree.h"

namespace orrery::sandbox::image {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uid_t kNobody = 65534;
constexpr rlim_t kMaxMemory = rlim_t{16} << 30, kMaxFile = rlim_t{64} << 30;
constexpr size_t kMaxErrorBytes = 64 << 10, kShownErrorBytes = 500;
constexpr char kGit[] = "/usr/bin/git";
constexpr int kCannotConfine = 125, kCannotExecute = 127;

struct Pipe {
  Fd read, write;
};

absl::StatusOr<Pipe> MakePipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus("cannot make", "a pipe", errno);
  return Pipe{Fd(fds[0]), Fd(fds[1])};
}

void Limit(int resource, rlim_t value) {
  rlimit limit;
  ::getrlimit(static_cast<__rlimit_resource>(resource), &limit);
  limit.rlim_cur = limit.rlim_max = std::min(limit.rlim_max, value);
  ::setrlimit(static_cast<__rlimit_resource>(resource), &limit);
}

// In the child, after fork: async-signal-safe calls alone.
bool Confine(const char* folder) {
  ::close_range(3, ~0U, 0);
  if (::unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC) != 0) return false;
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  if (::mount(folder, "/tmp", nullptr, MS_BIND, nullptr) != 0) return false;
  if (::mount(nullptr, "/tmp", nullptr, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | MS_NOEXEC,
              nullptr) != 0) {
    return false;
  }
  if (::chdir("/tmp") != 0) return false;
  Limit(RLIMIT_AS, kMaxMemory);
  Limit(RLIMIT_FSIZE, kMaxFile);
  Limit(RLIMIT_CORE, 0);
  if (::setgroups(0, nullptr) != 0 || ::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) {
    return false;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a change of user clears it
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

std::vector<char*> Pointers(std::vector<std::string>* strings) {
  std::vector<char*> pointers;
  for (std::string& text : *strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> CleanEnvironment(const std::vector<std::string>& more) {
  std::vector<std::string> environment = {
      "PATH=/usr/bin:/bin",        "HOME=/nonexistent",       "LC_ALL=C",
      "GIT_DIR=/tmp/git",          "GIT_CONFIG_NOSYSTEM=1",   "GIT_CONFIG_GLOBAL=/dev/null",
      "GIT_NO_REPLACE_OBJECTS=1",  "GIT_TERMINAL_PROMPT=0",   "GIT_ATTR_NOSYSTEM=1",
      "GIT_OPTIONAL_LOCKS=0",      "GIT_PAGER=cat",           "GIT_NO_LAZY_FETCH=1",
      "GIT_AUTHOR_NAME=orrery",    "GIT_AUTHOR_EMAIL=orrery", "GIT_COMMITTER_NAME=orrery",
      "GIT_COMMITTER_EMAIL=orrery"};
  environment.insert(environment.end(), more.begin(), more.end());
  return environment;
}

// Feeds the input and takes both outputs until the child has closed them or time is over.
class Exchange {
 public:
  Exchange(const GitCommand& command, Fd input, Fd output, Fd error)
      : command_(command),
        input_(std::move(input)),
        output_(std::move(output)),
        error_(std::move(error)),
        deadline_(Clock::now() + std::chrono::seconds(command.timeout_s)) {
    if (input_.ok()) ::fcntl(input_.get(), F_SETFL, O_NONBLOCK);
  }

  absl::Status Run() {
    while (output_.ok() || error_.ok()) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
      if (left <= 0) return Failed("git took more than {} s", command_.timeout_s);
      if (given_ == command_.input.size()) input_ = Fd();
      pollfd fds[3] = {
          {output_.get(), POLLIN, 0}, {error_.get(), POLLIN, 0}, {input_.get(), POLLOUT, 0}};
      if (::poll(fds, 3, static_cast<int>(std::min<int64_t>(left, 1000))) < 0 && errno != EINTR) {
        return ErrnoStatus("cannot wait for", "git", errno);
      }
      if (fds[2].revents != 0) Give();
      if (fds[0].revents != 0) RETURN_IF_ERROR(Take(&output_, &output_text, MaxOutput()));
      if (fds[1].revents != 0) RETURN_IF_ERROR(Take(&error_, &error_text, kMaxErrorBytes));
    }
    return absl::OkStatus();
  }

  std::string output_text, error_text;

 private:
  size_t MaxOutput() const { return static_cast<size_t>(command_.max_output_bytes); }

  void Give() {
    const ssize_t size =
        ::write(input_.get(), command_.input.data() + given_, command_.input.size() - given_);
    if (size > 0) given_ += static_cast<size_t>(size);
    if (size < 0 && errno != EAGAIN && errno != EINTR) given_ = command_.input.size();
  }

  absl::Status Take(Fd* fd, std::string* text, size_t max) {
    char buffer[1 << 16];
    const ssize_t size = ::read(fd->get(), buffer, sizeof buffer);
    if (size < 0 && errno == EINTR) return absl::OkStatus();
    if (size <= 0) {
      *fd = Fd();
      return absl::OkStatus();
    }
    const size_t room = max - std::min(max, text->size());
    if (fd == &output_ && static_cast<size_t>(size) > room) {
      return Exhausted("git wrote more than {} bytes", max);
    }
    text->append(buffer, std::min(static_cast<size_t>(size), room));
    return absl::OkStatus();
  }

  const GitCommand& command_;
  Fd input_, output_, error_;
  const Clock::time_point deadline_;
  size_t given_ = 0;
};

absl::StatusOr<int> Wait(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return ErrnoStatus("cannot wait for", "git", errno);
  }
  return status;
}

}  // namespace

absl::StatusOr<std::string> TrustedGit::Run(const GitCommand& command) const {
  ASSIGN_OR_RETURN(Pipe input, MakePipe());
  ASSIGN_OR_RETURN(Pipe output, MakePipe());
  ASSIGN_OR_RETURN(Pipe error, MakePipe());
  std::vector<std::string> arguments = {"git",
                                        "-c",
                                        "core.hooksPath=/dev/null",
                                        "-c",
                                        "protocol.allow=never",
                                        "-c",
                                        "core.fsmonitor=false",
                                        "-c",
                                        "gc.auto=0"};
  arguments.insert(arguments.end(), command.arguments.begin(), command.arguments.end());
  std::vector<std::string> environment = CleanEnvironment(command.environment);
  const std::vector<char*> argv = Pointers(&arguments), envp = Pointers(&environment);

  const pid_t pid = ::fork();
  if (pid < 0) return ErrnoStatus("cannot fork for", "git", errno);
  if (pid == 0) {
    ::setpgid(0, 0);
    if (::dup2(input.read.get(), 0) < 0 || ::dup2(output.write.get(), 1) < 0 ||
        ::dup2(error.write.get(), 2) < 0 || !Confine(folder_.c_str())) {
      ::_exit(kCannotConfine);
    }
    ::execve(kGit, argv.data(), envp.data());
    ::_exit(kCannotExecute);
  }
  ::setpgid(pid, pid);
  input.read = Fd();
  output.write = Fd();
  error.write = Fd();
  Exchange exchange(command, std::move(input.write), std::move(output.read), std::move(error.read));
  const absl::Status exchanged = exchange.Run();
  if (!exchanged.ok()) ::kill(-pid, SIGKILL);
  ASSIGN_OR_RETURN(const int status, Wait(pid));
  RETURN_IF_ERROR(exchanged);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return std::move(exchange.output_text);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kCannotConfine) {
    return absl::PermissionDeniedError(
        "cannot confine git (mount and network namespaces, user nobody): root is required");
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == kCannotExecute) {
    return Precondition("cannot run {}: apt-get install git", kGit);
  }
  return Failed("git {}: {}", command.arguments.empty() ? "" : command.arguments[0],
                exchange.error_text.empty() ? fmt::format("ended with wait status {}", status)
                                            : ShortenUtf8(exchange.error_text, kShownErrorBytes));
}

}  // namespace orrery::sandbox::image
