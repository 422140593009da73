#include "sandbox/host/id_slots.h"

#include <fcntl.h>
#include <sys/file.h>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "sandbox/protocol/messages.h"

namespace orrery::sandbox {

absl::StatusOr<std::unique_ptr<IdSlots>> IdSlots::Open(const std::string& folder) {
  RETURN_IF_ERROR(MakeFolders(folder));
  for (int block = 0; block < kBlocks; ++block) {
    const std::string path = folder + "/" + std::to_string(block);
    Descriptor lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!lock.valid()) return ErrnoStatus("cannot open", path, errno);
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) {
      return std::unique_ptr<IdSlots>(new IdSlots(std::move(lock), block));
    }
  }
  return Exhausted("{} processes on this machine already run sandboxes; end one of them", kBlocks);
}

absl::StatusOr<uint32_t> IdSlots::Take() {
  const std::lock_guard lock(mutex_);
  if (!free_.empty()) {
    const uint32_t id = free_.back();
    free_.pop_back();
    return id;
  }
  if (next_ == kSlotsPerBlock) return Exhausted("all {} ranges of ids are taken", kSlotsPerBlock);
  const int slot = block_ * kSlotsPerBlock + next_++;
  return kFirstSandboxId + static_cast<uint32_t>(slot) * kIdCount;
}

void IdSlots::Give(uint32_t id_base) {
  const std::lock_guard lock(mutex_);
  free_.push_back(id_base);
}

}  // namespace orrery::sandbox
