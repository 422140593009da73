#include "sandbox/episode.h"

#include "orchestrator/base/status.h"

namespace orrery::sandbox {
namespace {

bool MayPass(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsInternal(status) || absl::IsCancelled(status) ||
         absl::IsDeadlineExceeded(status);
}

bool FailedOfItself(const ExecResult& result) {
  return result.ending == Ending::kInfrastructure && result.retryable;
}

absl::StatusOr<ExecResult> Attempt(SandboxHost* host, const EpisodeOptions& options,
                                   const std::function<ExecResult(Sandbox&)>& body) {
  absl::StatusOr<std::unique_ptr<Sandbox>> sandbox = host->Create(options.sandbox);
  if (sandbox.ok()) return body(**sandbox);
  if (!MayPass(sandbox.status())) return sandbox.status();
  ExecResult result;
  result.ending = Ending::kInfrastructure;
  result.retryable = true;
  result.why = StatusText(sandbox.status());
  return result;
}

}  // namespace

absl::StatusOr<ExecResult> RunEpisode(SandboxHost* host, const EpisodeOptions& options,
                                      const std::function<ExecResult(Sandbox& sandbox)>& body) {
  for (int attempt = 1;; ++attempt) {
    ASSIGN_OR_RETURN(ExecResult result, Attempt(host, options, body));
    if (!FailedOfItself(result) || attempt >= options.max_attempts) return result;
    if (options.on_retry) options.on_retry(attempt + 1, result);
  }
}

}  // namespace orrery::sandbox
