// events.jsonl: what happened and when, for a person who asks the next morning why the curve looks
// as it does. One object a line:
//   {"time":"2026-01-31T12:00:00.123Z","step":7,"kind":"checkpoint","text":"...","fields":{...}}
// "step" is there for what belongs to a step; a resume removes those after its checkpoint, and
// keeps the rest (start, resume, signals).
//
// Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "orchestrator/run/line_file.h"

namespace orrery::run {

using EventFields = std::vector<std::pair<std::string, std::string>>;

struct Event {
  std::string time;  // UTC, milliseconds; filled in by Journal::Write
  std::optional<int64_t> step;
  std::string kind;  // one word: start, resume, checkpoint, eval, interrupted, metric_not_finite...
  std::string text;  // for a person
  EventFields fields;
};

class Journal {
 public:
  // Makes the file where it is missing; continues it otherwise.
  static absl::StatusOr<std::unique_ptr<Journal>> Open(const std::string& path);

  absl::Status Write(std::string_view kind, std::string_view text, const EventFields& fields = {});
  absl::Status WriteForStep(int64_t step, std::string_view kind, std::string_view text,
                            const EventFields& fields = {});
  absl::Status Sync();

 private:
  explicit Journal(std::unique_ptr<LineFile> file) : file_(std::move(file)) {}
  absl::Status Append(const Event& event);

  std::mutex mutex_;
  const std::unique_ptr<LineFile> file_;  // guarded by mutex_
};

// Errors name the line. A torn last line is left out.
absl::StatusOr<std::vector<Event>> ReadEvents(const std::string& path);

// Removes the events of steps after `step`.
absl::Status KeepEventsUpTo(const std::string& path, int64_t step);

// Now, as events write it.
std::string UtcNow();

}  // namespace orrery::run
