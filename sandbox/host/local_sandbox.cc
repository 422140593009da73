#include "sandbox/host/local_sandbox.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cmath>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "sandbox/host/emulator.h"
#include "sandbox/host/environment.h"
#include "sandbox/host/execution.h"

namespace orrery::sandbox {
namespace {

constexpr int kReadyPatienceMs = 30'000, kDeathPatienceMs = 30'000;
constexpr int64_t kFullBytes = 64 << 10, kMostFullBytes = 1 << 20;
constexpr size_t kMostIdleGroups = 4;

// What root keeps inside, of Docker's default list: without NET_RAW (raw sockets), MKNOD and
// AUDIT_WRITE, which nothing here needs.
constexpr uint64_t Bit(int capability) { return uint64_t{1} << capability; }
constexpr uint64_t kCapabilities =
    Bit(0) /* CHOWN */ | Bit(1) /* DAC_OVERRIDE */ | Bit(3) /* FOWNER */ | Bit(4) /* FSETID */ |
    Bit(5) /* KILL */ | Bit(6) /* SETGID */ | Bit(7) /* SETUID */ | Bit(8) /* SETPCAP */ |
    Bit(10) /* NET_BIND_SERVICE */ | Bit(18) /* SYS_CHROOT */ | Bit(31) /* SETFCAP */;

bool WaitReadable(int fd, int timeout_ms) {
  pollfd wait{fd, POLLIN, 0};
  int n;
  do {
    n = ::poll(&wait, 1, timeout_ms);
  } while (n < 0 && errno == EINTR);
  return n > 0;
}

// XFS refuses a large write as a whole, so that nearly a megabyte of a project may stay free.
int64_t FullBytes(DiskBackend disk, const Limits& limits) {
  if (disk != DiskBackend::kProjectQuota) return kFullBytes;
  return std::clamp(limits.disk_bytes / 64, kFullBytes, kMostFullBytes);
}

ExecResult Refuse(std::string why, int code = 0) {
  ExecResult result;
  result.ending = Ending::kRefused;
  result.code = code;
  result.why = std::move(why);
  return result;
}

ExecResult Lost(std::string why) {
  ExecResult result;
  result.ending = Ending::kInfrastructure;
  result.retryable = true;
  result.why = std::move(why);
  return result;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalSandbox>> LocalSandbox::Launch(
    HostResources* resources, const SandboxOptions& options,
    std::shared_ptr<const LocalSnapshot> snapshot) {
  auto sandbox = std::unique_ptr<LocalSandbox>(new LocalSandbox(resources));
  RETURN_IF_ERROR(sandbox->Begin(options, std::move(snapshot)));
  return sandbox;
}

absl::StatusOr<std::unique_ptr<LocalSandbox>> LocalSandbox::LaunchBlank(
    HostResources* resources, const SandboxOptions& options) {
  auto sandbox = std::unique_ptr<LocalSandbox>(new LocalSandbox(resources));
  sandbox->options_.limits = options.limits;
  sandbox->options_.hostname = options.hostname;
  RETURN_IF_ERROR(sandbox->MakeGroup());
  CreateRequest request = sandbox->RootRequest(nullptr);
  request.blank = true;
  RETURN_IF_ERROR(resources->root_launcher->PrepareIds(request));
  ASSIGN_OR_RETURN(LauncherProcess::Created created, sandbox->Create(std::move(request)));
  sandbox->process_ = std::move(created.process);
  RETURN_IF_ERROR(sandbox->WaitUntilReady());
  ASSIGN_OR_RETURN(CommandGroup command, sandbox->TakeCommandGroup());
  sandbox->GiveCommandGroup(std::move(command));
  return sandbox;
}

absl::Status LocalSandbox::Furnish(const SandboxOptions& options,
                                   std::shared_ptr<const LocalSnapshot> snapshot) {
  admitted_ = true;
  StartAge();
  options_ = options;
  launcher_ = snapshot ? snapshot->launcher() : resources_->root_launcher.get();
  below_ = std::move(snapshot);
  ASSIGN_OR_RETURN(disk_, MakeDisk());
  ASSIGN_OR_RETURN(LauncherProcess::Created created, launcher_->MakeRoot(RootRequest(disk_.get())));
  volume_ = created.volume;
  upper_ = std::move(created.upper);
  RETURN_IF_ERROR(MoveTo(created.process));
  resources_->live.Add(id_, this);
  return absl::OkStatus();
}

LocalSandbox::~LocalSandbox() {
  Destroy().IgnoreError();
  resources_->live.Remove(id_);
}

int64_t LocalSandbox::AgeMs() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                               begun_.load())
      .count();
}

bool LocalSandbox::Lives() const { return !destroyed_ && !WaitReadable(process_.get(), 0); }

// Where the next upper layer lies: nothing of tmpfs, otherwise what is deleted with its last
// holder.
absl::StatusOr<std::shared_ptr<UpperDisk>> LocalSandbox::MakeDisk() {
  if (resources_->options.disk == DiskBackend::kTmpfs) return nullptr;
  auto disk = std::make_shared<UpperDisk>(
      fmt::format("{}/uppers/{}-{}", resources_->folder, id_, num_disks_++),
      resources_->projects != nullptr);
  RETURN_IF_ERROR(MakeUpper(disk->path()));
  return disk;
}

absl::Status LocalSandbox::MakeUpper(const std::string& path) {
  const Limits& limits = options_.limits;
  if (resources_->projects != nullptr) {
    return resources_->projects->Make(path, limits.disk_bytes, limits.inodes);
  }
  return resources_->options.disk == DiskBackend::kLoop
             ? resources_->loop_images->Make(limits, path)
             : MakeFolders(path);
}

UpperKind LocalSandbox::Kind() const {
  switch (resources_->options.disk) {
    case DiskBackend::kTmpfs:
      return UpperKind::kTmpfs;
    case DiskBackend::kLoop:
      return UpperKind::kLoop;
    case DiskBackend::kProjectQuota:
    case DiskBackend::kUnlimited:
    case DiskBackend::kAuto:  // chosen when the host began
      break;
  }
  return UpperKind::kFolder;
}

absl::Status LocalSandbox::Begin(const SandboxOptions& options,
                                 std::shared_ptr<const LocalSnapshot> snapshot) {
  admitted_ = true;
  options_ = options;
  RETURN_IF_ERROR(MakeGroup());
  if (snapshot) launcher_ = snapshot->launcher();
  below_ = std::move(snapshot);
  ASSIGN_OR_RETURN(disk_, MakeDisk());
  ASSIGN_OR_RETURN(LauncherProcess::Created created, Create(RootRequest(disk_.get())));
  volume_ = created.volume;
  process_ = std::move(created.process);
  upper_ = std::move(created.upper);
  RETURN_IF_ERROR(WaitUntilReady());
  resources_->live.Add(id_, this);
  return absl::OkStatus();
}

absl::Status LocalSandbox::MakeGroup() {
  id_ = fmt::format("s{}", resources_->next_sandbox++);
  ASSIGN_OR_RETURN(id_base_, resources_->slots->Take());
  // A range of ids has its launcher, which keeps what belongs to the range.
  launcher_ = resources_->launchers[id_base_ / kIdCount % resources_->launchers.size()].get();
  const Limits& limits = options_.limits;
  ASSIGN_OR_RETURN(group_, Group::Make(resources_->hierarchies, resources_->cgroup + "/" + id_,
                                       {limits.memory_bytes, limits.processes, limits.cpus}));
  return group_.Delegate(id_base_);
}

absl::StatusOr<LauncherProcess::Created> LocalSandbox::Create(CreateRequest request) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus("cannot make a control socket for", id_, errno);
  }
  control_.Reset(ends[0]);
  const Descriptor theirs(ends[1]);
  SendFrame(control_.get(), static_cast<uint16_t>(MessageType::kConfig), Encode(Config()), {});
  std::vector<int> descriptors = {theirs.get(), group_.unified()};
  for (const int procs : group_.procs()) descriptors.push_back(procs);
  absl::StatusOr<LauncherProcess::Created> created = launcher_->Create(request, descriptors);
  group_.CloseProcs();
  return created;
}

CreateRequest LocalSandbox::RootRequest(const UpperDisk* disk) const {
  const Limits& limits = options_.limits;
  CreateRequest request;
  request.hostname = options_.hostname;
  request.id_base = id_base_;
  request.layers.push_back(resources_->skeleton);
  request.layers.insert(request.layers.end(), options_.image.layers.begin(),
                        options_.image.layers.end());
  for (const LocalSnapshot* s = below_.get(); s != nullptr; s = s->below()) {
    request.frozen.insert(request.frozen.begin(), s->volume());
  }
  request.upper = Kind();
  request.upper_bytes = static_cast<uint64_t>(limits.disk_bytes);
  request.upper_inodes = static_cast<uint64_t>(limits.inodes);
  if (disk != nullptr) request.upper_path = disk->path();
  ChooseEmulator(options_.image.config.architecture, &request);
  request.shm_bytes = static_cast<uint64_t>(limits.shm_bytes);
  request.max_terminals = static_cast<uint32_t>(limits.terminals);
  request.max_user_objects = static_cast<uint32_t>(limits.user_objects);
  // So that nproc agrees with the CPU limit. Spread over the machine, from a place that follows
  // from the range of ids.
  const int count = static_cast<int>(std::ceil(limits.cpus));
  if (count < resources_->num_cpus) {
    const int first =
        static_cast<int>((id_base_ >> 16) % static_cast<uint32_t>(resources_->num_cpus));
    for (int i = 0; i < count; ++i) {
      request.cpus.push_back(static_cast<uint32_t>((first + i) % resources_->num_cpus));
    }
  }
  return request;
}

InitConfig LocalSandbox::Config() const {
  InitConfig config;
  config.seccomp = resources_->seccomp.command;
  config.open_files = static_cast<uint64_t>(options_.limits.open_files);
  config.file_bytes = static_cast<uint64_t>(options_.limits.file_bytes);
  config.locked_bytes = 8 << 20;
  config.capabilities = kCapabilities;
  return config;
}

absl::Status LocalSandbox::WaitUntilReady() {
  if (!WaitReadable(control_.get(), kReadyPatienceMs)) {
    return Unavailable("sandbox {} is not ready after {} ms", id_, kReadyPatienceMs);
  }
  Frame frame;
  if (ReceiveFrame(control_.get(), receiver_, frame) != 0) {
    return Unavailable("sandbox {} has ended before it was ready (out of memory?)", id_);
  }
  if (frame.type == static_cast<uint16_t>(MessageType::kReady)) return absl::OkStatus();
  const auto failure = Decode<Failure>(frame.body);
  return Annotate(failure ? ToStatus(*failure) : Failed("init talks nonsense"), "sandbox " + id_);
}

ExecResult LocalSandbox::Run(StartRequest start, RunOptions options) {
  if (destroyed_) return Refuse("the sandbox is destroyed");
  ++running_;
  const absl::StatusOr<SandboxEvents> before = Events();
  ExecResult result = RunInCommandGroup(start, options);
  if (const auto after = Events(); before.ok() && after.ok()) AddEvents(*before, *after, result);
  --running_;
  return result;
}

ExecResult LocalSandbox::RunInCommandGroup(StartRequest& start, RunOptions& options) {
  start.id = next_command_++;
  absl::StatusOr<CommandGroup> command = TakeCommandGroup();
  if (!command.ok()) return Lost(StatusText(command.status()));
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return Lost("no socket for a command: too many open files");
  }
  Descriptor ours(ends[0]), theirs(ends[1]);
  {
    const std::lock_guard lock(control_mutex_);
    if (SendFrame(control_.get(), static_cast<uint16_t>(MessageType::kStart), Encode(start),
                  {theirs.get(), command->folder.get()}) != 0) {
      return Lost("the sandbox has ended: its init is gone");
    }
  }
  theirs.Reset();
  Execution execution({std::move(options.input), std::move(options.next_input), options.input_fd,
                       options.stop_fd, options.terminal, options.timeout_ms, options.keep_bytes,
                       options.output_cap_bytes, std::move(options.on_output)},
                      std::move(ours), [&] { KillCommand(*command); });
  ExecResult result = execution.Run();
  GiveCommandGroup(*std::move(command));
  return result;
}

absl::StatusOr<CommandGroup> LocalSandbox::TakeCommandGroup() {
  const std::shared_lock files(files_mutex_);
  if (destroyed_) return Unavailable("the sandbox was destroyed");
  {
    const std::lock_guard lock(command_groups_mutex_);
    if (!command_groups_.empty()) {
      CommandGroup command = std::move(command_groups_.back());
      command_groups_.pop_back();
      return command;
    }
  }
  return group_.MakeCommand("c" + std::to_string(next_group_++), id_base_);
}

// It stays where something of the command still runs; then it goes with the sandbox.
void LocalSandbox::GiveCommandGroup(CommandGroup command) {
  const std::shared_lock files(files_mutex_);
  if (destroyed_ || !IsEmpty(command)) return;
  const std::lock_guard lock(command_groups_mutex_);
  if (!command.killed && command_groups_.size() < kMostIdleGroups) {
    command_groups_.push_back(std::move(command));
  } else {
    group_.RemoveCommand(command.name);
  }
}

absl::StatusOr<SandboxEvents> LocalSandbox::Events() {
  const std::shared_lock files(files_mutex_);
  if (destroyed_) return Precondition("the sandbox is destroyed");
  SandboxEvents events;
  ASSIGN_OR_RETURN(const GroupEvents group, group_.ReadEvents());
  events.oom_kills = group.oom_kills;
  events.process_limit_hits = group.process_limit_hits;
  struct statvfs disk {};
  if (::fstatvfs(upper_.get(), &disk) == 0) {
    const auto free = static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
    events.disk_full =
        free < FullBytes(resources_->options.disk, options_.limits) || disk.f_favail == 0;
  }
  return events;
}

ExecResult LocalSandbox::Exec(const ExecRequest& request) {
  StartRequest start;
  start.argv = request.argv;
  start.env = MergeEnvironment(options_.image.config.env, request.env);
  start.folder = !request.folder.empty() ? request.folder : options_.image.config.working_dir;
  if (start.folder.empty()) start.folder = "/";
  start.user = request.user.empty() ? options_.image.config.user : request.user;
  start.input = !request.input.empty() || request.next_input != nullptr || request.input_fd >= 0;
  start.output = request.terminal   ? OutputMode::kTerminal
                 : request.separate ? OutputMode::kSeparate
                                    : OutputMode::kMerged;
  return Run(std::move(start), {request.input, request.next_input, request.input_fd,
                                request.stop_fd, request.terminal, request.timeout_ms,
                                request.keep_bytes, request.output_cap_bytes, request.on_output});
}

absl::Status LocalSandbox::Destroy() {
  if (destroyed_.exchange(true)) return absl::OkStatus();
  absl::Status status;
  group_.Kill();
  {
    const std::lock_guard lock(control_mutex_);
    control_.Reset();
  }
  if (process_.valid() && !WaitReadable(process_.get(), kDeathPatienceMs)) {
    status.Update(
        Failed("sandbox {}: init is not dead {} ms after it was killed", id_, kDeathPatienceMs));
  }
  const std::lock_guard files(files_mutex_);
  if (volume_ != 0) status.Update(launcher_->Release(volume_));
  upper_.Reset();
  below_.reset();
  for (const CommandGroup& command : command_groups_) group_.RemoveCommand(command.name);
  command_groups_.clear();
  status.Update(group_.Remove());
  disk_.reset();
  if (id_base_ != 0 && status.ok()) resources_->slots->Give(id_base_);
  if (admitted_) resources_->admission->Leave(ShareOf(options_.limits));
  return status;
}

}  // namespace orrery::sandbox
