#include "orchestrator/base/fatal.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace orrery {
namespace {

struct Hooks {
  std::mutex mutex;
  std::vector<std::function<void(std::string_view)>> stack;  // guarded by mutex
};

Hooks& TheHooks() {
  static Hooks* const hooks = new Hooks;  // lives until the end, however that comes
  return *hooks;
}

std::function<void(std::string_view)> LastHook() {
  const std::lock_guard lock(TheHooks().mutex);
  return TheHooks().stack.empty() ? nullptr : TheHooks().stack.back();
}

}  // namespace

void EndProcess(std::string_view message) {
  static std::atomic<bool> ending{false};
  if (ending.exchange(true)) {
    for (;;) ::pause();  // another thread is ending the process
  }
  std::fflush(stdout);
  std::fprintf(stderr, "orrery: error: %.*s\n", static_cast<int>(message.size()), message.data());
  std::fflush(stderr);
  if (const auto hook = LastHook()) hook(message);
  std::_Exit(1);
}

FatalHook::FatalHook(std::function<void(std::string_view)> hook) {
  const std::lock_guard lock(TheHooks().mutex);
  TheHooks().stack.push_back(std::move(hook));
}

FatalHook::~FatalHook() {
  const std::lock_guard lock(TheHooks().mutex);
  TheHooks().stack.pop_back();
}

}  // namespace orrery
