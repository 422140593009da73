// Where a run stands between two steps: with the trainer's part, all that a checkpoint needs to go
// on as if nothing had happened.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orrery {

struct LoopState {
  int64_t step = 0;           // rollout steps done
  int64_t data_position = 0;  // prompts taken from the dataset's order
  uint64_t next_episode_id = 0;
  uint64_t next_group_id = 0;
  std::string data_fingerprint;
  // What it ran on: a resumed run is bitwise the same on the same kind of machine.
  int64_t threads = 0;
  std::string simd;  // instruction set of the kernels; empty: not recorded
  // Its checkpoint has a manifest of checksums: every one that is written now.
  bool has_checksums = true;

  bool operator==(const LoopState&) const = default;
};

// What a run that began on `then` should tell its user when it goes on on `now`; empty where the
// machines are alike.
std::string MachineNote(const LoopState& then, const LoopState& now);

// loop.json in a checkpoint's folder.
absl::Status SaveLoopState(const LoopState& state, const std::string& folder);
absl::StatusOr<LoopState> LoadLoopState(const std::string& folder);

}  // namespace orrery
