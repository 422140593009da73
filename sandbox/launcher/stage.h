// Where the launcher's own mounts hang on kernels before Linux 6.15, which neither copy a mount
// that hangs nowhere nor make an overlay of one: on a tmpfs in the launcher's mount namespace,
// which nobody else sees and which goes with it; sandboxes begin from another one.
//
// On newer kernels mounts hang nowhere: a closed stage keeps them as they are.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "sandbox/protocol/descriptor.h"
#include "sandbox/protocol/error.h"

namespace orrery::sandbox {

// A mount that copies and overlays are made of. It is gone with this object and its last user.
class StagedMount {
 public:
  StagedMount() = default;
  StagedMount(StagedMount&& other) noexcept
      : mount_(std::move(other.mount_)), place_(std::exchange(other.place_, {})) {}
  StagedMount& operator=(StagedMount&& other) noexcept {
    if (this == &other) return *this;
    Drop();
    mount_ = std::move(other.mount_);
    place_ = std::exchange(other.place_, {});
    return *this;
  }
  ~StagedMount() { Drop(); }
  int get() const { return mount_.get(); }

 private:
  friend class Stage;
  void Drop();

  Descriptor mount_;
  std::string place_;  // the folder it hangs on; empty: none
};

class Stage {
 public:
  // `folder` is this process's to mount on.
  Error Open(const std::string& folder);
  bool is_open() const { return !folder_.empty(); }
  Error Keep(Descriptor mount, StagedMount& kept);

 private:
  std::string folder_;
  uint64_t next_ = 0;
};

}  // namespace orrery::sandbox
