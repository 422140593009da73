#include "orchestrator/commands/checkpoint_check.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "orchestrator/base/manifest.h"
#include "orchestrator/base/status.h"

namespace orrery::commands {
namespace {

constexpr const char* kStateFiles[] = {"optimizer.safetensors", "loop.json"};

bool IsStateFile(const ManifestEntry& entry) {
  return std::find(std::begin(kStateFiles), std::end(kStateFiles), entry.name) !=
         std::end(kStateFiles);
}

absl::Status CheckUnlisted(const std::string& folder) {
  std::error_code error;
  if (!std::filesystem::exists(folder + "/loop.json", error)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const LoopState state, LoadLoopState(folder));
  if (state.has_checksums) {
    return InvalidInput("{}/{}: is missing; the checkpoint was written with one", folder,
                        kManifestFile);
  }
  std::fprintf(stderr,
               "warning: %s has no %s (an older version wrote it): its files are used unchecked\n",
               folder.c_str(), kManifestFile);
  return absl::OkStatus();
}

std::optional<int64_t> StepBefore(const run::Checkpoints& checkpoints, int64_t step) {
  const absl::StatusOr<std::vector<int64_t>> steps = checkpoints.List();
  std::optional<int64_t> before;
  if (!steps.ok()) return before;
  for (const int64_t each : *steps) {
    if (each < step) before = each;
  }
  return before;
}

}  // namespace

absl::Status CheckCheckpoint(const std::string& folder, CheckpointUse use) {
  ASSIGN_OR_RETURN(std::optional<Manifest> manifest, ReadManifest(folder));
  if (!manifest) return CheckUnlisted(folder);
  if (use == CheckpointUse::kState) return CheckFiles(folder, *manifest);
  std::erase_if(*manifest, IsStateFile);
  const absl::Status status = CheckFiles(folder, *manifest);
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      fmt::format("{}; take another checkpoint, or, where this is a change of yours, remove {} and "
                  "loop.json: the folder is then a model like any other",
                  StatusText(status), kManifestFile));
}

absl::StatusOr<LoopState> ReadCheckpoint(const run::Checkpoints& checkpoints, int64_t step) {
  const std::string folder = checkpoints.Path(step);
  const absl::Status sound = CheckCheckpoint(folder, CheckpointUse::kState);
  if (!sound.ok()) return UnusableCheckpoint(sound, checkpoints, step);
  absl::StatusOr<LoopState> state = LoadLoopState(folder);
  if (!state.ok()) return UnusableCheckpoint(state.status(), checkpoints, step);
  if (state->step != step) {
    return UnusableCheckpoint(InvalidInput("{}/loop.json: is of step {}", folder, state->step),
                              checkpoints, step);
  }
  return state;
}

absl::Status UnusableCheckpoint(const absl::Status& status, const run::Checkpoints& checkpoints,
                                int64_t step) {
  if (status.ok()) return status;
  const std::string folder = checkpoints.Path(step);
  const std::optional<int64_t> before = StepBefore(checkpoints, step);
  const std::string from =
      before ? fmt::format("{}, the checkpoint before it", checkpoints.Path(*before))
             : "the beginning, as there is no earlier checkpoint";
  return absl::Status(status.code(),
                      fmt::format("{}; move {} away to resume from {}: mv {} {}.damaged",
                                  StatusText(status), folder, from, folder, folder));
}

}  // namespace orrery::commands
