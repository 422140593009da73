#include "orchestrator/doctor/system.h"

#include <fmt/format.h>
#include <link.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace orrery::doctor {
namespace {

constexpr double kGib = 1 << 30;

// The value of the first "KEY : VALUE" line.
std::string ValueOf(const std::string& file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return {};
}

// "16384 kB" as bytes; -1 where it is none.
int64_t Kilobytes(const std::string& text) {
  return text.empty() ? -1 : std::strtoll(text.c_str(), nullptr, 10) * 1024;
}

int64_t FileNumber(const std::string& path) {
  std::string word;
  std::ifstream(path) >> word;
  if (word.empty() || word.find_first_not_of("0123456789") != std::string::npos) return -1;
  return std::strtoll(word.c_str(), nullptr, 10);
}

// The limit of the cgroup this process is in, both versions; -1: none.
int64_t CgroupLimit(const std::string& root) {
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    const int64_t limit = FileNumber(root + path);
    if (limit > 0) return limit;
  }
  return -1;
}

std::string ArchitectureName() {
  utsname name = {};
  return ::uname(&name) == 0 ? name.machine : "unknown architecture";
}

// The nearest folder at or above `folder` that exists.
std::string ExistingFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(folder, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "folder/."
  while (!std::filesystem::is_directory(path, error) && path.has_relative_path()) {
    path = path.parent_path();
  }
  return path.string();
}

std::string Joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text.append(text.empty() ? "" : " ").append(word);
  return text;
}

std::set<std::string> InstalledPackages(const std::string& dpkg_status) {
  std::set<std::string> installed;
  std::ifstream in(dpkg_status);
  std::string package;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("Package: ")) package = line.substr(9);
    if (line.starts_with("Status: ") && line.ends_with(" installed")) installed.insert(package);
  }
  return installed;
}

}  // namespace

std::string CpuModel(const std::string& root) {
  const std::string model = ValueOf(root + "/proc/cpuinfo", "model name");
  return model.empty() ? ArchitectureName() : model;
}

Finding CpuFinding(const std::string& root, int usable_threads, const std::string& simd) {
  std::string model = CpuModel(root);
  if (model != ArchitectureName()) model = fmt::format("{} ({})", model, ArchitectureName());
  return Good("cpu", fmt::format("{}, {} thread{}, {} kernels", model, usable_threads,
                                 usable_threads == 1 ? "" : "s", simd));
}

Finding MemoryFinding(const std::string& root, int64_t address_space_limit) {
  constexpr double kLeast = 2;  // GiB: LibTorch and a model of story_math's size
  const std::string file = root + "/proc/meminfo";
  const int64_t total = Kilobytes(ValueOf(file, "MemTotal"));
  const int64_t available = Kilobytes(ValueOf(file, "MemAvailable"));
  if (total <= 0 || available < 0) return Note("memory", file + " does not say how much there is");
  std::string text = fmt::format("{:.1f} GiB, {:.1f} available", static_cast<double>(total) / kGib,
                                 static_cast<double>(available) / kGib);
  double usable = static_cast<double>(available) / kGib;
  const auto limit = [&](int64_t bytes, const char* whose) {
    if (bytes <= 0 || bytes >= total) return;
    text += fmt::format(", {} allows {:.1f}", whose, static_cast<double>(bytes) / kGib);
    usable = std::min(usable, static_cast<double>(bytes) / kGib);
  };
  limit(CgroupLimit(root), "the cgroup");
  limit(address_space_limit, "ulimit -v");
  if (usable >= kLeast) return Good("memory", text);
  return Problem("memory", text + fmt::format("; less than {} GiB is little", kLeast),
                 "end other programs, or raise the limit");
}

Finding DiskFinding(const std::string& folder) {
  constexpr double kLeast = 3;  // GiB: set-up and a build
  const std::string at = ExistingFolder(folder);
  struct statvfs disk = {};
  if (::statvfs(at.c_str(), &disk) != 0) {
    return Problem("disk", at + " cannot be asked for its free space", "choose another folder");
  }
  const double free =
      static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize) / kGib;
  const std::string text = fmt::format("{:.1f} GiB free in {}", free, at);
  if (::access(at.c_str(), W_OK) != 0) {
    return Problem("disk", text + ", which cannot be written",
                   "work in a folder of your own, or set run.directory");
  }
  if (free >= kLeast) return Good("disk", text);
  return Problem("disk", text, fmt::format("make room: set-up and a build take {} GiB", kLeast));
}

Finding FilesFinding(int64_t open_files_limit) {
  constexpr int64_t kLeast = 256;
  const std::string text = fmt::format("{} open files allowed", open_files_limit);
  if (open_files_limit >= kLeast) return Good("limits", text);
  return Problem("limits", text, fmt::format("ulimit -n {}", 4 * kLeast));
}

std::vector<std::string> MissingPackages(const std::string& list, const std::string& dpkg_status) {
  const std::set<std::string> installed = InstalledPackages(dpkg_status);
  std::vector<std::string> missing;
  std::ifstream in(list);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name, only;
    if (!(words >> name)) continue;
    if (words >> only) continue;  // for one distribution, such as [debian]: asked by set-up
    if (!installed.contains(name)) missing.push_back(name);
  }
  return missing;
}

Finding PackagesFinding(const std::string& tree, const std::string& dpkg_status) {
  const std::string list = tree + "/setup/packages.txt";
  if (tree.empty() || ::access(list.c_str(), R_OK) != 0) {
    return Note("packages", "not looked at: this binary does not stand in a source tree");
  }
  if (::access(dpkg_status.c_str(), R_OK) != 0) {
    return Note("packages", "neither Debian nor Ubuntu: see " + list + " for what is needed");
  }
  const std::vector<std::string> missing = MissingPackages(list, dpkg_status);
  if (!missing.empty()) {
    const std::string names = Joined(missing);
    return Problem(
        "packages", fmt::format("{} missing", missing.size()),
        "sudo apt-get update && sudo apt-get install -y --no-install-recommends " + names);
  }
  const std::vector<std::string> tests =
      MissingPackages(tree + "/setup/packages-test.txt", dpkg_status);
  if (tests.empty()) return Good("packages", "all installed, those of the tests too");
  return Good("packages",
              fmt::format("all installed; {} of the tests are not (./orrery test brings "
                          "them): {}",
                          tests.size(), Joined(tests)));
}

std::string LoadedLibrary(const std::string& name) {
  struct Search {
    const std::string* name;
    std::string found;
  } search{&name, {}};
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* s = static_cast<Search*>(data);
        const std::string path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
        if (std::filesystem::path(path).filename() != *s->name) return 0;
        s->found = path;
        return 1;
      },
      &search);
  return search.found;
}

Finding TorchFinding(const std::string& library, const std::string& version) {
  if (library.empty()) {
    return Problem("libtorch", "not loaded", "./orrery setup && ./orrery build");
  }
  return Good("libtorch", fmt::format("LibTorch {} from {}", version,
                                      std::filesystem::path(library).parent_path().string()));
}

Finding HubFinding(const std::string& cache, const std::string& endpoint, bool has_token,
                   bool offline) {
  if (cache.empty()) {
    return Note("hub", "no folder for hf: models and data", "set HF_HOME, or HOME");
  }
  std::string text = "hf: models and data go to " + cache;
  text += offline ? "; offline (HF_HUB_OFFLINE)" : "; from " + endpoint;
  text += has_token ? ", with a token" : ", without a token";
  if (::access(ExistingFolder(cache).c_str(), W_OK) == 0) return Good("hub", text);
  return Note("hub", text + "; the folder cannot be written",
              "set HF_HOME to a folder of your own, or use local models");
}

Finding ClockFinding(int64_t now, int64_t built, bool synchronised) {
  const std::time_t seconds = now;
  std::tm parts = {};
  ::gmtime_r(&seconds, &parts);
  char text[64] = {};
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts);
  if (now < built) {
    return Problem("clock", fmt::format("{} is before this binary was built", text),
                   "set it: timedatectl set-ntp true");
  }
  if (synchronised) return Good("clock", text);
  return Note("clock",
              fmt::format("{}, not synchronised (or a container that may not know)", text));
}

}  // namespace orrery::doctor
