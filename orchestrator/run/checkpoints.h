// The folder checkpoints/ of a run: each checkpoint is there entirely or not at all, whatever kills
// the process or the machine, and the last good one is never touched by the making of the next.
//
//   path = Begin(20)    checkpoints/.writing-step-20, for the trainer to fill; its manifest is open
//   Commit(20)          checksums.txt made (orchestrator/base/manifest.h), every file synced, then
//                       the folder renamed to checkpoints/step-20
//   Abort(20)           the half-made folder is removed
//
// Names that begin with '.' are unfinished business: .writing-step-N is being made, .old-step-N is
// being replaced by a newer step-N, .removing-step-N is being deleted. CleanUp() settles what a
// crash left. Not thread-safe; the owner holds the lock of the run directory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orrery::run {

class Checkpoints {
 public:
  explicit Checkpoints(std::string folder) : folder_(std::move(folder)) {}

  absl::StatusOr<std::string> Begin(int64_t step);
  // REQUIRES: Begin(step) before. On an error nothing of the new checkpoint stays and the older
  // ones are as they were. A checkpoint of the same step is replaced.
  absl::Status Commit(int64_t step);
  absl::Status Abort(int64_t step);

  // Steps of the complete ones, ascending. Reads the folder each time: may be called on a run that
  // another process writes.
  absl::StatusOr<std::vector<int64_t>> List() const;
  absl::StatusOr<std::optional<int64_t>> Latest() const;
  std::string Path(int64_t step) const;

  // Keeps the `keep` newest (0: all), besides every multiple of `keep_every` steps for good (0:
  // none). The newest one always stays. Returns the steps that were removed.
  absl::StatusOr<std::vector<int64_t>> Prune(int64_t keep, int64_t keep_every);
  // Removes those after `step`, newest first: a crash on the way leaves a shorter list without
  // gaps.
  absl::Status RemoveAfter(int64_t step);
  absl::Status CleanUp();

 private:
  std::string Hidden(const char* state, int64_t step) const;
  absl::Status Remove(int64_t step);

  const std::string folder_;
};

// fsync of every file and folder below and of `path` itself.
absl::Status SyncTree(const std::string& path);

// The number of names like "step-12" or "step-12.jsonl.zst", given what stands around it.
std::optional<int64_t> StepOfName(std::string_view name, std::string_view prefix,
                                  std::string_view suffix);

}  // namespace orrery::run
