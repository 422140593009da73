// One sandbox of this machine, from the request to the launcher until everything of it is gone.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "sandbox/diff/layered_tree.h"
#include "sandbox/disk/remove_tree.h"
#include "sandbox/host/resources.h"
#include "sandbox/sandbox.h"

namespace orrery::sandbox {

// The folder, or the file of a loop device, that an upper layer lies in.
class UpperDisk {
 public:
  explicit UpperDisk(std::string path, bool has_project)
      : path_(std::move(path)), has_project_(has_project) {}
  ~UpperDisk() { (has_project_ ? ProjectQuota::Remove(path_) : RemoveTree(path_)).IgnoreError(); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool has_project_;
};

// A frozen upper layer, and those below it. The launcher that holds it releases it with the last
// holder; a sandbox that began from it holds it too.
class LocalSnapshot : public Snapshot {
 public:
  LocalSnapshot(LauncherProcess* launcher, uint64_t volume, Descriptor upper,
                std::shared_ptr<UpperDisk> disk, std::shared_ptr<const LocalSnapshot> below)
      : launcher_(launcher),
        volume_(volume),
        disk_(std::move(disk)),
        upper_(std::move(upper)),
        below_(std::move(below)) {}
  ~LocalSnapshot() override { launcher_->Release(volume_).IgnoreError(); }

  LauncherProcess* launcher() const { return launcher_; }
  uint64_t volume() const { return volume_; }
  int upper() const { return upper_.get(); }
  const LocalSnapshot* below() const { return below_.get(); }

 private:
  LauncherProcess* launcher_;
  uint64_t volume_;
  std::shared_ptr<UpperDisk> disk_;
  Descriptor upper_;
  std::shared_ptr<const LocalSnapshot> below_;
};

class LocalSandbox : public Sandbox {
 public:
  // Ready when it returns. `resources` outlives it. REQUIRES: it is admitted; it leaves when it is
  // destroyed, or could not begin.
  static absl::StatusOr<std::unique_ptr<LocalSandbox>> Launch(
      HostResources* resources, const SandboxOptions& options,
      std::shared_ptr<const LocalSnapshot> snapshot);
  // All of a sandbox but its image: its namespaces, groups and init. Nothing can be asked of it but
  // Furnish. Not admitted.
  static absl::StatusOr<std::unique_ptr<LocalSandbox>> LaunchBlank(HostResources* resources,
                                                                   const SandboxOptions& options);
  // A blank becomes the sandbox that Launch gives. REQUIRES: it is admitted from now on; the limits
  // and the host name are those of LaunchBlank, and the image needs no emulator.
  absl::Status Furnish(const SandboxOptions& options,
                       std::shared_ptr<const LocalSnapshot> snapshot);
  ~LocalSandbox() override;

  const std::string& id() const override { return id_; }
  ExecResult Exec(const ExecRequest& request) override;
  absl::StatusOr<SandboxEvents> Events() override;
  absl::StatusOr<std::string> Get(const std::string& path, int64_t max_bytes) override;
  absl::Status Put(const std::string& path, std::string_view content, uint32_t mode) override;
  absl::Status GetStream(const std::string& path,
                         const std::function<void(std::string_view)>& sink) override;
  absl::Status PutStream(const std::string& path, const std::function<std::string()>& source,
                         uint32_t mode) override;
  absl::Status Link(const std::string& path, const std::string& target) override;
  absl::Status Remove(const std::string& path) override;
  absl::StatusOr<FileInfo> Stat(const std::string& path) override;
  absl::StatusOr<std::vector<FileInfo>> List(const std::string& path, bool any_type) override;
  absl::StatusOr<std::shared_ptr<const Snapshot>> TakeSnapshot() override;
  absl::StatusOr<std::vector<Change>> Diff() override;
  absl::Status ReadChanged(const std::string& path,
                           const std::function<void(std::string_view)>& sink) override;
  absl::Status Destroy() override;

  int64_t PeakMemory() const { return group_.PeakMemory(); }
  int64_t running() const { return running_; }
  int64_t AgeMs() const;
  void StartAge() { begun_ = std::chrono::steady_clock::now(); }
  bool Lives() const;  // not destroyed, and its init runs
  const SandboxOptions& options() const { return options_; }

 private:
  struct RunOptions {
    std::string input;
    std::function<std::string()> next_input;
    int input_fd = -1, stop_fd = -1;
    bool terminal = false;
    int64_t timeout_ms = 60'000, keep_bytes = 0, output_cap_bytes = 0;
    std::function<void(std::string_view, bool)> on_output;
  };

  explicit LocalSandbox(HostResources* resources) : resources_(resources) {}
  absl::Status Begin(const SandboxOptions& options, std::shared_ptr<const LocalSnapshot> snapshot);
  absl::Status MakeGroup();
  absl::StatusOr<LauncherProcess::Created> Create(CreateRequest request);
  absl::Status MoveTo(const Descriptor& root);
  absl::StatusOr<std::shared_ptr<UpperDisk>> MakeDisk();
  absl::Status MakeUpper(const std::string& path);
  UpperKind Kind() const;
  CreateRequest RootRequest(const UpperDisk* disk) const;
  InitConfig Config() const;
  absl::Status WaitUntilReady();
  ExecResult Run(StartRequest start, RunOptions options);
  ExecResult RunInCommandGroup(StartRequest& start, RunOptions& options);
  absl::StatusOr<CommandGroup> TakeCommandGroup();
  void GiveCommandGroup(CommandGroup command);
  absl::StatusOr<ExecResult> RunFileCommand(StartRequest start, RunOptions options);
  absl::StatusOr<std::vector<FileInfo>> ReadEntries(StartRequest start);
  absl::Status CheckIdle() const;
  absl::StatusOr<FolderStack> Folders() const;

  HostResources* resources_;
  std::string id_;
  std::atomic<std::chrono::steady_clock::time_point> begun_ = std::chrono::steady_clock::now();
  SandboxOptions options_;
  uint32_t id_base_ = 0;  // 0: has no slot
  Group group_;
  LauncherProcess* launcher_ = nullptr;
  uint64_t volume_ = 0;
  Descriptor process_, upper_;
  std::shared_ptr<const LocalSnapshot> below_;
  std::shared_ptr<UpperDisk> disk_;
  int num_disks_ = 0;

  std::mutex control_mutex_;  // of sending
  // Commands read group_ and upper_ under it; Destroy takes them away alone.
  mutable std::shared_mutex files_mutex_;
  Descriptor control_;
  FrameReceiver receiver_;
  std::atomic<uint64_t> next_command_{1}, next_group_{1};
  std::atomic<int> running_{0};
  std::mutex command_groups_mutex_;
  std::vector<CommandGroup> command_groups_;  // empty ones, for the next commands
  std::atomic<bool> destroyed_{false};
  bool admitted_ = false;
};

}  // namespace orrery::sandbox
