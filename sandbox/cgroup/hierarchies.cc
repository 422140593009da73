// Finding where the controllers are mounted.
#include <fcntl.h>

#include <algorithm>
#include <sstream>

#include "orchestrator/base/check.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "sandbox/cgroup/cgroup.h"
#include "sandbox/cgroup/files.h"

namespace orrery::sandbox {
namespace {

constexpr const char* kNeeded[] = {"memory", "pids", "cpu"};

bool HasWord(std::string_view list, std::string_view word, char separator) {
  while (true) {
    const size_t end = list.find(separator);
    if (list.substr(0, end) == word) return true;
    if (end == std::string_view::npos) return false;
    list.remove_prefix(end + 1);
  }
}

struct MountLine {
  std::string place, type, options;
};

// proc(5): ID PARENT DEV ROOT PLACE OPTIONS [FIELDS...] - TYPE SOURCE SUPER-OPTIONS
bool ParseMountLine(const std::string& line, MountLine& mount) {
  std::istringstream words(line);
  std::string skipped, source;
  words >> skipped >> skipped >> skipped >> skipped >> mount.place;
  while (words >> skipped && skipped != "-") {
  }
  return static_cast<bool>(words >> mount.type >> source >> mount.options);
}

}  // namespace

absl::StatusOr<Hierarchies> Hierarchies::Parse(const std::string& mountinfo,
                                               const std::string& v2_controllers) {
  Hierarchies found;
  std::istringstream lines(mountinfo);
  std::string line;
  while (std::getline(lines, line)) {
    MountLine mount;
    if (!ParseMountLine(line, mount)) continue;
    if (mount.type == "cgroup2" && found.unified_.empty()) found.unified_ = mount.place;
    if (mount.type != "cgroup") continue;
    for (const char* controller : kNeeded) {
      if (HasWord(mount.options, controller, ',')) found.controllers_[controller] = mount.place;
    }
  }
  if (found.unified_.empty()) {
    return Precondition(
        "sandboxes need control groups version 2, and none is mounted: mount -t cgroup2 none "
        "/sys/fs/cgroup/unified");
  }
  for (const char* controller : kNeeded) {
    if (HasWord(v2_controllers, controller, ' ')) {
      found.controllers_[controller] = found.unified_;
    } else if (!found.controllers_.contains(controller)) {
      return Precondition(
          "the control group controller {} is mounted nowhere: sandboxes could not be limited "
          "(kernel parameter cgroup_disable, or a container without it)",
          controller);
    }
  }
  return found;
}

absl::StatusOr<Hierarchies> Hierarchies::Find() {
  ASSIGN_OR_RETURN(const std::string mountinfo, ReadGroupFile(AT_FDCWD, "/proc/self/mountinfo"));
  // Which controllers version 2 has is known only once its place is.
  for (const std::string place : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
    absl::StatusOr<std::string> controllers =
        ReadGroupFile(AT_FDCWD, place + "/cgroup.controllers");
    if (!controllers.ok()) continue;
    std::replace(controllers->begin(), controllers->end(), '\n', ' ');
    return Parse(mountinfo, *controllers);
  }
  return Parse(mountinfo, "");
}

const std::string& Hierarchies::of(const std::string& controller) const {
  const auto found = controllers_.find(controller);
  CHECK(found != controllers_.end()) << controller;
  return found->second;
}

std::vector<std::string> Hierarchies::all() const {
  std::vector<std::string> places = {unified_};
  for (const auto& [controller, place] : controllers_) {
    if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
  }
  return places;
}

std::string Hierarchies::Describe() const {
  std::string text;
  for (const char* controller : kNeeded) {
    text += fmt::format("{} {}, ", controller, is_v2(controller) ? "v2" : "v1");
  }
  return text + "kill and freeze v2";
}

}  // namespace orrery::sandbox
