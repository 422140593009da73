// Which range of host ids each sandbox has. No two sandboxes of this machine share one, of whatever
// process they are: a host takes whole blocks of ranges, by a lock on a file for each.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sandbox/protocol/descriptor.h"

namespace orrery::sandbox {

class IdSlots {
 public:
  static constexpr int kBlocks = 16, kSlotsPerBlock = 1024;

  // `folder`: where the lock files are.
  static absl::StatusOr<std::unique_ptr<IdSlots>> Open(const std::string& folder);

  // The first host id of a free range. Prefers one that was used before, whose id maps exist.
  absl::StatusOr<uint32_t> Take();
  void Give(uint32_t id_base);

 private:
  IdSlots(Descriptor lock, int block) : lock_(std::move(lock)), block_(block) {}
  Descriptor lock_;
  int block_;
  std::mutex mutex_;
  int next_ = 0;  // slots from here on were never used
  std::vector<uint32_t> free_;
};

}  // namespace orrery::sandbox
