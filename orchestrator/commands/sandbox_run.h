// `orrery sandbox run|ps|exec|kill|check|bench`: sandboxes at the command line.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "orchestrator/commands/commands.h"
#include "sandbox/host/local_host.h"

namespace CLI {
class App;
}

namespace orrery::commands {

// Adds the commands to `orrery sandbox`; the one that is called sets `chosen`. run and exec end the
// process with the command's own exit code: 124 at the deadline, 125 where it could not be run or
// its sandbox failed, 128 + N by signal N.
void AddSandboxRunCommands(CLI::App* sandbox, std::function<absl::StatusOr<Ending>()>* chosen);

// "tmpfs", "loop", "project_quota", "auto" or "unlimited": where changes lie.
absl::Status ApplyDisk(const std::string& name, sandbox::HostOptions* options);
const char* DiskHelp();

// On standard error.
void PrintWarnings(const sandbox::SandboxHost& host);

}  // namespace orrery::commands
