#include "sandbox/launcher/mounts.h"

#include <fcntl.h>

#include "sandbox/launcher/system.h"

namespace orrery::sandbox {

Error MakeMount(const char* type, const MountOptions& options, unsigned attributes,
                Descriptor& mount) {
  Descriptor fs(system::FsOpen(type));
  if (!fs.valid()) return LastError(std::string("fsopen of ") + type);
  for (const auto& [key, value] : options) {
    if (system::FsConfig(fs.get(), FSCONFIG_SET_STRING, key.c_str(), value.c_str(), 0) != 0) {
      return LastError(std::string(type) + " option " + key + "=" + value);
    }
  }
  if (system::FsConfig(fs.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) {
    return LastError(std::string("creating a ") + type);
  }
  mount.Reset(system::FsMount(fs.get(), attributes));
  return mount.valid() ? Error{} : LastError(std::string("fsmount of ") + type);
}

Error CloneMount(int folder, const std::string& path, Descriptor& mount) {
  const unsigned flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH;
  mount.Reset(system::OpenTree(folder, path.c_str(), flags));
  return mount.valid() ? Error{} : LastError("open_tree of " + (path.empty() ? "a mount" : path));
}

Error Restrict(int mount, int id_map, unsigned attributes) {
  mount_attr set{};
  set.attr_set = attributes;
  if (id_map >= 0) {
    set.attr_set |= MOUNT_ATTR_IDMAP;
    set.userns_fd = static_cast<uint64_t>(id_map);
  }
  if (system::MountSetAttr(mount, "", AT_EMPTY_PATH, set) == 0) return {};
  return LastError(id_map < 0 ? "mount_setattr"
                              : "idmapping a mount (the file system below must allow it)");
}

Error OpenTarget(int root, const std::string& path, Descriptor& target) {
  target.Reset(system::OpenAt2(root, path.c_str(), O_PATH | O_CLOEXEC,
                               RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS));
  if (target.valid()) return {};
  return LastError("opening the image's /" + path + " as a place to mount on");
}

Error Attach(int mount, int target, const std::string& where) {
  if (system::MoveMount(mount, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) ==
      0) {
    return {};
  }
  return LastError("mounting on " + where);
}

}  // namespace orrery::sandbox
