#include "sandbox/host/local_host.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <sstream>
#include <thread>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "sandbox/disk/project_quota.h"
#include "sandbox/disk/remove_tree.h"
#include "sandbox/host/blank_pool.h"
#include "sandbox/host/control.h"
#include "sandbox/host/helper_program.h"
#include "sandbox/host/kernel.h"
#include "sandbox/host/local_sandbox.h"
#include "sandbox/host/ownership.h"
#include "sandbox/host/resources.h"
#include "sandbox/host/unenforced.h"
#include "sandbox/host/warm_pool.h"
#include "sandbox/seccomp/filter.h"

namespace orrery::sandbox {
namespace {

// One takes some 1 MB of the kernel's memory; so they never take more than a 64th.
constexpr int64_t kMemoryOfBlank = 64 << 20;

absl::Status CheckRoot() {
  if (::geteuid() == 0) return absl::OkStatus();
  return Precondition("sandboxes need root for now: run this as root (sudo)");
}

absl::StatusOr<int64_t> TotalMemory() {
  ASSIGN_OR_RETURN(const std::string text, ReadFile("/proc/meminfo"));
  std::istringstream words(text);
  std::string name;
  int64_t kilobytes = 0;
  words >> name >> kilobytes;
  return kilobytes * 1024;
}

int64_t PidMax() {
  const auto text = ReadFile("/proc/sys/kernel/pid_max");
  return text.ok() ? std::atoll(text->c_str()) : 32768;
}

int CountCpus() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

absl::Status FillDefaults(HostOptions& options) {
  if (options.memory_bytes <= 0) {
    ASSIGN_OR_RETURN(const int64_t total, TotalMemory());
    options.memory_bytes = total / 4 * 3;
  }
  if (options.cpus <= 0) options.cpus = CountCpus();
  if (options.processes <= 0) options.processes = std::max<int64_t>(1024, PidMax() - 8192);
  if (options.launchers <= 0) options.launchers = std::min(4, CountCpus());
  return absl::OkStatus();
}

bool HasLoopImages() {
  if (::access("/dev/loop-control", R_OK | W_OK) != 0) return false;
  for (const char* folder : {"/usr/sbin", "/usr/bin", "/sbin", "/bin"}) {
    if (::access((std::string(folder) + "/mkfs.ext4").c_str(), X_OK) == 0) return true;
  }
  return false;
}

// A tmpfs is counted as memory alone.
absl::Status FillDisk(HostOptions& options) {
  if (options.disk == DiskBackend::kTmpfs) options.disk_bytes = INT64_MAX;
  if (options.disk_bytes > 0) return absl::OkStatus();
  struct statvfs disk {};
  if (::statvfs(options.state_folder.c_str(), &disk) != 0) {
    return ErrnoStatus("cannot look at the disk of", options.state_folder, errno);
  }
  options.disk_bytes = static_cast<int64_t>(disk.f_bavail * disk.f_frsize) / 10 * 9;
  return absl::OkStatus();
}

std::string FreshName() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

// What an image may lack, below everything it has: places to mount on, and localhost.
absl::Status MakeSkeleton(const std::string& folder) {
  for (const char* name : {"proc", "sys", "dev", "etc", "tmp", "root"}) {
    RETURN_IF_ERROR(MakeFolders(folder + "/" + name));
  }
  ::chmod((folder + "/tmp").c_str(), 01777);
  ::chmod((folder + "/root").c_str(), 0700);
  RETURN_IF_ERROR(WriteFileAtomically(folder + "/etc/hosts",
                                      "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n"));
  return absl::OkStatus();
}

class LocalHost : public SandboxHost {
 public:
  ~LocalHost() override;
  absl::Status Begin(const HostOptions& options);

  absl::StatusOr<std::unique_ptr<Sandbox>> Create(const SandboxOptions& options) override;
  absl::StatusOr<std::unique_ptr<Sandbox>> Fork(const std::shared_ptr<const Snapshot>& snapshot,
                                                const SandboxOptions& options) override;
  HostLoad load() const override;
  std::vector<std::string> warnings() const override { return warnings_; }

 private:
  absl::Status Admit(const Limits& limits);
  absl::StatusOr<std::unique_ptr<Sandbox>> Launch(const SandboxOptions& options,
                                                  std::shared_ptr<const LocalSnapshot> snapshot);
  absl::Status MakeGroups();
  absl::Status CheckEnforced();
  std::vector<SandboxRow> Rows();
  ExecResult ExecById(const std::string& id, const ExecRequest& request);
  absl::Status KillById(const std::string& id);
  absl::Status StartLaunchers();

  HostResources resources_;
  std::vector<std::string> warnings_;
  Descriptor ownership_;
  std::unique_ptr<BlankPool> blanks_;
  std::unique_ptr<WarmPool> pool_;
  std::unique_ptr<ControlServer> control_;
};

absl::Status LocalHost::Begin(const HostOptions& options) {
  resources_.options = options;
  RETURN_IF_ERROR(FillDefaults(resources_.options));
  ASSIGN_OR_RETURN(resources_.hierarchies, Hierarchies::Find());
  ASSIGN_OR_RETURN(resources_.seccomp, MakeSeccompFilters());
  resources_.num_cpus = CountCpus();
  const std::string& state = resources_.options.state_folder;
  RETURN_IF_ERROR(MakeFolders(state));
  DiskBackend& disk = resources_.options.disk;
  if (disk == DiskBackend::kAuto) disk = ChooseDisk(state);
  if (disk == DiskBackend::kProjectQuota) {
    ASSIGN_OR_RETURN(resources_.projects, ProjectQuota::Open(state));
  }
  RETURN_IF_ERROR(FillDisk(resources_.options));
  if (::chmod(state.c_str(), 0700) != 0) return ErrnoStatus("cannot chmod", state, errno);
  const std::string name = FreshName();
  resources_.folder = state + "/hosts/" + name;
  resources_.cgroup = resources_.options.cgroup + "/" + name;
  ASSIGN_OR_RETURN(ownership_, TakeOwnership(resources_.folder));
  resources_.skeleton = resources_.folder + "/skeleton";
  RETURN_IF_ERROR(MakeSkeleton(resources_.skeleton));
  RETURN_IF_ERROR(MakeFolders(resources_.folder + "/uppers"));
  resources_.loop_images = std::make_unique<LoopImages>(resources_.folder);
  ASSIGN_OR_RETURN(resources_.slots, IdSlots::Open(state + "/slots"));
  resources_.admission =
      std::make_unique<Admission>(resources_.options.max_sandboxes,
                                  Share{resources_.options.memory_bytes, resources_.options.cpus,
                                        resources_.options.disk_bytes},
                                  resources_.options.max_waiting);
  RETURN_IF_ERROR(MakeGroups());
  RETURN_IF_ERROR(CheckEnforced());
  RETURN_IF_ERROR(StartLaunchers());
  const int64_t most = resources_.options.memory_bytes / kMemoryOfBlank;
  blanks_ = std::make_unique<BlankPool>(&resources_,
                                        static_cast<int>(std::min<int64_t>(options.blanks, most)));
  pool_ = std::make_unique<WarmPool>(&resources_, options.warm_sandboxes);
  ASSIGN_OR_RETURN(
      control_, ControlServer::Start(
                    resources_.folder + "/control",
                    {[this] { return Rows(); },
                     [this](const auto& id, const auto& request) { return ExecById(id, request); },
                     [this](const auto& id) { return KillById(id); }}));
  return absl::OkStatus();
}

std::vector<SandboxRow> LocalHost::Rows() {
  std::vector<SandboxRow> rows;
  for (const std::string& id : resources_.live.Ids()) {
    resources_.live.With(id, [&](LocalSandbox& sandbox) {
      rows.push_back(
          {id, sandbox.options().image.id, ::getpid(), sandbox.AgeMs(), sandbox.running()});
    });
  }
  return rows;
}

ExecResult LocalHost::ExecById(const std::string& id, const ExecRequest& request) {
  ExecResult result;
  result.ending = Ending::kRefused;
  result.why = "there is no such sandbox";
  resources_.live.With(id, [&](LocalSandbox& sandbox) { result = sandbox.Exec(request); });
  return result;
}

absl::Status LocalHost::KillById(const std::string& id) {
  absl::Status status = NotFound("there is no sandbox {}", id);
  resources_.live.With(id, [&](LocalSandbox& sandbox) { status = sandbox.Destroy(); });
  return status;
}

absl::Status LocalHost::MakeGroups() {
  const HostOptions& options = resources_.options;
  RETURN_IF_ERROR(MakeParentGroup(resources_.hierarchies, options.cgroup, {}));
  return MakeParentGroup(resources_.hierarchies, resources_.cgroup,
                         {options.memory_bytes, options.processes, 0});
}

absl::Status LocalHost::CheckEnforced() {
  const HostOptions& options = resources_.options;
  const auto swaps = ReadFile("/proc/swaps"), lru = ReadFile("/sys/kernel/mm/lru_gen/enabled");
  warnings_ = FindUnenforced(options, resources_.hierarchies, swaps.ok() ? *swaps : "");
  if (!warnings_.empty() && !options.allow_unenforced) {
    return Precondition("{}; or allow it (allow_unenforced)", warnings_.front());
  }
  for (std::string& line : FindPitfalls(options, resources_.hierarchies, lru.ok() ? *lru : "")) {
    warnings_.push_back(std::move(line));
  }
  return absl::OkStatus();
}

absl::Status LocalHost::StartLaunchers() {
  ASSIGN_OR_RETURN(const Descriptor program, MakeHelperProgram());
  utsname name{};
  ::uname(&name);
  const std::string group =
      resources_.hierarchies.unified() + "/" + resources_.cgroup + "/launchers";
  if (::mkdir(group.c_str(), 0755) != 0) return ErrnoStatus("cannot make", group, errno);
  const Descriptor procs(::open((group + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
  if (!procs.valid()) return ErrnoStatus("cannot open cgroup.procs of", group, errno);
  LauncherConfig config{resources_.seccomp.launcher, {}};
  if (resources_.options.staged_mounts || !HasDetachedMounts(name.release)) {
    config.stage = resources_.folder + "/stage";
    RETURN_IF_ERROR(MakeFolders(config.stage));
  }
  const auto start = [&] { return LauncherProcess::Start(program.get(), procs.get(), config); };
  for (int i = 0; i < resources_.options.launchers; ++i) {
    ASSIGN_OR_RETURN(std::unique_ptr<LauncherProcess> launcher, start());
    resources_.launchers.push_back(std::move(launcher));
  }
  if (resources_.options.blanks > 0) {
    ASSIGN_OR_RETURN(resources_.root_launcher, start());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Sandbox>> LocalHost::Launch(
    const SandboxOptions& options, std::shared_ptr<const LocalSnapshot> snapshot) {
  RETURN_IF_ERROR(Admit(options.limits));
  if (std::unique_ptr<LocalSandbox> blank = blanks_->Take(options)) {
    RETURN_IF_ERROR(blank->Furnish(options, std::move(snapshot)));
    return blank;
  }
  return LocalSandbox::Launch(&resources_, options, std::move(snapshot));
}

absl::StatusOr<std::unique_ptr<Sandbox>> LocalHost::Fork(
    const std::shared_ptr<const Snapshot>& snapshot, const SandboxOptions& options) {
  auto local = std::dynamic_pointer_cast<const LocalSnapshot>(snapshot);
  if (local == nullptr) return InvalidInput("the snapshot is another host's");
  RETURN_IF_ERROR(CheckLimits(options.limits));
  return Launch(options, std::move(local));
}

absl::StatusOr<std::unique_ptr<Sandbox>> LocalHost::Create(const SandboxOptions& options) {
  RETURN_IF_ERROR(CheckLimits(options.limits));
  if (options.warm) {
    if (std::unique_ptr<Sandbox> ready = pool_->Take(options)) return ready;
  }
  return Launch(options, nullptr);
}

// Where there is no room, the pool makes some before anybody waits.
absl::Status LocalHost::Admit(const Limits& limits) {
  const Share share = ShareOf(limits);
  if (resources_.admission->TryEnter(share)) return absl::OkStatus();
  pool_->BeginPressure();
  bool inside = false;
  while (!inside && pool_->EvictOne()) inside = resources_.admission->TryEnter(share);
  const absl::Status status = inside ? absl::OkStatus() : resources_.admission->Enter(share);
  pool_->EndPressure();
  return status;
}

HostLoad LocalHost::load() const {
  HostLoad load = resources_.admission->load();
  const HostLoad pool = pool_->load();
  load.sandboxes -= pool.warm;
  load.memory_bytes -= pool.memory_bytes;
  load.cpus -= pool.cpus;
  load.warm = pool.warm;
  load.blank = blanks_->ready();
  return load;
}

LocalHost::~LocalHost() {
  control_.reset();
  pool_.reset();
  blanks_.reset();
  if (resources_.admission) resources_.admission->Close();
  resources_.launchers.clear();  // and all that they launched
  resources_.root_launcher.reset();
  if (resources_.folder.empty()) return;
  RemoveGroupTree(resources_.hierarchies, resources_.cgroup).IgnoreError();
  ReleaseProjects(resources_.folder + "/uppers");
  RemoveTree(resources_.folder).IgnoreError();
}

}  // namespace

DiskBackend ChooseDisk(const std::string& state_folder) {
  std::filesystem::path place = state_folder;
  std::error_code error;
  while (!std::filesystem::exists(place, error) && place.has_relative_path()) {
    place = place.parent_path();
  }
  if (ProjectQuota::Open(place.empty() ? "." : place.string()).ok()) {
    return DiskBackend::kProjectQuota;
  }
  return HasLoopImages() ? DiskBackend::kLoop : DiskBackend::kTmpfs;
}

absl::StatusOr<int> SweepDeadHosts(const HostOptions& options) {
  RETURN_IF_ERROR(CheckRoot());
  ASSIGN_OR_RETURN(const Hierarchies hierarchies, Hierarchies::Find());
  int swept = 0;
  std::error_code error;
  const std::string hosts = options.state_folder + "/hosts";
  for (const auto& entry : std::filesystem::directory_iterator(hosts, error)) {
    const std::string folder = entry.path().string();
    if (OwnerLives(folder)) continue;
    RETURN_IF_ERROR(
        RemoveGroupTree(hierarchies, options.cgroup + "/" + entry.path().filename().string()));
    ReleaseProjects(folder + "/uppers");
    RETURN_IF_ERROR(RemoveTree(folder));
    ++swept;
  }
  return swept;
}

absl::StatusOr<std::unique_ptr<SandboxHost>> MakeLocalHost(const HostOptions& options) {
  RETURN_IF_ERROR(CheckRoot());
  utsname name{};
  ::uname(&name);
  RETURN_IF_ERROR(CheckKernel(name.release));
  RETURN_IF_ERROR(SweepDeadHosts(options).status());
  auto host = std::make_unique<LocalHost>();
  RETURN_IF_ERROR(host->Begin(options));
  return std::unique_ptr<SandboxHost>(std::move(host));
}

}  // namespace orrery::sandbox
