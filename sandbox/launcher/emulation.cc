#include "sandbox/launcher/emulation.h"

#include <fcntl.h>

#include "sandbox/launcher/mounts.h"
#include "sandbox/launcher/system.h"

namespace orrery::sandbox {
namespace {

constexpr char kFolder[] = "proc/sys/fs/binfmt_misc";

}  // namespace

Error OpenEmulator(const CreateRequest& request, Descriptor& emulator) {
  if (request.emulator.empty()) return {};
  emulator.Reset(::open(request.emulator.c_str(), O_RDONLY | O_CLOEXEC));
  if (emulator.valid()) return {};
  return LastError("opening " + request.emulator +
                   " for an image of another architecture (apt-get install qemu-user-static)");
}

Error RegisterEmulator(const CreateRequest& request, int emulator) {
  if (request.emulator.empty()) return {};
  Descriptor mount, target, root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (Error error = MakeMount("binfmt_misc", {},
                              MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC, mount);
      error) {
    return {error.number, error.what + " (needs Linux 6.7 with CONFIG_BINFMT_MISC)"};
  }
  ORRERY_TRY(OpenTarget(root.get(), kFolder, target));
  ORRERY_TRY(Attach(mount.get(), target.get(), std::string("/") + kFolder));
  Descriptor file(::openat(mount.get(), "register", O_WRONLY | O_CLOEXEC));
  const std::string rule =
      request.binfmt_rule + "/proc/self/fd/" + std::to_string(emulator) + ":POF";
  if (!file.valid() || ::write(file.get(), rule.data(), rule.size()) < 0) {
    return LastError("registering " + request.emulator + " with binfmt_misc");
  }
  return {};
}

}  // namespace orrery::sandbox
