#include "sandbox/shell.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "orchestrator/base/check.h"
#include "orchestrator/base/shell_quote.h"
#include "orchestrator/base/status.h"

namespace orrery::sandbox {
namespace {

using Clock = std::chrono::steady_clock;

std::string FreshNumber() {
  unsigned char bytes[16];
  CHECK(::getrandom(bytes, sizeof(bytes), 0) == sizeof(bytes));
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

// Descriptor 9 is the output of the shell itself, whatever a script does to its own. The mark is
// given in two halves: a trace (set -x) of the line would be taken for it.
std::string Wrap(std::string_view script, const std::string& mark) {
  return "eval " + ShellQuote(script) + " < /dev/null 9>&-\nprintf '%s%s %d %s\\n' " +
         mark.substr(0, 8) + " " + mark.substr(8) + " \"$?\" \"$PWD\" >&9 2> /dev/null\n";
}

ExecResult Failed(Ending ending, std::string why) {
  ExecResult result;
  result.ending = ending;
  result.why = std::move(why);
  result.retryable = ending == Ending::kInfrastructure;
  return result;
}

}  // namespace

Shell::~Shell() { End(); }

absl::Status Shell::Begin() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return Unavailable("no socket for a shell: too many open files");
  }
  input_.Reset(ends[0]);
  their_input_.Reset(ends[1]);
  stop_.Reset(::eventfd(0, EFD_CLOEXEC));
  ended_ = false;
  thread_ = std::thread(&Shell::Serve, this);
  return absl::OkStatus();
}

void Shell::Serve() {
  ExecRequest request;
  request.argv = options_.program;
  request.env = options_.env;
  request.folder = options_.folder;
  request.user = options_.user;
  request.input_fd = their_input_.get();
  request.stop_fd = stop_.get();
  request.timeout_ms = 0;
  request.keep_bytes = 0;
  request.output_cap_bytes = 0;
  request.on_output = [this](std::string_view bytes, bool) { TakeOutput(bytes); };
  ExecResult result = sandbox_->Exec(request);
  const std::lock_guard lock(mutex_);
  end_ = std::move(result);
  ended_ = true;
  changed_.notify_all();
}

// Kills what is left of it.
void Shell::End() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(stop_.get(), &one, sizeof(one));
  thread_.join();
  input_.Reset();
  their_input_.Reset();
}

// False where the shell has ended, or takes nothing for too long.
bool Shell::Send(std::string_view text, int64_t timeout_ms) {
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!text.empty()) {
    pollfd wait{input_.get(), POLLOUT, 0};
    ::poll(&wait, 1, 50);
    {
      const std::lock_guard lock(mutex_);
      if (ended_ || (timeout_ms > 0 && Clock::now() > end)) return false;
    }
    if (wait.revents == 0) continue;
    const ssize_t n = ::send(input_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (n > 0) text.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

void Shell::Keep(std::string_view bytes) {
  kept_.Append(bytes);
  if (options_.output_cap_bytes > 0 && kept_.total() > options_.output_cap_bytes && !over_cap_) {
    over_cap_ = true;
    changed_.notify_all();
  }
}

// "MARK CODE FOLDER"
bool Shell::TakeMark(std::string_view line) {
  const std::string rest(line.substr(mark_.size()));
  char* end = nullptr;
  code_ = static_cast<int>(std::strtol(rest.c_str(), &end, 10));
  if (*end == ' ' && end[1] == '/') options_.folder = end + 1;
  marked_ = true;
  changed_.notify_all();
  return true;
}

// Of what is not yet known to be output the end is kept back: a mark may begin there.
void Shell::TakeOutput(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  tail_ += bytes;
  const size_t at = mark_.empty() ? std::string::npos : tail_.find(mark_);
  if (at == std::string::npos) {
    const size_t hold = mark_.empty() ? 0 : std::min(tail_.size(), mark_.size() - 1);
    Keep(std::string_view(tail_).substr(0, tail_.size() - hold));
    tail_.erase(0, tail_.size() - hold);
    return;
  }
  const size_t line_end = tail_.find('\n', at);
  if (line_end == std::string::npos) return;
  Keep(std::string_view(tail_).substr(0, at));
  TakeMark(std::string_view(tail_).substr(at, line_end - at));
  mark_.clear();
  tail_.erase(0, line_end + 1);
}

ExecResult Shell::Collect(bool in_time) {
  ExecResult result;
  if (!marked_) {
    Keep(tail_);
    tail_.clear();
    mark_.clear();
  }
  if (marked_) {
    result.ending = Ending::kExited;
    result.code = code_;
  } else if (over_cap_) {
    result.ending = Ending::kOutputCap;
  } else if (ended_) {
    result = std::move(end_);
  } else {
    result.ending = in_time ? Ending::kInfrastructure : Ending::kDeadline;
  }
  result.output = kept_.Take();
  kept_ = OutputKeeper(options_.keep_bytes);
  return result;
}

ExecResult Shell::Run(const std::string& script, int64_t timeout_ms) {
  const std::lock_guard one_script(run_mutex_);
  if (script.find('\0') != std::string::npos) {
    return Failed(Ending::kRefused, "a script may hold no NUL byte");
  }
  const absl::StatusOr<SandboxEvents> before = sandbox_->Events();
  const Clock::time_point begin = Clock::now();
  const std::string mark = FreshNumber();
  bool fresh;
  {
    const std::lock_guard lock(mutex_);
    fresh = !thread_.joinable() || ended_;
  }
  if (fresh) {
    End();
    if (const absl::Status begun = Begin(); !begun.ok()) {
      return Failed(Ending::kInfrastructure, StatusText(begun));
    }
  }
  {
    const std::lock_guard lock(mutex_);
    mark_ = mark;
    marked_ = over_cap_ = false;
  }
  Send((fresh ? "exec 9>&1\n" : "") + Wrap(script, mark), timeout_ms);
  std::unique_lock lock(mutex_);
  const auto done = [&] { return marked_ || ended_ || over_cap_; };
  bool in_time = true;
  if (timeout_ms > 0) {
    in_time = changed_.wait_until(lock, begin + std::chrono::milliseconds(timeout_ms), done);
  } else {
    changed_.wait(lock, done);
  }
  if (!marked_) {
    // With all that it started, before the result says so.
    lock.unlock();
    const bool ended_by_itself = in_time && !over_cap_;
    End();
    lock.lock();
    if (!ended_by_itself) ended_ = false;
  }
  ExecResult result = Collect(in_time);
  if (result.ending == Ending::kDeadline) result.why = fmt::format("after {} ms", timeout_ms);
  if (!marked_ && result.ending != Ending::kRefused) {
    ended_ = true;
    if (!result.why.empty()) result.why += "; ";
    result.why += "the shell ended with it";
  }
  result.wall_us =
      std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count();
  if (const auto after = sandbox_->Events(); before.ok() && after.ok()) {
    AddEvents(*before, *after, result);
  }
  return result;
}

}  // namespace orrery::sandbox
