#include "sandbox/host/warm_pool.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>

namespace orrery::sandbox {
namespace {

constexpr std::chrono::seconds kAfterFailure(1);

}  // namespace

WarmPool::WarmPool(HostResources* resources, int per_kind)
    : resources_(resources), per_kind_(static_cast<size_t>(std::max(0, per_kind))) {
  if (per_kind_ > 0) thread_ = std::thread(&WarmPool::Refill, this);
}

WarmPool::~WarmPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

// Which folders the layers are: one of the same name may be another by now.
WarmPool::LayerIds WarmPool::IdsOf(const PreparedImage& image) {
  LayerIds ids;
  for (const std::string& layer : image.layers) {
    struct stat info {};
    if (::stat(layer.c_str(), &info) != 0) info = {};
    ids.emplace_back(info.st_dev, info.st_ino);
  }
  return ids;
}

bool WarmPool::Same(const SandboxOptions& a, const SandboxOptions& b) {
  return a.image == b.image && a.limits == b.limits && a.hostname == b.hostname;
}

std::list<WarmPool::Kind>::iterator WarmPool::Find(const SandboxOptions& options) {
  return std::find_if(kinds_.begin(), kinds_.end(),
                      [&](const Kind& kind) { return Same(kind.options, options); });
}

std::unique_ptr<LocalSandbox> WarmPool::Take(const SandboxOptions& options) {
  if (per_kind_ == 0) return nullptr;
  const LayerIds ids = IdsOf(options.image);
  std::vector<Entry> gone;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  auto kind = Find(options);
  if (kind == kinds_.end()) kind = kinds_.insert(kinds_.begin(), Kind{options, {}});
  kinds_.splice(kinds_.begin(), kinds_, kind);
  Trim(&gone);
  changed_.notify_all();
  while (!kind->ready.empty()) {
    Entry entry = std::move(kind->ready.front());
    kind->ready.pop_front();
    if (entry.layers == ids && entry.sandbox->Lives()) {
      entry.sandbox->StartAge();
      return std::move(entry.sandbox);
    }
    gone.push_back(std::move(entry));
  }
  return nullptr;
}

// Kinds that nobody asked for lately go.
void WarmPool::Trim(std::vector<Entry>* gone) {
  while (kinds_.size() > kMostKinds) {
    for (Entry& entry : kinds_.back().ready) gone->push_back(std::move(entry));
    kinds_.pop_back();
  }
}

void WarmPool::BeginPressure() {
  const std::lock_guard lock(mutex_);
  ++pressure_;
}

void WarmPool::EndPressure() {
  const std::lock_guard lock(mutex_);
  --pressure_;
  changed_.notify_all();
}

bool WarmPool::EvictOne() {
  Entry gone;
  {
    const std::lock_guard lock(mutex_);
    auto kind = kinds_.rbegin();
    while (kind != kinds_.rend() && kind->ready.empty()) ++kind;
    if (kind == kinds_.rend()) return false;
    gone = std::move(kind->ready.front());
    kind->ready.pop_front();
  }
  return gone.sandbox->Destroy().ok();
}

HostLoad WarmPool::load() const {
  HostLoad load;
  const std::lock_guard lock(mutex_);
  for (const Kind& kind : kinds_) {
    const auto count = static_cast<int64_t>(kind.ready.size());
    load.warm += count;
    load.memory_bytes += count * kind.options.limits.memory_request_bytes;
    load.cpus += static_cast<double>(count) * kind.options.limits.cpu_request;
  }
  return load;
}

// Admits it as well. REQUIRES: the lock, so that no pressure begins meanwhile.
bool WarmPool::NextToMake(SandboxOptions* options) {
  if (pressure_ > 0 || failing_) return false;
  for (const Kind& kind : kinds_) {
    if (kind.ready.size() >= per_kind_) continue;
    *options = kind.options;
    return resources_->admission->TryEnter(ShareOf(kind.options.limits));
  }
  return false;
}

void WarmPool::Refill() {
  while (true) {
    SandboxOptions options;
    {
      std::unique_lock lock(mutex_);
      // Looks again after a while: room may have come about elsewhere.
      while (!stopping_ && !NextToMake(&options)) {
        changed_.wait_for(lock, kAfterFailure);
        failing_ = false;
      }
      if (stopping_) return;
    }
    auto made = LocalSandbox::Launch(resources_, options, nullptr);
    if (made.ok()) {
      Add(*std::move(made));
      continue;
    }
    const std::lock_guard lock(mutex_);
    failing_ = true;  // who asks for it next hears why
  }
}

void WarmPool::Add(std::unique_ptr<LocalSandbox> sandbox) {
  LayerIds layers = IdsOf(sandbox->options().image);
  const std::lock_guard lock(mutex_);
  const auto kind = Find(sandbox->options());
  if (kind == kinds_.end() || pressure_ > 0 || stopping_) return;  // destroyed by its owner
  kind->ready.push_back({std::move(sandbox), std::move(layers)});
}

}  // namespace orrery::sandbox
