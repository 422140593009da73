// An episode that survives what is not its fault: where a sandbox or its host failed, it begins
// once more in a fresh sandbox. What then still fails is an infrastructure failure and no score.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "sandbox/sandbox.h"

namespace orrery::sandbox {

struct EpisodeOptions {
  SandboxOptions sandbox;
  int max_attempts = 3;
  // Called before each further attempt.
  std::function<void(int attempt, const ExecResult& failed)> on_retry;
};

// `body` runs an episode from its beginning in the sandbox it is given, and tells how it ended: it
// may be called several times, and must hold nothing of an earlier call. A Status where the request
// itself is broken; a host without sandboxes for now is an infrastructure failure.
absl::StatusOr<ExecResult> RunEpisode(SandboxHost* host, const EpisodeOptions& options,
                                      const std::function<ExecResult(Sandbox& sandbox)>& body);

}  // namespace orrery::sandbox
