// The host's side of a launcher (launcher/launcher.h): starts the process and asks it for
// sandboxes.
//
// The process is begun with vfork and exec, so that it costs the same however large its host is,
// and has nothing of it: no memory, no environment, no descriptor but its socket. Thread-safe:
// requests wait for one another.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sandbox/protocol/descriptor.h"
#include "sandbox/protocol/frame.h"
#include "sandbox/protocol/messages.h"

namespace orrery::sandbox {

class LauncherProcess {
 public:
  // `program`: the sealed helper. `cgroup_procs`: which version 2 group it joins, so that a sweep
  // can kill it.
  static absl::StatusOr<std::unique_ptr<LauncherProcess>> Start(int program, int cgroup_procs,
                                                                const LauncherConfig& config);
  ~LauncherProcess();  // ends it, and with it everything that it launched

  struct Created {
    uint64_t volume = 0;
    Descriptor process;  // pidfd of init; of Freeze and MakeRoot the mount of the new root
    Descriptor upper;    // folder of the upper layer; none of a blank sandbox
  };
  absl::StatusOr<Created> Create(const CreateRequest& request, const std::vector<int>& descriptors);
  absl::StatusOr<Created> Freeze(uint64_t volume, const CreateRequest& root);
  absl::StatusOr<Created> MakeRoot(const CreateRequest& root);
  // Makes the first MakeRoot of a range of ids as quick as later ones.
  absl::Status PrepareIds(const CreateRequest& root);
  absl::Status Release(uint64_t volume);

 private:
  LauncherProcess(Descriptor socket, Descriptor process)
      : socket_(std::move(socket)), process_(std::move(process)) {}
  absl::StatusOr<Frame> Ask(MessageType type, const std::string& body,
                            const std::vector<int>& descriptors);
  absl::StatusOr<Frame> Receive();
  absl::StatusOr<Created> AskForRoot(VolumeAction action, uint64_t volume,
                                     const CreateRequest& root);
  absl::StatusOr<Created> TakeCreated(Frame frame, bool blank);

  std::mutex mutex_;
  Descriptor socket_;
  Descriptor process_;
  FrameReceiver receiver_;
};

// What the helper could not do, as a Status.
absl::Status ToStatus(const Failure& failure);

}  // namespace orrery::sandbox
