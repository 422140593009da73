#include "sandbox/cgroup/cgroup.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <sstream>
#include <thread>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "sandbox/cgroup/files.h"

namespace orrery::sandbox {
namespace {

constexpr int64_t kCpuPeriodUs = 100'000;

absl::Status MakeFolder(const std::string& path) {
  if (::mkdir(path.c_str(), 0755) == 0 || errno == EEXIST) return absl::OkStatus();
  return ErrnoStatus("cannot make the control group", path, errno);
}

absl::Status Write(const std::string& path, const std::string& text) {
  return WriteGroupFile(AT_FDCWD, path, text);
}

absl::Status LimitMemory(const Hierarchies& hierarchies, const std::string& name, int64_t bytes) {
  const std::string folder = hierarchies.of("memory") + "/" + name + "/";
  const std::string text = std::to_string(bytes);
  if (!hierarchies.is_v2("memory")) {
    RETURN_IF_ERROR(Write(folder + "memory.limit_in_bytes", text));
    // Absent without swap accounting; then there must be no swap, which the host checks
    // (unenforced.h).
    const std::string with_swap = folder + "memory.memsw.limit_in_bytes";
    return ::access(with_swap.c_str(), F_OK) == 0 ? Write(with_swap, text) : absl::OkStatus();
  }
  RETURN_IF_ERROR(Write(folder + "memory.max", text));
  const std::string swap = folder + "memory.swap.max";
  return ::access(swap.c_str(), F_OK) == 0 ? Write(swap, "0") : absl::OkStatus();
}

absl::Status LimitCpus(const Hierarchies& hierarchies, const std::string& name, double cpus) {
  const std::string folder = hierarchies.of("cpu") + "/" + name + "/";
  const auto quota = static_cast<int64_t>(std::ceil(cpus * kCpuPeriodUs));
  if (!hierarchies.is_v2("cpu")) {
    return Write(folder + "cpu.cfs_quota_us", std::to_string(quota));
  }
  return Write(folder + "cpu.max", fmt::format("{} {}", quota, kCpuPeriodUs));
}

absl::Status ApplyLimits(const Hierarchies& hierarchies, const std::string& name,
                         const GroupLimits& limits) {
  if (limits.memory_bytes > 0) {
    RETURN_IF_ERROR(LimitMemory(hierarchies, name, limits.memory_bytes));
  }
  if (limits.processes > 0) {
    RETURN_IF_ERROR(
        Write(hierarchies.of("pids") + "/" + name + "/pids.max", std::to_string(limits.processes)));
  }
  return limits.cpus > 0 ? LimitCpus(hierarchies, name, limits.cpus) : absl::OkStatus();
}

// Version 2 hands a controller down only where the level above says so.
absl::Status EnableControllers(const Hierarchies& hierarchies, const std::string& folder) {
  std::string wanted;
  for (const char* controller : {"memory", "pids", "cpu"}) {
    if (hierarchies.is_v2(controller)) wanted += fmt::format("+{} ", controller);
  }
  if (wanted.empty()) return absl::OkStatus();
  return Annotate(Write(folder + "/cgroup.subtree_control", wanted),
                  "controllers cannot be handed to sandboxes (processes in the same control group "
                  "are in the way: move them into one below)");
}

Descriptor OpenFile(const std::string& path) {
  return Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

Descriptor OpenFolder(const std::string& path) {
  return Descriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

}  // namespace

absl::Status MakeParentGroup(const Hierarchies& hierarchies, const std::string& name,
                             const GroupLimits& limits) {
  for (const std::string& place : hierarchies.all())
    RETURN_IF_ERROR(MakeFolder(place + "/" + name));
  const std::string above =
      std::filesystem::path(hierarchies.unified() + "/" + name).parent_path().string();
  RETURN_IF_ERROR(EnableControllers(hierarchies, above));
  RETURN_IF_ERROR(ApplyLimits(hierarchies, name, limits));
  return EnableControllers(hierarchies, hierarchies.unified() + "/" + name);
}

absl::StatusOr<Group> Group::Make(const Hierarchies& hierarchies, const std::string& name,
                                  const GroupLimits& limits) {
  Group group;
  group.hierarchies_ = &hierarchies;
  group.name_ = name;
  for (const std::string& place : hierarchies.all()) {
    const std::string folder = place + "/" + name;
    RETURN_IF_ERROR(MakeFolder(folder));
    if (place == hierarchies.unified()) {
      group.unified_ = OpenFolder(folder);
      if (!group.unified_.valid()) return ErrnoStatus("cannot open", folder, errno);
      continue;
    }
    Descriptor& procs =
        group.procs_.emplace_back(::open((folder + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
    if (!procs.valid()) return ErrnoStatus("cannot open cgroup.procs of", folder, errno);
  }
  RETURN_IF_ERROR(ApplyLimits(hierarchies, name, limits));
  const bool v2 = hierarchies.is_v2("memory");
  group.memory_events_ = OpenFile(hierarchies.of("memory") + "/" + name +
                                  (v2 ? "/memory.events" : "/memory.oom_control"));
  group.pids_events_ = OpenFile(hierarchies.of("pids") + "/" + name + "/pids.events");
  return group;
}

std::vector<int> Group::procs() const {
  std::vector<int> fds;
  for (const Descriptor& procs : procs_) fds.push_back(procs.get());
  return fds;
}

absl::Status Group::Delegate(uint32_t owner) const {
  if (::fchownat(unified_.get(), "cgroup.procs", owner, owner, 0) == 0) return absl::OkStatus();
  return ErrnoStatus("cannot delegate the control group", name_, errno);
}

absl::StatusOr<CommandGroup> Group::MakeCommand(const std::string& name, uint32_t owner) const {
  if (::mkdirat(unified_.get(), name.c_str(), 0755) != 0) {
    return ErrnoStatus("cannot make a command's control group in", name_, errno);
  }
  CommandGroup command{name, {}, {}};
  command.folder.Reset(::openat(unified_.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!command.folder.valid() ||
      ::fchownat(command.folder.get(), "cgroup.procs", owner, owner, 0) != 0) {
    return ErrnoStatus("cannot delegate a command's control group in", name_, errno);
  }
  command.events.Reset(::openat(command.folder.get(), "cgroup.events", O_RDONLY | O_CLOEXEC));
  return command;
}

bool IsEmpty(const CommandGroup& command) {
  const auto text = ReadGroupFile(command.events);
  return text.ok() && text->find("populated 0") != std::string::npos;
}

bool Group::RemoveCommand(const std::string& name) const {
  return ::unlinkat(unified_.get(), name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT;
}

absl::StatusOr<GroupEvents> Group::ReadEvents() const {
  GroupEvents events;
  ASSIGN_OR_RETURN(const std::string memory, ReadGroupFile(memory_events_));
  events.oom_kills = ValueOf(memory, "oom_kill");
  ASSIGN_OR_RETURN(const std::string pids, ReadGroupFile(pids_events_));
  events.process_limit_hits = ValueOf(pids, "max");
  return events;
}

int64_t Group::PeakMemory() const {
  const bool v2 = hierarchies_->is_v2("memory");
  const auto text =
      ReadGroupFile(AT_FDCWD, hierarchies_->of("memory") + "/" + name_ +
                                  (v2 ? "/memory.peak" : "/memory.max_usage_in_bytes"));
  return text.ok() ? std::atoll(text->c_str()) : 0;
}

absl::StatusOr<std::vector<int64_t>> Group::Processes() const {
  std::vector<int64_t> pids;
  ASSIGN_OR_RETURN(
      const std::string pids_text,
      ReadGroupFile(AT_FDCWD, hierarchies_->of("pids") + "/" + name_ + "/cgroup.procs"));
  std::istringstream lines(pids_text);
  for (int64_t pid = 0; lines >> pid;) pids.push_back(pid);
  if (!hierarchies_->is_v2("pids")) return pids;
  // In version 2 the commands' processes are listed in their own folders.
  for (const auto& entry : std::filesystem::directory_iterator(
           hierarchies_->unified() + "/" + name_,
           std::filesystem::directory_options::skip_permission_denied)) {
    if (!entry.is_directory()) continue;
    ASSIGN_OR_RETURN(const std::string text,
                     ReadGroupFile(AT_FDCWD, entry.path().string() + "/cgroup.procs"));
    std::istringstream below(text);
    for (int64_t pid = 0; below >> pid;) pids.push_back(pid);
  }
  return pids;
}

namespace {

void KillGroup(int folder) {
  // Fails only where the folder has gone.
  WriteGroupFile(folder, "cgroup.kill", "1").IgnoreError();
}

}  // namespace

void KillCommand(CommandGroup& command) {
  command.killed = true;
  KillGroup(command.folder.get());
}

void Group::Kill() const {
  if (unified_.valid()) KillGroup(unified_.get());
}

absl::Status Group::Remove() {
  if (hierarchies_ == nullptr) return absl::OkStatus();
  unified_.Reset();
  procs_.clear();
  memory_events_.Reset();
  pids_events_.Reset();
  return RemoveGroupTree(*std::exchange(hierarchies_, nullptr), name_);
}

}  // namespace orrery::sandbox
