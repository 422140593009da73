// The launcher: a small process that clones sandboxes. It is PID 1 of a pid namespace in which all
// its sandboxes lie, holds their writable layers, and ends when the socket to its host does:
// however the host dies, the kernel then kills every sandbox and unmounts every layer.
//
// It answers one request after the other. Sandboxes report to the host themselves when they are
// ready, so that the slow half of a start runs beside the next one.
#pragma once

namespace orrery::sandbox {

// Serves until the host hangs up. `init`: the program of init, a sealed memfd.
int RunLauncher(int socket, int init);

}  // namespace orrery::sandbox
