#include "sandbox/host/live_sandboxes.h"

namespace orrery::sandbox {

void LiveSandboxes::Add(const std::string& id, LocalSandbox* sandbox) {
  const std::lock_guard lock(mutex_);
  entries_[id].sandbox = sandbox;
}

void LiveSandboxes::Remove(const std::string& id) {
  std::unique_lock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  found->second.leaving = true;
  unused_.wait(lock, [&] { return found->second.users == 0; });
  entries_.erase(found);
}

std::vector<std::string> LiveSandboxes::Ids() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> ids;
  for (const auto& [id, entry] : entries_) {
    if (!entry.leaving) ids.push_back(id);
  }
  return ids;
}

LocalSandbox* LiveSandboxes::Begin(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.leaving) return nullptr;
  ++found->second.users;
  return found->second.sandbox;
}

void LiveSandboxes::End(const std::string& id) {
  const std::lock_guard lock(mutex_);
  --entries_[id].users;
  unused_.notify_all();
}

}  // namespace orrery::sandbox
