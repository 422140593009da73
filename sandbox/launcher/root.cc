#include "sandbox/launcher/root.h"

#include <fcntl.h>
#include <sys/fsuid.h>

#include "sandbox/launcher/mounts.h"
#include "sandbox/launcher/system.h"

namespace orrery::sandbox {
namespace {

// One overlay in the making.
struct Making {
  int fs = -1;
  Stage& stage;
  std::vector<StagedMount> held;  // until the overlay, which takes them, is created
};

// By descriptor since Linux 6.13; before, by a path, which must lead to a mount that hangs
// somewhere.
Error AddFolder(const Making& making, const char* key, int folder) {
  if (making.stage.is_open()) {
    const std::string path = "/proc/self/fd/" + std::to_string(folder);
    if (system::FsConfig(making.fs, FSCONFIG_SET_STRING, key, path.c_str(), 0) == 0) return {};
    return LastError(std::string("overlay option ") + key + " (needs Linux 6.7)");
  }
  if (system::FsConfig(making.fs, FSCONFIG_SET_FD, key, nullptr, folder) == 0) return {};
  return LastError(std::string("overlay option ") + key + " (needs Linux 6.15)");
}

Error SetOption(int fs, const char* key, const char* value) {
  if (system::FsConfig(fs, FSCONFIG_SET_STRING, key, value, 0) == 0) return {};
  return LastError(std::string("overlay option ") + key + "=" + value);
}

// A copy of what a folder's mount shows, through an id map.
Error Show(Making& making, int folder, int id_map, unsigned attributes, int& mount) {
  Descriptor copy;
  ORRERY_TRY(CloneMount(folder, "", copy));
  ORRERY_TRY(Restrict(copy.get(), id_map, attributes));
  ORRERY_TRY(making.stage.Keep(std::move(copy), making.held.emplace_back()));
  mount = making.held.back().get();
  return {};
}

Error AddFrozen(Making& making, const Volume& volume, int id_map) {
  int mount = -1;
  ORRERY_TRY(Show(making, volume.upper.get(), id_map, MOUNT_ATTR_RDONLY, mount));
  return AddFolder(making, "lowerdir+", mount);
}

// Both folders must be of one mount.
Error AddUpper(Making& making, const Volume& volume, int id_map) {
  int mount = -1;
  ORRERY_TRY(Show(making, volume.mount.get(), id_map, 0, mount));
  Descriptor upper(::openat(mount, "upper", O_PATH | O_DIRECTORY | O_CLOEXEC));
  Descriptor work(::openat(mount, "work", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!upper.valid() || !work.valid()) return LastError("opening the upper layer");
  ORRERY_TRY(AddFolder(making, "upperdir", upper.get()));
  return AddFolder(making, "workdir", work.get());
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
               const Volume& volume, IdMaps& id_maps, LayerMounts& layers, Stage& stage,
               Descriptor& root) {
  int upper_ids = -1;
  ORRERY_TRY(id_maps.Get(kUpperIdBase, request.id_base, upper_ids));
  Descriptor fs(system::FsOpen("overlay"));
  if (!fs.valid()) return LastError("fsopen of overlay");
  Making making{fs.get(), stage, {}};
  for (size_t i = frozen.size(); i-- > 0;) {
    ORRERY_TRY(AddFrozen(making, *frozen[i], upper_ids));
  }
  for (size_t i = request.layers.size(); i-- > 0;) {
    int layer = -1;
    ORRERY_TRY(layers.Get(request.layers[i], request.id_base, layer));
    ORRERY_TRY(AddFolder(making, "lowerdir+", layer));
  }
  ORRERY_TRY(AddUpper(making, volume, upper_ids));
  ORRERY_TRY(AddOptions(fs.get(), request.upper));
  ORRERY_TRY(CreateAs(fs.get(), request.id_base));
  root.Reset(system::FsMount(fs.get(), MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID));
  return root.valid() ? Error{} : LastError("fsmount of the overlay");
}

}  // namespace orrery::sandbox
