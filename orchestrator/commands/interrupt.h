// Ctrl-C: once asks for an end at the next safe point, twice ends at once.
#pragma once

#include <atomic>

namespace orrery::commands {

// Installs the handlers for SIGINT and SIGTERM; the flag becomes true on the first signal. The
// second one ends the process with exit code 130.
const std::atomic<bool>& InterruptFlag();

}  // namespace orrery::commands
