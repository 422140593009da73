#include "sandbox/remote/sessions.h"

#include <sys/random.h>

#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"

namespace orrery::sandbox::remote {

bool Session::Add(std::shared_ptr<Sandbox> sandbox, std::shared_ptr<const void> image) {
  const std::lock_guard lock(mutex_);
  if (ended_) return false;
  const std::string id = sandbox->id();
  sandboxes_[id] = {std::move(image), std::move(sandbox)};
  return true;
}

bool Session::Add(uint64_t id, std::shared_ptr<const Snapshot> snapshot) {
  const std::lock_guard lock(mutex_);
  if (ended_) return false;
  snapshots_[id] = std::move(snapshot);
  return true;
}

std::shared_ptr<Sandbox> Session::FindSandbox(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = sandboxes_.find(id);
  return found == sandboxes_.end() ? nullptr : found->second.sandbox;
}

std::shared_ptr<const Snapshot> Session::FindSnapshot(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = snapshots_.find(id);
  return found == snapshots_.end() ? nullptr : found->second;
}

absl::Status Session::Destroy(const std::string& id) {
  Held held;
  {
    const std::lock_guard lock(mutex_);
    const auto found = sandboxes_.find(id);
    if (found == sandboxes_.end()) return absl::OkStatus();
    held = std::move(found->second);
    sandboxes_.erase(found);
  }
  return held.sandbox->Destroy();
}

void Session::Release(uint64_t snapshot) {
  std::shared_ptr<const Snapshot> released;
  const std::lock_guard lock(mutex_);
  const auto found = snapshots_.find(snapshot);
  if (found == snapshots_.end()) return;
  released = std::move(found->second);
  snapshots_.erase(found);
}

void Session::End() {
  std::map<std::string, Held> sandboxes;
  std::map<uint64_t, std::shared_ptr<const Snapshot>> snapshots;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    sandboxes.swap(sandboxes_);
    snapshots.swap(snapshots_);
  }
  for (const auto& [id, held] : sandboxes) held.sandbox->Destroy().IgnoreError();
}

size_t Session::num_sandboxes() const {
  const std::lock_guard lock(mutex_);
  return sandboxes_.size();
}

std::string Sessions::Begin() {
  unsigned char bytes[16];
  CHECK(::getrandom(bytes, sizeof(bytes), 0) == sizeof(bytes));
  std::string name;
  for (const unsigned char byte : bytes) name += fmt::format("{:02x}", byte);
  const std::lock_guard lock(mutex_);
  sessions_[name] = std::make_shared<Session>();
  return name;
}

void Sessions::End(const std::string& name) {
  std::shared_ptr<Session> session;
  {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(name);
    if (found == sessions_.end()) return;
    session = found->second;
  }
  session->End();
  const std::lock_guard lock(mutex_);
  sessions_.erase(name);
}

absl::StatusOr<std::shared_ptr<Session>> Sessions::Find(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = sessions_.find(name);
  if (found == sessions_.end()) return Unavailable("the session has ended");
  return found->second;
}

size_t Sessions::num_sandboxes() const {
  const std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const auto& [name, session] : sessions_) count += session->num_sandboxes();
  return count;
}

}  // namespace orrery::sandbox::remote
