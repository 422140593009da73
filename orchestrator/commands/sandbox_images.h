// `orrery sandbox import|pull|images|rm|gc`: the image store at the command line.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "orchestrator/commands/commands.h"

namespace CLI {
class App;
}

namespace orrery::commands {

// Adds the commands to `orrery sandbox`; the one that is called sets `chosen`.
void AddSandboxImageCommands(CLI::App* sandbox, std::function<absl::StatusOr<Ending>()>* chosen);

// $ORRERY_IMAGE_STORE, or /var/lib/orrery/images.
std::string DefaultImageStore();

}  // namespace orrery::commands
