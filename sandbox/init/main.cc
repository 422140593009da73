// The static helper of the sandboxes, three programs in one file: the launcher, init in each
// sandbox, and the probe of `sandbox check`. The first two are executed from a sealed memfd and
// find their socket as descriptor 3.
#include <cstring>

#include "sandbox/init/init.h"
#include "sandbox/launcher/launcher.h"
#include "sandbox/probe/probe.h"

namespace {
constexpr int kSocket = 3, kProgram = 4;
}

int main(int argc, char** argv) {
  if (argc > 0 && std::strcmp(argv[0], "init") == 0) return orrery::sandbox::RunInit(kSocket);
  if (argc > 1) return orrery::sandbox::RunProbe(argc, argv);
  return orrery::sandbox::RunLauncher(kSocket, kProgram);
}
