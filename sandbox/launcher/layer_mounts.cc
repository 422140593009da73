#include "sandbox/launcher/layer_mounts.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "sandbox/launcher/mounts.h"
#include "sandbox/launcher/system.h"

namespace orrery::sandbox {
namespace {

// A folder that was deleted, or replaced by another, since its mount was made.
bool IsSame(int mount, const std::string& folder) {
  struct stat mounted {
  }, named{};
  return ::fstat(mount, &mounted) == 0 && ::stat(folder.c_str(), &named) == 0 &&
         mounted.st_dev == named.st_dev && mounted.st_ino == named.st_ino;
}

}  // namespace

Error LayerMounts::Get(const std::string& folder, uint32_t id_base, int& mount) {
  const Key key{folder, id_base};
  const auto found = mounts_.find(key);
  if (found != mounts_.end() && IsSame(found->second.mount.get(), folder)) {
    uses_.splice(uses_.begin(), uses_, found->second.use);
    mount = found->second.mount.get();
    return {};
  }
  if (found != mounts_.end()) {
    uses_.erase(found->second.use);
    mounts_.erase(found);
  }
  int ids = -1;
  ORRERY_TRY(id_maps_->Get(0, id_base, ids));
  Descriptor made;
  ORRERY_TRY(CloneMount(AT_FDCWD, folder, made));
  ORRERY_TRY(Restrict(made.get(), ids, MOUNT_ATTR_RDONLY));
  if (mounts_.size() >= kMost) {
    mounts_.erase(uses_.back());
    uses_.pop_back();
  }
  uses_.push_front(key);
  Entry& entry = mounts_[key];
  entry.use = uses_.begin();
  ORRERY_TRY(stage_->Keep(std::move(made), entry.mount));
  mount = entry.mount.get();
  return {};
}

}  // namespace orrery::sandbox
