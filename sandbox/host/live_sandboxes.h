// The sandboxes of a host that live, for requests of other processes (control.h).
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace orrery::sandbox {

class LocalSandbox;

class LiveSandboxes {
 public:
  void Add(const std::string& id, LocalSandbox* sandbox);
  // Waits until nobody uses it. REQUIRES: it is destroyed, so that uses come to their end.
  void Remove(const std::string& id);
  std::vector<std::string> Ids() const;

  // Calls `use` with the sandbox, which stays meanwhile; false where there is none.
  template <typename Use>
  bool With(const std::string& id, const Use& use) {
    LocalSandbox* sandbox = Begin(id);
    if (sandbox == nullptr) return false;
    use(*sandbox);
    End(id);
    return true;
  }

 private:
  struct Entry {
    LocalSandbox* sandbox = nullptr;
    int users = 0;
    bool leaving = false;
  };
  LocalSandbox* Begin(const std::string& id);
  void End(const std::string& id);

  mutable std::mutex mutex_;
  std::condition_variable unused_;
  std::map<std::string, Entry> entries_;
};

}  // namespace orrery::sandbox
