// Snapshot, fork and diff of LocalSandbox.
#include "orchestrator/base/status.h"
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
  CreateRequest root = RootRequest();
  root.frozen.push_back(volume_);
  ASSIGN_OR_RETURN(LauncherProcess::Created created, launcher_->Freeze(volume_, root));
  auto snapshot = std::make_shared<LocalSnapshot>(launcher_, volume_, std::move(upper_), below_);
  below_ = snapshot;
  volume_ = created.volume;
  upper_ = std::move(created.upper);
  SendFrame(control_.get(), static_cast<uint16_t>(MessageType::kRemount), {},
            {created.process.get()});
  Frame frame;
  if (ReceiveFrame(control_.get(), receiver_, frame) != 0) {
    return Unavailable("sandbox {} has ended during a snapshot", id_);
  }
  if (frame.type == static_cast<uint16_t>(MessageType::kDone)) {
    return std::shared_ptr<const Snapshot>(snapshot);
  }
  const auto failure = Decode<Failure>(frame.body);
  return failure ? ToStatus(*failure) : Failed("init talks nonsense");
}

}  // namespace orrery::sandbox
