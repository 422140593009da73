// Snapshot, fork and diff of LocalSandbox.
#include <fcntl.h>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "sandbox/diff/diff.h"
#include "sandbox/host/local_sandbox.h"

namespace orrery::sandbox {

absl::Status LocalSandbox::CheckIdle() const {
  ASSIGN_OR_RETURN(const std::vector<int64_t> processes, group_.Processes());
  if (running_ == 0 && processes.size() == 1) return absl::OkStatus();
  return Precondition(
      "refused, busy: {} processes besides init run in sandbox {}; a snapshot needs none",
      processes.size() - 1, id_);
}

absl::StatusOr<std::shared_ptr<const Snapshot>> LocalSandbox::TakeSnapshot() {
  if (destroyed_) return Precondition("the sandbox is destroyed");
  const std::lock_guard lock(control_mutex_);
  RETURN_IF_ERROR(CheckIdle());
  ASSIGN_OR_RETURN(std::shared_ptr<UpperDisk> disk, MakeDisk());
  CreateRequest root = RootRequest(disk.get());
  root.frozen.push_back(volume_);
  ASSIGN_OR_RETURN(LauncherProcess::Created created, launcher_->Freeze(volume_, root));
  auto snapshot = std::make_shared<LocalSnapshot>(launcher_, volume_, std::move(upper_),
                                                  std::exchange(disk_, std::move(disk)), below_);
  below_ = snapshot;
  volume_ = created.volume;
  upper_ = std::move(created.upper);
  RETURN_IF_ERROR(MoveTo(created.process));
  return std::shared_ptr<const Snapshot>(snapshot);
}

// Init, and what it starts from now on, has the mount for its root.
absl::Status LocalSandbox::MoveTo(const Descriptor& root) {
  SendFrame(control_.get(), static_cast<uint16_t>(MessageType::kRemount), {}, {root.get()});
  Frame frame;
  if (ReceiveFrame(control_.get(), receiver_, frame) != 0) {
    return Unavailable("sandbox {} has ended while it took a new root", id_);
  }
  if (frame.type == static_cast<uint16_t>(MessageType::kDone)) return absl::OkStatus();
  const auto failure = Decode<Failure>(frame.body);
  return Annotate(failure ? ToStatus(*failure) : Failed("init talks nonsense"), "sandbox " + id_);
}

absl::StatusOr<FolderStack> LocalSandbox::Folders() const {
  FolderStack stack;
  const auto open = [&](int at, const std::string& path, uint32_t id_shift,
                        bool upper) -> absl::Status {
    Descriptor folder(::openat(at, path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder.valid()) return ErrnoStatus("cannot open the layer", path, errno);
    stack.push_back(MakeLayerFolder(std::move(folder), id_shift, upper));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(open(upper_.get(), ".", kUpperIdBase, true));
  for (const LocalSnapshot* s = below_.get(); s != nullptr; s = s->below()) {
    RETURN_IF_ERROR(open(s->upper(), ".", kUpperIdBase, true));
  }
  for (auto layer = options_.image.layers.rbegin(); layer != options_.image.layers.rend();
       ++layer) {
    RETURN_IF_ERROR(open(AT_FDCWD, *layer, 0, false));
  }
  RETURN_IF_ERROR(open(AT_FDCWD, resources_->skeleton, 0, false));
  return stack;
}

absl::StatusOr<std::vector<Change>> LocalSandbox::Diff() {
  if (destroyed_) return Precondition("the sandbox is destroyed");
  ASSIGN_OR_RETURN(const FolderStack stack, Folders());
  return FindChanges(stack);
}

absl::Status LocalSandbox::ReadChanged(const std::string& path,
                                       const std::function<void(std::string_view)>& sink) {
  if (destroyed_) return Precondition("the sandbox is destroyed");
  ASSIGN_OR_RETURN(const FolderStack stack, Folders());
  return ReadPath(stack, path, sink);
}

}  // namespace orrery::sandbox
