// trace.json: what ran when on which thread, for chrome://tracing or ui.perfetto.dev.
//
// Trace Event Format, array form (Google's document "Trace Event Format"): complete events (ph "X")
// with microseconds. The closing bracket, written at the end, may be missing by that document, so
// that the file of a killed run opens; a resumed run continues the file. Thread-safe; events reach
// the file on Flush() and whenever a buffer is full.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orrery::run {

class TraceWriter {
 public:
  static absl::StatusOr<std::unique_ptr<TraceWriter>> Open(const std::string& path);
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // Microseconds of the clock that events are stamped with: wall time, so that the processes of a
  // run share one axis.
  static int64_t NowUs();

  // `track` is a row of the picture: a phase, a thread, a worker, an engine slot. `step` is shown
  // with the event where it is not negative.
  void Complete(std::string_view name, std::string_view category, int64_t begin_us,
                int64_t duration_us, int32_t track = 0, int64_t step = -1);
  // Names a row; rows stand in the order of their numbers.
  void NameTrack(int32_t track, std::string_view name);
  // Names the group of rows that this process is.
  void NameProcess(std::string_view name);
  // The first error of writing so far, if any.
  absl::Status Flush();

 private:
  TraceWriter(std::string path, int fd, bool empty)
      : path_(std::move(path)), fd_(fd), empty_(empty) {}
  void Append(std::string event);
  absl::Status FlushLocked();

  const std::string path_;
  const int fd_;
  std::mutex mutex_;
  std::string buffer_;   // guarded by mutex_
  bool empty_;           // guarded by mutex_: no event yet, so no comma
  absl::Status status_;  // guarded by mutex_
};

// Stamps its own life. `trace` may be null: then it costs nothing.
class TraceSpan {
 public:
  TraceSpan(TraceWriter* trace, std::string_view name, std::string_view category, int32_t track = 0,
            int64_t step = -1)
      : trace_(trace),
        name_(name),
        category_(category),
        track_(track),
        step_(step),
        begin_us_(trace == nullptr ? 0 : TraceWriter::NowUs()) {}
  ~TraceSpan() {
    if (trace_ == nullptr) return;
    trace_->Complete(name_, category_, begin_us_, TraceWriter::NowUs() - begin_us_, track_, step_);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  TraceWriter* const trace_;
  const std::string_view name_;      // borrowed: literals
  const std::string_view category_;  // borrowed: literals
  const int32_t track_;
  const int64_t step_;
  const int64_t begin_us_;
};

}  // namespace orrery::run
