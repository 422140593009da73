// The static helper of the sandboxes, two programs in one file: the launcher and, in each sandbox,
// init. Both are executed from a sealed memfd and find their socket as descriptor 3.
#include <cstring>

#include "sandbox/init/init.h"
#include "sandbox/launcher/launcher.h"

namespace {
constexpr int kSocket = 3, kProgram = 4;
}

int main(int argc, char** argv) {
  if (argc > 0 && std::strcmp(argv[0], "init") == 0) return orrery::sandbox::RunInit(kSocket);
  return orrery::sandbox::RunLauncher(kSocket, kProgram);
}
