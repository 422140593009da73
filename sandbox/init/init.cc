#include "sandbox/init/init.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>

#include <map>

#include "sandbox/init/command.h"
#include "sandbox/init/remount.h"
#include "sandbox/launcher/system.h"
#include "sandbox/protocol/frame.h"
#include "sandbox/protocol/messages.h"

namespace orrery::sandbox {
namespace {

int64_t NowUs() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}

int64_t ToUs(const timeval& time) { return int64_t{time.tv_sec} * 1'000'000 + time.tv_usec; }

struct Running {
  uint64_t id = 0;
  Descriptor channel;
  Descriptor failure;   // what the child could not do before its program began
  Descriptor terminal;  // for its size
  int64_t started_us = 0;
};

class Init {
 public:
  explicit Init(int control) : control_(control) {}
  int Serve();

 private:
  Error Prepare();
  Error Limit(const InitConfig& config);
  int HandleControl();
  void Handle(Frame& frame);
  void Start(Frame& frame);
  void Signal(const SignalRequest& request);
  void Remount(Frame& frame);
  void Reap();
  void Report(Running& command, int wait_status, const rusage& usage);
  void Send(int socket, MessageType type, const std::string& body,
            const std::vector<int>& descriptors = {});

  int control_;
  Descriptor signals_;
  FrameReceiver receiver_;
  InitConfig config_;
  std::map<pid_t, Running> running_;
};

void Init::Send(int socket, MessageType type, const std::string& body,
                const std::vector<int>& descriptors) {
  // Where the host has gone, the control socket says so.
  SendFrame(socket, static_cast<uint16_t>(type), body, descriptors);
}

Error SetLimit(int resource, uint64_t value) {
  rlimit limit{};
  ::getrlimit(static_cast<__rlimit_resource>(resource), &limit);
  // Never above what the host has: that would need a capability over it.
  limit.rlim_max = std::min<rlim_t>(limit.rlim_max, value);
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(static_cast<__rlimit_resource>(resource), &limit) == 0) return {};
  return LastError("setrlimit " + std::to_string(resource));
}

Error Init::Limit(const InitConfig& config) {
  ORRERY_TRY(SetLimit(RLIMIT_CORE, 0));
  ORRERY_TRY(SetLimit(RLIMIT_NOFILE, config.open_files));
  ORRERY_TRY(SetLimit(RLIMIT_FSIZE, config.file_bytes));
  return SetLimit(RLIMIT_MEMLOCK, config.locked_bytes);
}

// When memory is short on the host, what runs in sandboxes goes first, and never init before it:
// the kernel takes the largest.
void OfferToOomKiller() {
  Descriptor file(::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  if (file.valid() && ::write(file.get(), "700", 3) < 0) return;
}

Error Init::Prepare() {
  OfferToOomKiller();
  if (::prctl(PR_SET_DUMPABLE, 0) != 0) return LastError("making init undumpable");
  ::fcntl(control_, F_SETFD, FD_CLOEXEC);
  ::signal(SIGCHLD, SIG_DFL);  // the launcher ignores it, and that is inherited
  sigset_t set;
  ::sigfillset(&set);
  ::sigprocmask(SIG_SETMASK, &set, nullptr);
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGCHLD);
  signals_.Reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid()) return LastError("signalfd");
  Frame frame;
  if (const int error = ReceiveFrame(control_, receiver_, frame); error != 0) {
    return {error, "reading init's settings"};
  }
  const auto config = Decode<InitConfig>(frame.body);
  if (frame.type != static_cast<uint16_t>(MessageType::kConfig) || !config) {
    return {EPROTO, "reading init's settings"};
  }
  config_ = *config;
  return Limit(config_);
}

void Init::Start(Frame& frame) {
  auto request = Decode<StartRequest>(frame.body);
  if (!request || frame.descriptors.size() != 2) return;
  Running command;
  command.id = request->id;
  command.channel = std::move(frame.descriptors[0]);
  command.started_us = NowUs();
  StartedCommand started;
  if (const Error error = StartCommand(*request, config_, frame.descriptors[1].get(), started);
      error) {
    Send(command.channel.get(), MessageType::kFailure, Encode(Failure{error.number, error.what}));
    return;
  }
  StartReply reply{started.pid, started.input.valid(), started.error_output.valid()};
  std::vector<int> pipes = {started.output.get()};
  if (reply.has_input) pipes.push_back(started.input.get());
  if (reply.has_error) pipes.push_back(started.error_output.get());
  Send(command.channel.get(), MessageType::kStarted, Encode(reply), pipes);
  command.failure = std::move(started.failure);
  if (request->output == OutputMode::kTerminal) command.terminal = std::move(started.output);
  running_[started.pid] = std::move(command);
}

void Init::Signal(const SignalRequest& request) {
  for (const auto& [pid, command] : running_) {
    if (command.id != request.id) continue;
    if (request.signal != 0) {
      ::kill(request.group ? -pid : pid, request.signal);
    } else if (command.terminal.valid()) {
      winsize size{request.rows, request.columns, 0, 0};
      ::ioctl(command.terminal.get(), TIOCSWINSZ, &size);
    }
  }
}

void Init::Remount(Frame& frame) {
  const Error error = frame.descriptors.size() == 1 ? MoveToNewRoot(frame.descriptors[0].get())
                                                    : Error{EPROTO, "a broken request"};
  if (error) {
    Send(control_, MessageType::kFailure, Encode(Failure{error.number, error.what}));
  } else {
    Send(control_, MessageType::kDone, {});
  }
}

void Init::Handle(Frame& frame) {
  switch (static_cast<MessageType>(frame.type)) {
    case MessageType::kStart:
      return Start(frame);
    case MessageType::kSignal:
      if (const auto request = Decode<SignalRequest>(frame.body)) Signal(*request);
      return;
    case MessageType::kRemount:
      return Remount(frame);
    default:
      return;
  }
}

// An error ends init: the host has hung up, or nothing it says can be trusted any more.
int Init::HandleControl() {
  if (const int error = receiver_.Read(control_); error != 0) return error;
  while (true) {
    std::optional<Frame> frame;
    if (const int error = receiver_.Next(frame); error != 0) return error;
    if (!frame) return 0;
    Handle(*frame);
  }
}

void Init::Report(Running& command, int wait_status, const rusage& usage) {
  char text[4096];
  const ssize_t n = ::read(command.failure.get(), text, sizeof(text));
  if (n > 0) {  // an encoded Failure: the program never began
    Send(command.channel.get(), MessageType::kFailure, std::string(text, static_cast<size_t>(n)));
    return;
  }
  ExitReport report;
  report.wait_status = wait_status;
  report.user_us = ToUs(usage.ru_utime);
  report.system_us = ToUs(usage.ru_stime);
  report.wall_us = NowUs() - command.started_us;
  report.max_resident_kb = usage.ru_maxrss;
  Send(command.channel.get(), MessageType::kExited, Encode(report));
}

void Init::Reap() {
  signalfd_siginfo info[8];
  while (::read(signals_.get(), info, sizeof(info)) > 0) {
  }
  while (true) {
    int status = 0;
    rusage usage{};
    const pid_t pid = ::wait4(-1, &status, WNOHANG | __WALL, &usage);
    if (pid <= 0) return;
    const auto found = running_.find(pid);
    if (found == running_.end()) continue;  // an orphan
    Report(found->second, status, usage);
    running_.erase(found);
  }
}

int Init::Serve() {
  if (const Error error = Prepare(); error) {
    Send(control_, MessageType::kFailure, Encode(Failure{error.number, error.what}));
    return 1;
  }
  Send(control_, MessageType::kReady, {});
  // A start may have come together with the settings.
  std::optional<Frame> early;
  while (receiver_.Next(early) == 0 && early) Handle(*early);
  while (true) {
    pollfd wait[] = {{control_, POLLIN, 0}, {signals_.get(), POLLIN, 0}};
    if (::poll(wait, 2, -1) < 0 && errno != EINTR) return 1;
    if ((wait[1].revents & POLLIN) != 0) Reap();
    if (wait[0].revents != 0 && HandleControl() != 0) return 0;
  }
}

}  // namespace

int RunInit(int control) { return Init(control).Serve(); }

}  // namespace orrery::sandbox
