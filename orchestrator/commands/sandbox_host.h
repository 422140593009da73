// `orrery sandbox-host`: this machine's sandboxes for others, over gRPC. Serves until SIGTERM or
// SIGINT, then drains: no new sandboxes, and it waits for those that run; a second signal ends at
// once.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "orchestrator/commands/commands.h"
#include "sandbox/remote/remote_host.h"

namespace CLI {
class App;
}

namespace orrery::commands {

void AddSandboxHostCommand(CLI::App* app, std::function<absl::StatusOr<Ending>()>* chosen);

// What both sides of a connection are told: --token-file, --tls-cert, --tls-key, --tls-ca.
struct SecurityFiles {
  std::string token, certificate, key, authority;

  void AddOptions(CLI::App* command);
  absl::StatusOr<sandbox::RemoteSecurity> Read() const;
};

}  // namespace orrery::commands
