#include "sandbox/launcher/root.h"

#include <fcntl.h>
#include <sys/fsuid.h>

#include "sandbox/launcher/mounts.h"
#include "sandbox/launcher/system.h"

namespace orrery::sandbox {
namespace {

Error AddFolder(int fs, const char* key, int folder) {
  if (system::FsConfig(fs, FSCONFIG_SET_FD, key, nullptr, folder) == 0) return {};
  return LastError(std::string("overlay option ") + key + " (needs Linux 6.15)");
}

Error SetOption(int fs, const char* key, const char* value) {
  if (system::FsConfig(fs, FSCONFIG_SET_STRING, key, value, 0) == 0) return {};
  return LastError(std::string("overlay option ") + key + "=" + value);
}

// Detached mounts are dissolved when they are closed; the overlay takes them when it is created.
using HeldMounts = std::vector<Descriptor>;

// A frozen upper's folder as a mount of its own, read-only.
Error AddFrozen(int fs, const Volume& volume, int id_map, HeldMounts& held) {
  Descriptor& mount = held.emplace_back();
  ORRERY_TRY(CloneMount(volume.upper.get(), "", mount));
  ORRERY_TRY(Restrict(mount.get(), id_map, MOUNT_ATTR_RDONLY));
  return AddFolder(fs, "lowerdir+", mount.get());
}

// Both folders must be of one mount.
Error AddUpper(int fs, const Volume& volume, int id_map, HeldMounts& held) {
  Descriptor& mount = held.emplace_back();
  ORRERY_TRY(CloneMount(volume.mount.get(), "", mount));
  ORRERY_TRY(Restrict(mount.get(), id_map, 0));
  Descriptor upper(::openat(mount.get(), "upper", O_PATH | O_DIRECTORY | O_CLOEXEC));
  Descriptor work(::openat(mount.get(), "work", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!upper.valid() || !work.valid()) return LastError("opening the upper layer");
  ORRERY_TRY(AddFolder(fs, "upperdir", upper.get()));
  return AddFolder(fs, "workdir", work.get());
}

Error AddOptions(int fs, UpperKind kind) {
  // Uppers are worthless after a crash, so nothing is synced (a tmpfs has nothing to sync).
  if (kind != UpperKind::kTmpfs &&
      system::FsConfig(fs, FSCONFIG_SET_FLAG, "volatile", nullptr, 0) != 0) {
    return LastError("overlay option volatile");
  }
  // A directory of the image is renamed by copying, as Docker does it: what an episode changed is
  // then in the upper layer alone.
  for (const char* option : {"redirect_dir", "metacopy", "index", "xino"}) {
    ORRERY_TRY(SetOption(fs, option, "off"));
  }
  return {};
}

// The overlay keeps the credentials of this moment for its own work on the upper layer.
Error CreateAs(int fs, uint32_t id) {
  ::setfsuid(id);
  ::setfsgid(id);
  const int result = system::FsConfig(fs, FSCONFIG_CMD_CREATE, nullptr, nullptr, 0);
  const Error error = result == 0 ? Error{} : LastError("creating the overlay");
  ::setfsuid(0);
  ::setfsgid(0);
  return error;
}

}  // namespace

Error MakeRoot(const CreateRequest& request, const std::vector<const Volume*>& frozen,
               const Volume& volume, IdMaps& id_maps, LayerMounts& layers, Descriptor& root) {
  int upper_ids = -1;
  ORRERY_TRY(id_maps.Get(kUpperIdBase, request.id_base, upper_ids));
  Descriptor fs(system::FsOpen("overlay"));
  if (!fs.valid()) return LastError("fsopen of overlay");
  HeldMounts held;
  for (size_t i = frozen.size(); i-- > 0;) {
    ORRERY_TRY(AddFrozen(fs.get(), *frozen[i], upper_ids, held));
  }
  for (size_t i = request.layers.size(); i-- > 0;) {
    int layer = -1;
    ORRERY_TRY(layers.Get(request.layers[i], request.id_base, layer));
    ORRERY_TRY(AddFolder(fs.get(), "lowerdir+", layer));
  }
  ORRERY_TRY(AddUpper(fs.get(), volume, upper_ids, held));
  ORRERY_TRY(AddOptions(fs.get(), request.upper));
  ORRERY_TRY(CreateAs(fs.get(), request.id_base));
  root.Reset(system::FsMount(fs.get(), MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID));
  return root.valid() ? Error{} : LastError("fsmount of the overlay");
}

}  // namespace orrery::sandbox
