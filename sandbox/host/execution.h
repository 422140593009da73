// One command from its start to its result, on the caller's thread: it waits on the command's
// channel (init's reports), its pipes and its deadline, and decides how the command ended.
//
// Completion is the report of the process's exit. What it had written by then is in its pipes and
// is read to the last byte; a background process that holds a pipe open is not waited for.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "sandbox/host/output_keeper.h"
#include "sandbox/protocol/descriptor.h"
#include "sandbox/protocol/frame.h"
#include "sandbox/protocol/messages.h"
#include "sandbox/sandbox.h"

namespace orrery::sandbox {

class Execution {
 public:
  struct Settings {
    std::string input;
    std::function<std::string()> next_input;
    int input_fd = -1, stop_fd = -1;
    bool terminal = false;  // input goes where output comes from
    int64_t timeout_ms = 0, keep_bytes = 0, output_cap_bytes = 0;
    std::function<void(std::string_view bytes, bool error_stream)> on_output;
  };

  // `channel`: the host's end. `kill`: kills the command's whole tree.
  Execution(Settings settings, Descriptor channel, std::function<void()> kill);
  ExecResult Run();

 private:
  using Clock = std::chrono::steady_clock;

  bool Wait();
  int PollTimeoutMs() const;
  void Strike(Ending ending);
  void CheckDeadline();
  void ReadChannel();
  void HandleFrame(Frame& frame);
  void TakePipes(Frame& frame);
  void Finish(const ExitReport& report);
  void Lose(std::string why);
  // Reads at most `most` bytes; false at the end of the stream.
  bool ReadOutput(bool error_stream, int64_t most);
  void Drain(bool error_stream);
  void WriteInput();
  bool RefillInput();
  void ReadInput();

  Settings settings_;
  Descriptor channel_;
  std::function<void()> kill_;
  FrameReceiver receiver_;
  Descriptor output_, error_output_, input_;
  OutputKeeper kept_, kept_error_;
  size_t input_offset_ = 0;
  Clock::time_point begin_, deadline_;
  bool struck_ = false, done_ = false;
  Ending strike_ = Ending::kDeadline;
  ExecResult result_;
};

}  // namespace orrery::sandbox
