#include "sandbox/check/probing.h"

#include "orchestrator/base/status.h"
#include "sandbox/host/helper_program.h"

namespace orrery::sandbox {

absl::StatusOr<Probing> Probing::Begin(SandboxHost* host, const SandboxOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<Sandbox> sandbox, host->Create(options));
  RETURN_IF_ERROR(sandbox->Put("/probe", HelperProgramBytes(), 0755));
  return Probing(std::move(sandbox));
}

ExecRequest Probing::Request(const std::string& load, int64_t number, int64_t timeout_ms) {
  ExecRequest request;
  request.argv = {"/probe", load, std::to_string(number)};
  request.timeout_ms = timeout_ms;
  return request;
}

bool Probing::Answers() const {
  const ExecResult result = Run("server", 0, 10'000);
  return result.ok() && result.output.head.starts_with("started");
}

}  // namespace orrery::sandbox
