#include "sandbox/host/execution.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "orchestrator/base/status.h"
#include "sandbox/host/broken_pipe.h"

namespace orrery::sandbox {
namespace {

constexpr size_t kReadSize = 256 << 10;
// How long the kernel may take to kill a tree before the sandbox counts as lost.
constexpr std::chrono::seconds kKillPatience(20);

void MakeNonBlocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

}  // namespace

Execution::Execution(Settings settings, Descriptor channel, std::function<void()> kill)
    : settings_(std::move(settings)),
      channel_(std::move(channel)),
      kill_(std::move(kill)),
      kept_(settings_.keep_bytes),
      kept_error_(settings_.keep_bytes) {}

ExecResult Execution::Run() {
  const BrokenPipeIgnored ignored;
  begin_ = Clock::now();
  deadline_ = settings_.timeout_ms > 0 ? begin_ + std::chrono::milliseconds(settings_.timeout_ms)
                                       : Clock::time_point::max();
  while (!done_ && Wait()) {
  }
  result_.output = kept_.Take();
  result_.error_output = kept_error_.Take();
  if (result_.wall_us == 0) {
    result_.wall_us =
        std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin_).count();
  }
  return std::move(result_);
}

int Execution::PollTimeoutMs() const {
  if (deadline_ == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

bool Execution::Wait() {
  const bool writing = input_.valid() && RefillInput();
  const bool reading = input_.valid() && !writing;  // only with input_fd
  pollfd wait[] = {{channel_.get(), POLLIN, 0},
                   {output_.valid() ? output_.get() : -1, POLLIN, 0},
                   {error_output_.valid() ? error_output_.get() : -1, POLLIN, 0},
                   {writing ? input_.get() : -1, POLLOUT, 0},
                   {reading ? settings_.input_fd : -1, POLLIN, 0},
                   {struck_ ? -1 : settings_.stop_fd, POLLIN, 0}};
  if (::poll(wait, 6, PollTimeoutMs()) < 0 && errno != EINTR) {
    Lose("poll failed");
    return false;
  }
  if (wait[1].revents != 0 && !ReadOutput(false, kReadSize)) output_.Reset();
  if (wait[2].revents != 0 && !ReadOutput(true, kReadSize)) error_output_.Reset();
  if (wait[3].revents != 0) WriteInput();
  if (wait[4].revents != 0) ReadInput();
  if (wait[0].revents != 0) ReadChannel();
  if (!done_ && wait[5].revents != 0) {
    result_.why = "stopped by the caller";
    Strike(Ending::kDeadline);
  }
  if (!done_) CheckDeadline();
  return true;
}

// The host ends the command. Its exit is reported by init as ever; the output until then counts.
void Execution::Strike(Ending ending) {
  if (struck_) return;
  struck_ = true;
  strike_ = ending;
  deadline_ = Clock::now() + kKillPatience;
  input_.Reset();
  kill_();
}

void Execution::CheckDeadline() {
  if (Clock::now() < deadline_) return;
  if (struck_) {
    Lose("the command's processes could not be killed");
    return;
  }
  result_.why = fmt::format("after {} ms", settings_.timeout_ms);
  Strike(Ending::kDeadline);
}

void Execution::ReadChannel() {
  const int error = receiver_.Read(channel_.get());
  std::optional<Frame> frame;
  while (!done_ && receiver_.Next(frame) == 0 && frame) HandleFrame(*frame);
  if (error != 0 && !done_) {
    Lose("the sandbox has ended: its init is gone (killed, out of memory, or destroyed)");
  }
}

void Execution::HandleFrame(Frame& frame) {
  const auto type = static_cast<MessageType>(frame.type);
  if (type == MessageType::kStarted) return TakePipes(frame);
  if (type == MessageType::kExited) {
    const auto report = Decode<ExitReport>(frame.body);
    return report ? Finish(*report) : Lose("init talks nonsense");
  }
  const auto failure = Decode<Failure>(frame.body);
  if (type != MessageType::kFailure || !failure) return Lose("init talks nonsense");
  done_ = true;
  Drain(false);
  result_.ending = Ending::kRefused;
  result_.code = failure->error;
  result_.why = fmt::format("{}: {}", failure->what, std::strerror(failure->error));
}

void Execution::TakePipes(Frame& frame) {
  const auto reply = Decode<StartReply>(frame.body);
  const size_t count = reply ? 1u + reply->has_input + reply->has_error : 0;
  if (count == 0 || frame.descriptors.size() != count) return Lose("init talks nonsense");
  for (const Descriptor& pipe : frame.descriptors) MakeNonBlocking(pipe.get());
  output_ = std::move(frame.descriptors[0]);
  if (settings_.terminal) input_.Reset(::fcntl(output_.get(), F_DUPFD_CLOEXEC, 0));
  if (reply->has_input) input_ = std::move(frame.descriptors[1]);
  if (reply->has_error) error_output_ = std::move(frame.descriptors.back());
}

void Execution::Finish(const ExitReport& report) {
  done_ = true;
  Drain(false);
  Drain(true);
  result_.wall_us = report.wall_us;
  result_.user_us = report.user_us;
  result_.system_us = report.system_us;
  result_.max_resident_kb = report.max_resident_kb;
  const bool signalled = WIFSIGNALED(report.wait_status);
  result_.code = signalled ? WTERMSIG(report.wait_status) : WEXITSTATUS(report.wait_status);
  // A process that had ended by itself when the host struck was not killed by it.
  if (struck_ && signalled && result_.code == SIGKILL) {
    result_.ending = strike_;
  } else {
    result_.ending = signalled ? Ending::kSignalled : Ending::kExited;
    result_.why.clear();
  }
}

void Execution::Lose(std::string why) {
  done_ = true;
  result_.ending = Ending::kInfrastructure;
  result_.retryable = true;
  result_.why = std::move(why);
}

bool Execution::ReadOutput(bool error_stream, int64_t most) {
  thread_local std::string buffer(kReadSize, '\0');
  const int fd = error_stream ? error_output_.get() : output_.get();
  const ssize_t n =
      ::read(fd, buffer.data(), std::min<size_t>(buffer.size(), static_cast<size_t>(most)));
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return false;
  const std::string_view bytes(buffer.data(), static_cast<size_t>(n));
  OutputKeeper& keeper = error_stream ? kept_error_ : kept_;
  if (settings_.on_output) settings_.on_output(bytes, error_stream);
  keeper.Append(bytes);
  if (settings_.output_cap_bytes > 0 && !struck_ && !done_ &&
      kept_.total() + kept_error_.total() > settings_.output_cap_bytes) {
    result_.why = fmt::format("after {} bytes of output", settings_.output_cap_bytes);
    Strike(Ending::kOutputCap);
  }
  return true;
}

// What was in the pipe when the process had ended, and no more: others may go on writing.
void Execution::Drain(bool error_stream) {
  Descriptor& pipe = error_stream ? error_output_ : output_;
  int waiting = 0;
  if (!pipe.valid() || ::ioctl(pipe.get(), FIONREAD, &waiting) != 0) return;
  const OutputKeeper& keeper = error_stream ? kept_error_ : kept_;
  const int64_t end = keeper.total() + waiting;
  while (keeper.total() < end) {
    const int64_t before = keeper.total();
    if (!ReadOutput(error_stream, end - before) || keeper.total() == before) break;
  }
}

// True where there is something to write; at the end of the input the pipe is closed.
bool Execution::RefillInput() {
  if (input_offset_ < settings_.input.size()) return true;
  input_offset_ = 0;
  settings_.input.clear();
  if (settings_.input_fd >= 0) return false;
  settings_.input = settings_.next_input ? settings_.next_input() : std::string();
  if (settings_.input.empty()) input_.Reset();
  return input_.valid();
}

void Execution::ReadInput() {
  settings_.input.resize(kReadSize);
  const ssize_t n = ::read(settings_.input_fd, settings_.input.data(), settings_.input.size());
  settings_.input.resize(n > 0 ? static_cast<size_t>(n) : 0);
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) input_.Reset();
}

void Execution::WriteInput() {
  const ssize_t n = ::write(input_.get(), settings_.input.data() + input_offset_,
                            settings_.input.size() - input_offset_);
  if (n > 0) input_offset_ += static_cast<size_t>(n);
  if (n < 0 && errno != EAGAIN && errno != EINTR) input_.Reset();  // nobody reads any more
}

}  // namespace orrery::sandbox
