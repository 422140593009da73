#include "sandbox/bench/runc.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "sandbox/bench/times.h"
#include "sandbox/disk/remove_tree.h"
#include "sandbox/oci/bundle.h"
#include "sandbox/protocol/messages.h"

namespace orrery::sandbox {
namespace {

namespace fs = std::filesystem;
constexpr uint32_t kIdBase = kFirstSandboxId - kIdCount;  // of no sandbox of ours

absl::StatusOr<int> RunProgram(std::vector<std::string> argv, const std::string& output) {
  std::vector<char*> arguments;
  for (std::string& argument : argv) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                     0600);
  ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t pid = 0;
  const int error =
      ::posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return NotFound("{} cannot be started: apt-get install runc", argv[0]);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

double ChildrenCpuMs() {
  rusage usage{};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  const auto ms = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_usec) / 1e3;
  };
  return ms(usage.ru_utime) + ms(usage.ru_stime);
}

// runc 1.1 cannot map ids of layers: the lowest layer is a copy that belongs to the range.
absl::Status CopyForRange(const std::vector<std::string>& layers, const std::string& to) {
  std::error_code error;
  for (const std::string& layer : layers) {
    fs::copy(layer, to,
             fs::copy_options::recursive | fs::copy_options::copy_symlinks |
                 fs::copy_options::overwrite_existing,
             error);
    if (error) return Failed("copying {}: {}", layer, error.message());
  }
  for (const auto& entry : fs::recursive_directory_iterator(to)) {
    if (::lchown(entry.path().c_str(), kIdBase, kIdBase) != 0) {
      return ErrnoStatus("cannot chown", entry.path().string(), errno);
    }
  }
  return ::chown(to.c_str(), kIdBase, kIdBase) == 0 ? absl::OkStatus()
                                                    : ErrnoStatus("cannot chown", to, errno);
}

absl::Status OneLife(const std::string& work, const std::string& name) {
  const std::string upper = work + "/upper", over = work + "/work", root = work + "/root";
  for (const std::string& folder : {upper, over}) RETURN_IF_ERROR(MakeFolders(folder));
  if (::chown(upper.c_str(), kIdBase, kIdBase) != 0) return ErrnoStatus("chown", upper, errno);
  const std::string options =
      fmt::format("lowerdir={}/lower,upperdir={},workdir={},volatile", work, upper, over);
  if (::mount("overlay", root.c_str(), "overlay", 0, options.c_str()) != 0) {
    return ErrnoStatus("cannot mount an overlay on", root, errno);
  }
  const auto code = RunProgram({"runc", "run", "--bundle", work + "/bundle", name}, work + "/log");
  if (::umount2(root.c_str(), 0) != 0) return ErrnoStatus("cannot unmount", root, errno);
  RETURN_IF_ERROR(RemoveTree(upper));
  RETURN_IF_ERROR(RemoveTree(over));
  RETURN_IF_ERROR(code.status());
  if (*code == 0) return absl::OkStatus();
  const auto log = ReadFile(work + "/log");
  return Failed("runc ended with {}: {}", *code, log.ok() ? *log : "");
}

// runc leaves the parent of its groups, in each hierarchy that it knows.
class RuncGroups {
 public:
  ~RuncGroups() {
    std::error_code error;
    ::rmdir("/sys/fs/cgroup/orrery-runc");
    for (const auto& entry : fs::directory_iterator("/sys/fs/cgroup", error)) {
      ::rmdir((entry.path().string() + "/orrery-runc").c_str());
    }
  }
};

// The image as a root of the range, and the bundle beside it.
absl::Status Prepare(const SandboxOptions& options, const std::string& work,
                     const std::string& name, const std::vector<std::string>& argv) {
  for (const char* folder : {"/lower", "/root"}) RETURN_IF_ERROR(MakeFolders(work + folder));
  RETURN_IF_ERROR(CopyForRange(options.image.layers, work + "/lower"));
  for (const char* folder : {"/lower/proc", "/lower/sys", "/lower/dev"}) {
    RETURN_IF_ERROR(MakeFolders(work + folder));
  }
  BundleOptions bundle;
  bundle.sandbox = options;
  bundle.id_base = kIdBase;
  bundle.root = work + "/root";
  bundle.argv = argv;
  bundle.cgroup = "/orrery-runc/" + name;
  return WriteBundle(work + "/bundle", bundle);
}

}  // namespace

absl::StatusOr<std::string> RunByRunc(const SandboxOptions& options, const std::string& work,
                                      const std::vector<std::string>& argv) {
  RETURN_IF_ERROR(MakeFolders(work));
  RETURN_IF_ERROR(RunProgram({"runc", "--version"}, work + "/version").status());
  const RuncGroups groups;
  const std::string name = fmt::format("orrery-oracle-{}", ::getpid());
  RETURN_IF_ERROR(Prepare(options, work, name, argv));
  RETURN_IF_ERROR(OneLife(work, name));
  return ReadFile(work + "/log");
}

absl::StatusOr<RuncLives> MeasureRunc(const SandboxOptions& options, const std::string& work,
                                      int lives) {
  RuncLives measured;
  RETURN_IF_ERROR(RunProgram({"runc", "--version"}, work + "/version").status());
  ASSIGN_OR_RETURN(const std::string version, ReadFile(work + "/version"));
  measured.version = version.substr(0, version.find('\n'));
  const RuncGroups groups;
  const std::string name = fmt::format("orrery-bench-{}", ::getpid());
  RETURN_IF_ERROR(Prepare(options, work, name, {"true"}));
  const double before = ChildrenCpuMs();
  for (int i = 0; i < lives; ++i) {
    const auto begin = BenchClock::now();
    RETURN_IF_ERROR(OneLife(work, name));
    measured.life_ms.push_back(MsSince(begin));
  }
  measured.cpu_ms = (ChildrenCpuMs() - before) / lives;
  return measured;
}

}  // namespace orrery::sandbox
