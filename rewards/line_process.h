// A child process that answers lines with lines. It lives in its own process group, so a Ctrl-C at
// the terminal does not reach it; the whole group is killed and the child reaped by the destructor.
//
// One thread at a time. The kernel kills the child when the *thread* that started it ends
// (PR_SET_PDEATHSIG), so start it on a thread that lives as long as the object.
//
// Nothing the child does can hang, kill or grow this process: every wait has a deadline, a closed
// pipe raises no SIGPIPE here, lines and what is kept of its stderr are limited.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace orrery::rewards {

class LineProcess {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kMaxLineBytes = size_t{1} << 20;
  static constexpr size_t kKeptStderrBytes = 2048;

  // argv[0] is looked up in PATH. The child inherits the environment and no file but its three
  // pipes.
  static absl::StatusOr<std::unique_ptr<LineProcess>> Start(const std::vector<std::string>& argv);
  ~LineProcess();
  LineProcess(const LineProcess&) = delete;
  LineProcess& operator=(const LineProcess&) = delete;

  // Sends `line` and a newline, returns the next line without it. After an error the exchange is
  // out of step and the object of no further use. DeadlineExceeded; Unavailable: it ended or closed
  // its output; InvalidArgument: a line without end. REQUIRES: no newline in `line`.
  absl::StatusOr<std::string> Ask(std::string_view line, Clock::time_point deadline);

  // After Ask() found it ended: it exited with code 0.
  bool ended_cleanly() const { return ended_cleanly_; }

  // Running, and silent since its last answer.
  bool Ready();

  // The end of what it wrote to stderr, for messages; empty where it wrote nothing.
  std::string LastWords();

 private:
  LineProcess() = default;

  absl::Status WaitForInput(bool want_write, Clock::time_point deadline);
  void Write(std::string_view* rest);
  void ReadOutput();
  void ReadErrors();
  absl::Status EndedStatus();

  pid_t pid_ = -1;
  int pidfd_ = -1;
  int input_ = -1;   // the child's stdin, our writing end
  int output_ = -1;  // its stdout
  int errors_ = -1;  // its stderr; -1 once closed
  bool output_ended_ = false;
  bool input_closed_ = false;
  bool exited_ = false;
  bool ended_cleanly_ = false;
  std::string buffer_;  // of stdout, not yet returned
  std::string kept_errors_;
};

}  // namespace orrery::rewards
