// A shell that stays: folder, variables, functions and background jobs of one script are there for
// the next. It is one long command of the sandbox, so that what it starts is killed with it.
//
// A script at its deadline or output cap takes the shell with it, as everything that the script
// began must die; so does `exit`. The next script then has a new shell in the folder where the last
// whole script ended: variables are lost, which the result says.
//
// The end of a script is a line that the shell writes with a number that the script does not know.
// A script could get hold of it and lie about its own exit code, which it is free to choose anyway:
// what is graded runs by Exec.
//
// Threads: one script at a time; Run may be called from any thread.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "sandbox/host/output_keeper.h"
#include "sandbox/protocol/descriptor.h"
#include "sandbox/sandbox.h"

namespace orrery::sandbox {

struct ShellOptions {
  std::vector<std::string> program = {"bash", "--norc", "--noprofile"};  // any POSIX shell
  std::vector<std::string> env;
  std::string folder, user;
  int64_t keep_bytes = 1 << 20;
  int64_t output_cap_bytes = 256ll << 20;  // of one script
};

class Shell {
 public:
  // The sandbox outlives it. The program begins with the first script.
  Shell(Sandbox* sandbox, ShellOptions options)
      : sandbox_(sandbox), options_(std::move(options)), kept_(options_.keep_bytes) {}
  ~Shell();

  // As Exec, with what happened meanwhile; output is merged. timeout_ms 0: none.
  ExecResult Run(const std::string& script, int64_t timeout_ms = 60'000);
  const std::string& folder() const { return options_.folder; }

 private:
  absl::Status Begin();
  void Serve();
  void End();
  bool Send(std::string_view text, int64_t timeout_ms);
  void TakeOutput(std::string_view bytes);
  void Keep(std::string_view bytes);
  bool TakeMark(std::string_view line);
  ExecResult Collect(bool in_time);

  Sandbox* sandbox_;
  ShellOptions options_;
  std::mutex run_mutex_;  // one script at a time
  std::thread thread_;    // runs the shell's command
  Descriptor input_, their_input_, stop_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string mark_;  // what the line at the script's end begins with; empty: no script runs
  std::string tail_;  // of the output, may be the beginning of the mark
  OutputKeeper kept_;
  bool marked_ = false, ended_ = false, over_cap_ = false;
  int code_ = 0;
  ExecResult end_;  // of the shell
};

}  // namespace orrery::sandbox
