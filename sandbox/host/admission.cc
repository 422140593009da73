#include "sandbox/host/admission.h"

#include <cmath>
#include <utility>

#include "orchestrator/base/status.h"

namespace orrery::sandbox {
namespace {
constexpr double kRounding = 1e-9;
}

Share ShareOf(const Limits& limits) {
  return {limits.memory_request_bytes, limits.cpu_request, limits.disk_request_bytes};
}

absl::Status CheckLimits(const Limits& limits) {
  const std::pair<const char*, int64_t> positive[] = {
      {"memory", limits.memory_bytes},  {"processes", limits.processes},
      {"disk", limits.disk_bytes},      {"inodes", limits.inodes},
      {"shm", limits.shm_bytes},        {"open files", limits.open_files},
      {"file size", limits.file_bytes}, {"terminals", limits.terminals},
      {"objects", limits.user_objects}};
  for (const auto& [name, value] : positive) {
    if (value <= 0) return InvalidInput("the limit {} is {}: it must be more than 0", name, value);
  }
  if (!(limits.cpus > 0) || !std::isfinite(limits.cpus)) {
    return InvalidInput("the limit cpus is {}: it must be more than 0", limits.cpus);
  }
  if (limits.memory_request_bytes < 0 || limits.disk_request_bytes < 0 ||
      !(limits.cpu_request >= 0) || !std::isfinite(limits.cpu_request)) {
    return InvalidInput("a sandbox requests less than nothing of memory, disk or CPU");
  }
  return absl::OkStatus();
}

bool Admission::Fits(const Share& share) const {
  return num_inside_ < max_sandboxes_ &&
         inside_.memory_bytes + share.memory_bytes <= total_.memory_bytes &&
         inside_.cpus + share.cpus <= total_.cpus + kRounding &&
         inside_.disk_bytes + share.disk_bytes <= total_.disk_bytes;
}

absl::Status Admission::Enter(const Share& share) {
  std::unique_lock lock(mutex_);
  if (share.memory_bytes > total_.memory_bytes || share.cpus > total_.cpus + kRounding) {
    return Exhausted(
        "a sandbox that requests {} MiB and {} CPUs never fits: this host gives {} MiB and {}",
        share.memory_bytes >> 20, share.cpus, total_.memory_bytes >> 20, total_.cpus);
  }
  if (share.disk_bytes > total_.disk_bytes) {
    return Exhausted("a sandbox that requests {} MiB of disk never fits: this host gives {} MiB",
                     share.disk_bytes >> 20, total_.disk_bytes >> 20);
  }
  if (static_cast<int64_t>(next_ticket_ - serving_) >= max_waiting_) {
    return Exhausted("{} sandboxes already wait to begin on this host", max_waiting_);
  }
  const uint64_t ticket = next_ticket_++;
  changed_.wait(lock, [&] { return closed_ || (ticket == serving_ && Fits(share)); });
  if (closed_) return Unavailable("this sandbox host is closing");
  ++serving_;
  Add(share);
  changed_.notify_all();
  return absl::OkStatus();
}

bool Admission::TryEnter(const Share& share) {
  const std::lock_guard lock(mutex_);
  if (closed_ || next_ticket_ != serving_ || !Fits(share)) return false;
  Add(share);
  return true;
}

void Admission::Add(const Share& share) {
  ++num_inside_;
  inside_.memory_bytes += share.memory_bytes;
  inside_.cpus += share.cpus;
  inside_.disk_bytes += share.disk_bytes;
}

void Admission::Leave(const Share& share) {
  const std::lock_guard lock(mutex_);
  --num_inside_;
  inside_.memory_bytes -= share.memory_bytes;
  inside_.cpus -= share.cpus;
  inside_.disk_bytes -= share.disk_bytes;
  changed_.notify_all();
}

void Admission::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

HostLoad Admission::load() const {
  const std::lock_guard lock(mutex_);
  HostLoad load;
  load.sandboxes = num_inside_;
  load.max_sandboxes = max_sandboxes_;
  load.memory_bytes = inside_.memory_bytes;
  load.max_memory_bytes = total_.memory_bytes;
  load.cpus = inside_.cpus;
  load.max_cpus = total_.cpus;
  load.waiting = static_cast<int64_t>(next_ticket_ - serving_);
  return load;
}

}  // namespace orrery::sandbox
