// The folder of one run (DESIGN section 9), held by one process at a time.
//
//   experiment.yaml   metrics.jsonl   events.jsonl   tb/   samples/   checkpoints/   .lock
//
// Create() makes a new one, Resume() continues one; either takes the lock and keeps it until the
// object goes. The lock is a flock() on .lock, so it ends with the process however it ends; the
// file itself stays and holds the pid of its last owner. (A child that is forked without exec and
// lives on would keep the lock: start helpers before this object, or through exec.)
//
// The order that makes kill -9 harmless at any moment: metrics, events and samples of a step are on
// the disk before a checkpoint of that step gets its name, so the newest checkpoint always finds
// its whole past; and what stands after it is cut off by TruncateAfter() before the run goes on.
//
// Readers (plot, inspect, score) need no object and no lock: the paths below are all they use.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "orchestrator/run/checkpoints.h"

namespace orrery::run {

// The name with %XX for every byte that is no letter, digit, '-', '_' or '.'.
std::string SafeFileName(std::string_view name);

// Where things are in the run directory `directory`.
struct RunPaths {
  explicit RunPaths(std::string directory) : root(std::move(directory)) {}
  std::string experiment() const { return root + "/experiment.yaml"; }
  std::string metrics() const { return root + "/metrics.jsonl"; }
  std::string events() const { return root + "/events.jsonl"; }
  std::string tensorboard() const { return root + "/tb"; }
  std::string samples() const { return root + "/samples"; }
  std::string samples_of(int64_t step) const;
  std::string eval_samples_of(int64_t step, std::string_view eval) const;
  std::string checkpoints() const { return root + "/checkpoints"; }
  std::string report() const { return root + "/report.html"; }
  std::string trace() const { return root + "/trace.json"; }
  std::string lock() const { return root + "/.lock"; }

  std::string root;
};

class RunDirectory {
 public:
  // Makes the folder and writes experiment.yaml. Refuses (kFailedPrecondition) a folder that holds
  // a run already and names the command that continues it, or one that another process holds.
  static absl::StatusOr<std::unique_ptr<RunDirectory>> Create(const std::string& directory,
                                                              std::string_view experiment_yaml);
  // Takes the lock of an existing run and removes what a crash left half-made. kNotFound where
  // there is no run.
  static absl::StatusOr<std::unique_ptr<RunDirectory>> Resume(const std::string& directory);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const RunPaths& paths() const { return paths_; }
  Checkpoints& checkpoints() { return checkpoints_; }
  absl::StatusOr<std::string> ReadExperiment() const;

  // Makes the run look as it did when step `step` ended: later checkpoints, metric lines, events,
  // sample files and TensorBoard records are removed. Call it before the sinks are opened. May be
  // repeated after a crash on its way.
  absl::Status TruncateAfter(int64_t step);

  // Checkpoints::Commit() after everything the checkpoint's past consists of was synced.
  absl::Status CommitCheckpoint(int64_t step);

 private:
  RunDirectory(RunPaths paths, int lock_fd)
      : paths_(std::move(paths)), checkpoints_(paths_.checkpoints()), lock_fd_(lock_fd) {}

  const RunPaths paths_;
  Checkpoints checkpoints_;
  const int lock_fd_;
};

// Whether `directory` holds a run (has an experiment.yaml).
bool HoldsRun(const std::string& directory);
// The refusal of Create(), for asking before work is spent on a run that has no place.
absl::Status CheckHoldsNoRun(const std::string& directory);

// Steps that have a samples file, ascending; of an evaluation where one is named.
absl::StatusOr<std::vector<int64_t>> SampleSteps(const std::string& run_directory,
                                                 std::optional<std::string_view> eval = {});

struct EvalSamples {
  int64_t step = 0;
  std::string path;
};
// The newest samples file of each evaluation that has one, by the evaluation's name.
absl::StatusOr<std::map<std::string, EvalSamples>> NewestEvalSamples(
    const std::string& run_directory);

}  // namespace orrery::run
