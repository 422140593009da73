// What the terminal tells while a run is on: one line that is redrawn in place, with a forecast of
// the time left; where the output is no terminal, one plain line a step and no control codes.
//
//   step  12/60  reward 0.531  len 48.2  kl 0.0e+00  12.4k tok/s  1.05 s  left 0:50
//
// Thread-safe: notes may come from any thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "orchestrator/run/metrics.h"

namespace orrery::run {

// What a stream can show.
struct ConsoleTraits {
  bool terminal = false;  // may be redrawn in place
  bool color = false;     // a terminal, unless NO_COLOR is set or TERM is dumb
  bool unicode = false;   // the locale's characters are UTF-8
  int columns = 80;
};
ConsoleTraits TraitsOf(std::FILE* file);

// "0:07", "12:30", "3:05:00", "4d 06:00".
std::string FormatDuration(double seconds);
// "812", "12.4k", "3.10M": three figures.
std::string FormatCount(double value);
// 3 significant figures, as short as they go; "-" for what is not finite.
std::string FormatValue(double value);

class Console : public MetricSink {
 public:
  // `file` is borrowed. `now` gives seconds of a clock that does not go back; tests bring their
  // own.
  Console(std::FILE* file, ConsoleTraits traits, int64_t first_step, int64_t last_step,
          std::function<double()> now);
  Console(std::FILE* file, int64_t first_step, int64_t last_step);
  // Leaves the terminal on a fresh line.
  ~Console() override;

  absl::Status Write(const StepMetrics& metrics) override;
  absl::Status Flush() override;

  // "rollout 96/256" behind the line of the last step; shown on terminals only, at most 10 times a
  // second.
  void Stage(std::string_view text);
  // A line of its own that stays: a checkpoint was written, an evaluation ended.
  void Note(std::string_view text);

  // Seconds that the steps left will take, from the median of the last ones; negative while
  // unknown.
  double SecondsLeft() const;

 private:
  double SecondsLeftLocked() const;
  std::string StepLine(const StepMetrics& metrics) const;
  void Redraw();
  void Erase();

  std::FILE* const file_;
  const ConsoleTraits traits_;
  const int64_t last_step_;
  const std::function<double()> now_;

  mutable std::mutex mutex_;
  int64_t step_;  // guarded by mutex_, as all below: the last one done
  double step_began_;
  std::deque<double> step_seconds_;  // of the last few steps
  std::string line_;
  std::string stage_;
  double last_redraw_ = -1;
  bool drawn_ = false;  // something stands on the terminal's current line
};

}  // namespace orrery::run
