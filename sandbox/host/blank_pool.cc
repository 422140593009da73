#include "sandbox/host/blank_pool.h"

#include <algorithm>
#include <chrono>

#include "sandbox/host/emulator.h"

namespace orrery::sandbox {
namespace {

constexpr std::chrono::milliseconds kQuiet(200), kAfterFailure(1000);

// binfmt_misc is set up before the kernel's files are sealed.
bool NeedsEmulator(const SandboxOptions& options) {
  CreateRequest request;
  ChooseEmulator(options.image.config.architecture, &request);
  return !request.emulator.empty();
}

}  // namespace

BlankPool::BlankPool(HostResources* resources, int per_kind)
    : resources_(resources), per_kind_(static_cast<size_t>(std::max(0, per_kind))) {
  if (per_kind_ == 0) return;
  for (size_t i = 0; i < resources->launchers.size(); ++i) {
    threads_.emplace_back(&BlankPool::Refill, this);
  }
}

BlankPool::~BlankPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

std::list<BlankPool::Kind>::iterator BlankPool::Find(const SandboxOptions& options) {
  return std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& kind) {
    return kind.options.limits == options.limits && kind.options.hostname == options.hostname;
  });
}

std::unique_ptr<LocalSandbox> BlankPool::Take(const SandboxOptions& options) {
  if (per_kind_ == 0 || NeedsEmulator(options)) return nullptr;
  Sandboxes gone;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  auto kind = Find(options);
  if (kind == kinds_.end()) {
    kind = kinds_.emplace(kinds_.begin());
    kind->options.limits = options.limits;
    kind->options.hostname = options.hostname;
  } else {
    kind->wanted = true;
    kinds_.splice(kinds_.begin(), kinds_, kind);
  }
  kind->asked = Clock::now();
  if (kinds_.size() > kMostKinds) {
    gone = std::move(kinds_.back().ready);
    kinds_.pop_back();
  }
  changed_.notify_one();
  while (!kind->ready.empty()) {
    std::unique_ptr<LocalSandbox> sandbox = std::move(kind->ready.front());
    kind->ready.pop_front();
    if (sandbox->Lives()) return sandbox;
    gone.push_back(std::move(sandbox));
  }
  return nullptr;
}

int64_t BlankPool::ready() {
  const std::lock_guard lock(mutex_);
  int64_t count = 0;
  for (const Kind& kind : kinds_) count += static_cast<int64_t>(kind.ready.size());
  return count;
}

bool BlankPool::IsToFill(Kind& kind) const {
  const bool low = kind.ready.size() + kind.making <= per_kind_ / 2;
  const bool quiet = Clock::now() - kind.asked >= kQuiet;
  if (low || quiet) kind.filling = true;
  if (IsFull(kind)) kind.filling = false;
  return kind.filling && (quiet || kind.making == 0);  // leaves processors to who asks
}

// A full pool waits until somebody asks, another until nobody does.
void BlankPool::WaitForWork(std::unique_lock<std::mutex>& lock) {
  const bool full = std::all_of(kinds_.begin(), kinds_.end(),
                                [&](const Kind& kind) { return !kind.wanted || IsFull(kind); });
  if (full && !failing_) return changed_.wait(lock);
  changed_.wait_for(lock, failing_ ? kAfterFailure : kQuiet);
  failing_ = false;
}

// REQUIRES: the lock.
bool BlankPool::NextToMake(SandboxOptions* options) {
  if (failing_) return false;
  for (Kind& kind : kinds_) {
    if (!kind.wanted || !IsToFill(kind)) continue;
    ++kind.making;
    *options = kind.options;
    return true;
  }
  return false;
}

void BlankPool::Refill() {
  while (true) {
    SandboxOptions options;
    {
      std::unique_lock lock(mutex_);
      while (!stopping_ && !NextToMake(&options)) WaitForWork(lock);
      if (stopping_) return;
    }
    auto made = LocalSandbox::LaunchBlank(resources_, options);
    Add(made.ok() ? *std::move(made) : nullptr, options);
  }
}

// Null: it could not be made. Whoever asks for a sandbox then hears why.
void BlankPool::Add(std::unique_ptr<LocalSandbox> sandbox, const SandboxOptions& options) {
  const std::lock_guard lock(mutex_);
  if (sandbox == nullptr) failing_ = true;
  const auto kind = Find(options);
  if (kind == kinds_.end()) return;
  if (kind->making > 0) --kind->making;
  if (sandbox != nullptr && !stopping_) kind->ready.push_back(std::move(sandbox));
}

}  // namespace orrery::sandbox
