#include "sandbox/launcher/stage.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "sandbox/launcher/mounts.h"
#include "sandbox/launcher/system.h"

namespace orrery::sandbox {

void StagedMount::Drop() {
  if (!place_.empty()) {
    system::Unmount(place_.c_str(), system::kUnmountDetach);
    ::rmdir(place_.c_str());
    place_.clear();
  }
  mount_.Reset();
}

Error Stage::Open(const std::string& folder) {
  Descriptor mount, target(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!target.valid()) return LastError("opening " + folder);
  ORRERY_TRY(MakeMount("tmpfs", {{"mode", "0700"}, {"size", "64k"}},
                       MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC, mount));
  ORRERY_TRY(Attach(mount.get(), target.get(), folder));
  folder_ = folder;
  return {};
}

Error Stage::Keep(Descriptor mount, StagedMount& kept) {
  kept = {};
  kept.mount_ = std::move(mount);
  if (!is_open()) return {};
  const std::string place = folder_ + "/" + std::to_string(next_++);
  if (::mkdir(place.c_str(), 0700) != 0) return LastError("mkdir of " + place);
  Descriptor target(::open(place.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!target.valid()) return LastError("opening " + place);
  ORRERY_TRY(Attach(kept.get(), target.get(), place));
  kept.place_ = place;
  return {};
}

}  // namespace orrery::sandbox
