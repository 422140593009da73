#include "sandbox/host/leftovers.h"

#include <algorithm>
#include <filesystem>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "sandbox/cgroup/cgroup.h"

namespace orrery::sandbox {
namespace {

namespace fs = std::filesystem;

void AddFolders(const std::string& folder, std::vector<std::string>& found) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.is_directory(error)) found.push_back(entry.path().string());
  }
}

// Dead, and not yet asked for by its parent: some first processes of a machine or a container do so
// seconds later. It holds nothing any more.
bool IsDead(const std::string& pid) {
  const auto stat = ReadFile("/proc/" + pid + "/stat");
  const size_t at = stat.ok() ? stat->rfind(") ") : std::string::npos;
  return at != std::string::npos && at + 2 < stat->size() &&
         ((*stat)[at + 2] == 'Z' || (*stat)[at + 2] == 'X');
}

// Every task that is in a control group below the name.
void AddProcesses(const std::string& cgroup, std::vector<std::string>& found) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const std::string pid = entry.path().filename().string();
    if (!std::all_of(pid.begin(), pid.end(), [](char c) { return c >= '0' && c <= '9'; })) continue;
    const auto groups = ReadFile("/proc/" + pid + "/cgroup");
    if (groups.ok() && groups->find("/" + cgroup + "/") != std::string::npos && !IsDead(pid)) {
      const auto name = ReadFile("/proc/" + pid + "/comm");
      found.push_back("process " + pid + " " + (name.ok() ? *name : ""));
    }
  }
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FindLeftovers(const HostOptions& options) {
  ASSIGN_OR_RETURN(const Hierarchies hierarchies, Hierarchies::Find());
  std::vector<std::string> found;
  AddProcesses(options.cgroup, found);
  for (const std::string& place : hierarchies.all()) {
    AddFolders(place + "/" + options.cgroup, found);
  }
  AddFolders(options.state_folder + "/hosts", found);
  ASSIGN_OR_RETURN(const std::string mounts, ReadFile("/proc/self/mountinfo"));
  if (mounts.find(options.state_folder) != std::string::npos) {
    found.push_back("a mount of " + options.state_folder);
  }
  return found;
}

}  // namespace orrery::sandbox
