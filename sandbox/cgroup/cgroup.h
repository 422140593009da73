// Control groups of sandboxes, on version 2, version 1 and hosts that have both (hybrid).
//
// Limits are written where the host has the controller. Births, freezing and killing go through
// version 2 in every case: a tree that version 1 froze outlives the death of its init. A sandbox
// has one folder in each hierarchy in use, all of the same name, and below the one of version 2 a
// folder for each command that runs.
//
// Tried on a hybrid host. With version 2 alone nothing has run yet.
//
// Thread-safe: there is no state but the mount points, found once.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sandbox/protocol/descriptor.h"

namespace orrery::sandbox {

struct GroupLimits {
  int64_t memory_bytes = 0;  // with swap; 0: unlimited
  int64_t processes = 0;
  double cpus = 0;
};

// What happened in a group since it was made.
struct GroupEvents {
  int64_t oom_kills = 0;
  int64_t process_limit_hits = 0;
};

// A folder in which one command runs; the next one may have it once it is empty.
struct CommandGroup {
  std::string name;
  Descriptor folder;
  Descriptor events;  // its cgroup.events
  // Linux counts kills of a group, and kills who is born into one from a group with another count.
  bool killed = false;
};

// Where the controllers are mounted.
class Hierarchies {
 public:
  // Reads mountinfo. An error where there is no version 2, or a controller that limits need is
  // nowhere.
  static absl::StatusOr<Hierarchies> Find();
  static absl::StatusOr<Hierarchies> Parse(const std::string& mountinfo,
                                           const std::string& v2_controllers);

  const std::string& unified() const { return unified_; }
  // Folder of the hierarchy that has a controller ("memory", "pids", "cpu").
  const std::string& of(const std::string& controller) const;
  bool is_v2(const std::string& controller) const { return of(controller) == unified_; }
  // Each hierarchy once, version 2 first.
  std::vector<std::string> all() const;
  std::string Describe() const;  // "memory v1, pids v1, cpu v1, kill and freeze v2"

 private:
  std::string unified_;
  std::map<std::string, std::string> controllers_;
};

// A group that may hold groups: of all hosts ("orrery"), of one host ("orrery/HOST").
absl::Status MakeParentGroup(const Hierarchies& hierarchies, const std::string& name,
                             const GroupLimits& limits);

class Group {
 public:
  Group() = default;
  Group(Group&&) = default;
  Group& operator=(Group&&) = default;

  static absl::StatusOr<Group> Make(const Hierarchies& hierarchies, const std::string& name,
                                    const GroupLimits& limits);

  // The folder in version 2, for clone3; and cgroup.procs of each other hierarchy.
  int unified() const { return unified_.get(); }
  std::vector<int> procs() const;
  // Once the first process is inside; all others are born there.
  void CloseProcs() { procs_.clear(); }

  // A folder below, for one command; `owner` may give birth in it.
  absl::StatusOr<CommandGroup> MakeCommand(const std::string& name, uint32_t owner) const;
  // False where something still runs in it.
  bool RemoveCommand(const std::string& name) const;

  // Lets `owner` give birth to processes from here into commands' folders.
  absl::Status Delegate(uint32_t owner) const;

  absl::StatusOr<GroupEvents> ReadEvents() const;
  absl::StatusOr<std::vector<int64_t>> Processes() const;
  int64_t PeakMemory() const;
  void Kill() const;
  // Removes the folders. REQUIRES: Kill, and init has been waited for.
  absl::Status Remove();

 private:
  const Hierarchies* hierarchies_ = nullptr;
  std::string name_;
  Descriptor unified_;
  std::vector<Descriptor> procs_;
  Descriptor memory_events_, pids_events_;
};

// Nothing runs in it.
bool IsEmpty(const CommandGroup& command);
// Kills what is in a command's folder; nothing can be born in it any more.
void KillCommand(CommandGroup& command);

// Kills and removes a group and all below it in every hierarchy; fine where there is none.
absl::Status RemoveGroupTree(const Hierarchies& hierarchies, const std::string& name);

}  // namespace orrery::sandbox
