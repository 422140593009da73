#include "rewards/line_process.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"
#include "rewards/text.h"

namespace orrery::rewards {
namespace {

void CloseFd(int* fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

struct Pipe {
  int read = -1;
  int write = -1;
  ~Pipe() {
    CloseFd(&read);
    CloseFd(&write);
  }
};

// Both ends above the standard three (so that the child's dup2 never overwrites one it still needs)
// and closed on exec.
absl::Status MakePipe(Pipe* out) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return Failed("pipe: {}", std::strerror(errno));
  for (int& fd : fds) {
    if (fd > STDERR_FILENO) continue;
    const int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    close(fd);
    fd = moved;
  }
  out->read = fds[0];
  out->write = fds[1];
  return fds[0] < 0 || fds[1] < 0 ? Failed("pipe: {}", std::strerror(errno)) : absl::OkStatus();
}

// All the child needs, prepared before it exists: between vfork and exec it shares our memory and
// may only make system calls.
struct ChildPlan {
  char* const* argv;
  int input, output, errors;
  pid_t parent;
  volatile int error;  // set by the child where exec fails
};

[[noreturn]] void BecomeProgram(ChildPlan* plan) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != plan->parent) _exit(127);  // we ended before the line above took hold
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) sigaction(signal, &action, nullptr);
  dup2(plan->input, STDIN_FILENO);
  dup2(plan->output, STDOUT_FILENO);
  dup2(plan->errors, STDERR_FILENO);
#ifdef SYS_close_range
  syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, 0U);
#endif
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execvp(plan->argv[0], plan->argv);
  plan->error = errno;
  _exit(127);
}

// vfork, because a copy of a process with gigabytes resident takes long. Signals stay blocked
// meanwhile: no handler of ours may run in the child on our memory.
[[gnu::noinline]] pid_t Spawn(ChildPlan* plan) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = vfork();
  if (pid == 0) BecomeProgram(plan);
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return pid;
}

int Reap(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

// write() that reports a closed pipe as EPIPE and never as a signal.
ssize_t WriteQuietly(int fd, std::string_view data) {
  sigset_t pipe_signal, before, pending;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  sigpending(&pending);
  const bool was_pending = sigismember(&pending, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
  const ssize_t written = write(fd, data.data(), data.size());
  const int error = errno;
  if (written < 0 && error == EPIPE && !was_pending) {
    const timespec no_wait = {};
    while (sigtimedwait(&pipe_signal, nullptr, &no_wait) < 0 && errno == EINTR) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return written;
}

std::string DescribeExit(int code, int status) {
  if (code == CLD_EXITED) return fmt::format("exited with code {}", status);
  return fmt::format("was ended by signal {} ({})", status, strsignal(status));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LineProcess>> LineProcess::Start(
    const std::vector<std::string>& argv) {
  CHECK(!argv.empty());
  Pipe input, output, errors;
  RETURN_IF_ERROR(MakePipe(&input));
  RETURN_IF_ERROR(MakePipe(&output));
  RETURN_IF_ERROR(MakePipe(&errors));
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);

  ChildPlan plan{arguments.data(), input.read, output.write, errors.write, getpid(), 0};
  const pid_t pid = Spawn(&plan);
  if (pid < 0) return Unavailable("cannot start '{}': {}", argv[0], std::strerror(errno));
  std::unique_ptr<LineProcess> process(new LineProcess());
  process->pid_ = pid;
  if (plan.error != 0)
    return Unavailable("cannot start '{}': {}", argv[0], std::strerror(plan.error));
  process->pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (process->pidfd_ < 0) return Unavailable("pidfd_open: {}", std::strerror(errno));
  process->input_ = std::exchange(input.write, -1);
  process->output_ = std::exchange(output.read, -1);
  process->errors_ = std::exchange(errors.read, -1);
  for (const int fd : {process->input_, process->output_, process->errors_}) {
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  }
  return process;
}

LineProcess::~LineProcess() {
  if (pid_ > 0) {
    kill(-pid_, SIGKILL);  // before reaping: until then the number cannot be anybody else's
    kill(pid_, SIGKILL);
    Reap(pid_);
  }
  CloseFd(&pidfd_);
  CloseFd(&input_);
  CloseFd(&output_);
  CloseFd(&errors_);
}

absl::StatusOr<std::string> LineProcess::Ask(std::string_view line, Clock::time_point deadline) {
  std::string request(line);
  request += '\n';
  std::string_view rest = request;
  size_t searched = 0;
  while (true) {
    const size_t newline = buffer_.find('\n', searched);
    if (newline != std::string::npos && newline <= kMaxLineBytes) {
      std::string reply = buffer_.substr(0, newline);
      buffer_.erase(0, newline + 1);
      return reply;
    }
    searched = buffer_.size();
    if (buffer_.size() > kMaxLineBytes) {
      return InvalidInput("wrote more than {} bytes without a newline", kMaxLineBytes);
    }
    if (output_ended_ || exited_) return EndedStatus();
    RETURN_IF_ERROR(WaitForInput(!rest.empty() && !input_closed_, deadline));
    if (!rest.empty() && !input_closed_) Write(&rest);
    ReadErrors();
    ReadOutput();
  }
}

// Until there is something to read, or to write, or the child ends.
absl::Status LineProcess::WaitForInput(bool want_write, Clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count() + 1;
  if (left <= 0) return MakeStatus(absl::StatusCode::kDeadlineExceeded, "no answer in time");
  pollfd fds[] = {{output_, POLLIN, 0},
                  {pidfd_, POLLIN, 0},
                  {errors_, POLLIN, 0},
                  {want_write ? input_ : -1, POLLOUT, 0}};
  const int count = poll(fds, 4, static_cast<int>(std::min<long long>(left, 1'000'000)));
  if (count < 0 && errno != EINTR) return Failed("poll: {}", std::strerror(errno));
  // An exit counts once nothing is left to read: it may have answered and ended.
  if (count > 0 && fds[0].revents == 0 && fds[1].revents != 0) exited_ = true;
  return absl::OkStatus();
}

void LineProcess::Write(std::string_view* rest) {
  const ssize_t written = WriteQuietly(input_, *rest);
  if (written > 0) {
    rest->remove_prefix(static_cast<size_t>(written));
  } else if (written < 0 && errno != EAGAIN && errno != EINTR) {
    input_closed_ = true;  // it may still answer what it has read
  }
}

void LineProcess::ReadOutput() {
  char chunk[65536];
  const ssize_t size = read(output_, chunk, sizeof(chunk));
  if (size > 0) buffer_.append(chunk, static_cast<size_t>(size));
  if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR)) output_ended_ = true;
}

void LineProcess::ReadErrors() {
  // A child that floods its stderr must not keep us here past the deadline.
  constexpr int kMaxReads = 16;
  char chunk[4096];
  for (int i = 0; i < kMaxReads && errors_ >= 0; ++i) {
    const ssize_t size = read(errors_, chunk, sizeof(chunk));
    if (size > 0) {
      kept_errors_.append(chunk, static_cast<size_t>(size));
      if (kept_errors_.size() > kKeptStderrBytes) {
        kept_errors_.erase(0, kept_errors_.size() - kKeptStderrBytes);
      }
      continue;
    }
    if (size == 0) CloseFd(&errors_);
    if (size == 0 || errno != EINTR) return;
  }
}

absl::Status LineProcess::EndedStatus() {
  // An ending program closes its pipes a moment before it is gone.
  constexpr int kPatienceMs = 200;
  pollfd ended = {pidfd_, POLLIN, 0};
  poll(&ended, 1, kPatienceMs);
  siginfo_t info = {};
  if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
      info.si_pid == pid_) {
    ended_cleanly_ = info.si_code == CLD_EXITED && info.si_status == 0;
    return Unavailable("{}", DescribeExit(info.si_code, info.si_status));
  }
  return Unavailable("closed its output");
}

bool LineProcess::Ready() {
  ReadErrors();
  ReadOutput();
  pollfd ended = {pidfd_, POLLIN, 0};
  return buffer_.empty() && !output_ended_ && !exited_ && poll(&ended, 1, 0) == 0;
}

std::string LineProcess::LastWords() {
  ReadErrors();
  return std::string(Strip(kept_errors_));
}

}  // namespace orrery::rewards
