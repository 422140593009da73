#include "sandbox/launcher/launcher.h"

#include <fcntl.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>

#include <map>

#include "sandbox/launcher/emulation.h"
#include "sandbox/launcher/enter.h"
#include "sandbox/launcher/id_maps.h"
#include "sandbox/launcher/inside_mounts.h"
#include "sandbox/launcher/install_filter.h"
#include "sandbox/launcher/layer_mounts.h"
#include "sandbox/launcher/mounts.h"
#include "sandbox/launcher/root.h"
#include "sandbox/launcher/slice.h"
#include "sandbox/launcher/system.h"
#include "sandbox/launcher/volume.h"
#include "sandbox/protocol/frame.h"
#include "sandbox/protocol/messages.h"

namespace orrery::sandbox {
namespace {

Error EnterMounts(const Descriptor& mount_namespace) {
  if (::setns(mount_namespace.get(), CLONE_NEWNS) == 0) return {};
  return LastError("setns of a mount namespace");
}

class Launcher {
 public:
  Launcher(int socket, int init) : socket_(socket), init_(init) {}
  Error Prepare();
  void FavorQuickMoves();
  Error MakeBareMounts();
  Error TakeConfig();
  int Serve();

 private:
  Error Answer(Frame& frame);
  Error Create(const CreateRequest& request, std::vector<Descriptor>& descriptors);
  Error Change(const VolumeRequest& request);
  Error Freeze(const VolumeRequest& request);
  Error MakeForBlank(const CreateRequest& request);
  Error PrepareIds(const CreateRequest& request);
  Error FindFrozen(const CreateRequest& request, std::vector<const Volume*>& frozen);
  Error MakeBlankRoot(const CreateRequest& request, Descriptor& root);
  Error MakeVolumeAndRoot(const CreateRequest& request, Volume& volume, Descriptor& root);
  void ReplyVolume(Volume volume, int descriptor);
  Error Clone(const EnterArguments& arguments, int cgroup, Descriptor& pidfd, pid_t& pid);
  int Reply(MessageType type, const std::string& body, const std::vector<int>& descriptors);

  int socket_;
  int init_;
  FrameReceiver receiver_;
  IdMaps id_maps_;
  Stage stage_;
  LayerMounts layer_mounts_{&id_maps_, &stage_};
  Descriptor quick_moves_;
  Descriptor own_mounts_, bare_mounts_;  // mount namespaces
  std::map<uint64_t, Volume> volumes_;
  uint64_t next_volume_ = 1;
};

// A mount namespace of its own, in which /proc shows its own pid namespace. Unmounts of the host
// still arrive, so that nothing of the host is kept busy.
Error Launcher::Prepare() {
  using namespace system;
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);  // whatever the host had
  AskForShortTurns();
  ::signal(SIGCHLD, SIG_IGN);  // reaps by itself
  // Setting the file system ids (root.cc) shall not touch capabilities.
  if (::prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) != 0) return LastError("securebits");
  if (::unshare(CLONE_NEWNS) != 0) return LastError("unshare of the mount namespace");
  if (Mount(nullptr, "/", nullptr, kMountSlave | kMountRecursive) != 0 ||
      Mount("proc", "/proc", "proc", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV) != 0) {
    return LastError("the launcher's own /proc");
  }
  FavorQuickMoves();
  ORRERY_TRY(MakeBareMounts());
  return TakeConfig();
}

// A second mount namespace, which is this process's only while it clones.
Error Launcher::MakeBareMounts() {
  constexpr const char* kPath = "/proc/self/ns/mnt";
  own_mounts_.Reset(::open(kPath, O_RDONLY | O_CLOEXEC));
  if (!own_mounts_.valid() || ::unshare(CLONE_NEWNS) != 0) {
    return LastError("unshare of a bare mount namespace");
  }
  bare_mounts_.Reset(::open(kPath, O_RDONLY | O_CLOEXEC));
  if (!bare_mounts_.valid()) return LastError(kPath);
  ORRERY_TRY(MakeBareTree());
  return EnterMounts(own_mounts_);
}

// Moving a process into a control group of version 1 waits for a grace period of the kernel, some
// 10 ms, unless a mounted hierarchy asks for quick moves (Linux 6.0). A hierarchy without
// controllers, as a mount of this process alone, does so for as long as this launcher lives.
// Without it all is slower.
void Launcher::FavorQuickMoves() {
  Descriptor fs(system::FsOpen("cgroup"));
  for (const char* flag : {"none", "favordynmods"}) {
    system::FsConfig(fs.get(), FSCONFIG_SET_FLAG, flag, nullptr, 0);
  }
  system::FsConfig(fs.get(), FSCONFIG_SET_STRING, "name", "orrery", 0);
  if (system::FsConfig(fs.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) return;
  quick_moves_.Reset(system::FsMount(fs.get(), 0));
}

Error Launcher::TakeConfig() {
  Frame frame;
  if (const int error = ReceiveFrame(socket_, receiver_, frame); error != 0) {
    return {error, "reading the launcher's settings"};
  }
  const auto config = Decode<LauncherConfig>(frame.body);
  if (!config) return {EPROTO, "reading the launcher's settings"};
  if (!config->stage.empty()) ORRERY_TRY(stage_.Open(config->stage));
  return InstallFilter(config->seccomp);
}

Error Launcher::FindFrozen(const CreateRequest& request, std::vector<const Volume*>& frozen) {
  for (const uint64_t id : request.frozen) {
    const auto found = volumes_.find(id);
    if (found == volumes_.end() || !found->second.frozen) return {ENOENT, "no such snapshot"};
    frozen.push_back(&found->second);
  }
  return {};
}

// Returns in the launcher alone; the child goes another way.
Error Launcher::Clone(const EnterArguments& arguments, int cgroup, Descriptor& pidfd, pid_t& pid) {
  int fd = -1;
  clone_args args{};
  args.flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC |
               CLONE_NEWUTS | CLONE_PIDFD | CLONE_INTO_CGROUP;
  args.pidfd = reinterpret_cast<uint64_t>(&fd);
  args.exit_signal = SIGCHLD;
  args.cgroup = static_cast<uint64_t>(cgroup);
  // The user namespace belongs to the sandbox's own root, for the kernel counts inotify instances
  // and their like once more for the owner of the namespace: root's would run out.
  ORRERY_TRY(EnterMounts(bare_mounts_));
  if (::seteuid(arguments.request->id_base) != 0) return LastError("seteuid");
  pid = static_cast<pid_t>(system::Clone3(args));
  if (pid == 0) EnterSandbox(arguments);
  const Error error = pid < 0 ? LastError("clone3 of a sandbox") : Error{};
  if (::seteuid(0) != 0) return LastError("seteuid");
  ORRERY_TRY(EnterMounts(own_mounts_));
  if (error) return error;
  pidfd.Reset(fd);
  return {};
}

Error JoinCgroups(pid_t pid, const std::vector<Descriptor>& descriptors, size_t first) {
  const std::string text = std::to_string(pid);
  for (size_t i = first; i < descriptors.size(); ++i) {
    if (::write(descriptors[i].get(), text.data(), text.size()) < 0) {
      return LastError("moving a sandbox into its cgroup");
    }
  }
  return {};
}

// What a blank sandbox has for a root: the lowest layer, read-only.
Error Launcher::MakeBlankRoot(const CreateRequest& request, Descriptor& root) {
  int layer = -1;
  ORRERY_TRY(layer_mounts_.Get(request.layers.front(), request.id_base, layer));
  return CloneMount(layer, "", root);
}

Error Launcher::MakeVolumeAndRoot(const CreateRequest& request, Volume& volume, Descriptor& root) {
  std::vector<const Volume*> frozen;
  ORRERY_TRY(FindFrozen(request, frozen));
  ORRERY_TRY(MakeVolume(request, request.layers.back(), stage_, volume));
  return MakeRoot(request, frozen, volume, id_maps_, layer_mounts_, stage_, root);
}

Error Launcher::Create(const CreateRequest& request, std::vector<Descriptor>& descriptors) {
  if (descriptors.size() < 2 || request.layers.empty()) return {EPROTO, "an incomplete request"};
  Volume volume;
  Descriptor root, devices, emulator;
  ORRERY_TRY(OpenEmulator(request, emulator));
  ORRERY_TRY(request.blank ? MakeBlankRoot(request, root)
                           : MakeVolumeAndRoot(request, volume, root));
  int ids = -1;
  ORRERY_TRY(id_maps_.Get(0, request.id_base, ids));
  ORRERY_TRY(MakeDevices(devices));
  ORRERY_TRY(Restrict(devices.get(), ids, MOUNT_ATTR_RDONLY));
  int go[2];
  if (::pipe2(go, O_CLOEXEC) != 0) return LastError("pipe");
  Descriptor go_read(go[0]), go_write(go[1]);

  Descriptor pidfd;
  pid_t pid = 0;
  ORRERY_TRY(Clone(
      {&request, go[0], descriptors[0].get(), root.get(), devices.get(), emulator.get(), init_},
      descriptors[1].get(), pidfd, pid));
  Error error = JoinCgroups(pid, descriptors, 2);
  if (!error) error = WriteIdMaps(pid, 0, request.id_base);
  if (!error && ::write(go_write.get(), "g", 1) != 1) error = LastError("starting the sandbox");
  if (error) {
    ::kill(pid, SIGKILL);
    return error;
  }
  if (request.blank) {
    Reply(MessageType::kCreated, Encode(CreateReply{}), {pidfd.get()});
  } else {
    ReplyVolume(std::move(volume), pidfd.get());
  }
  return {};
}

void Launcher::ReplyVolume(Volume volume, int descriptor) {
  const uint64_t id = next_volume_++;
  Volume& kept = volumes_[id] = std::move(volume);
  Reply(MessageType::kCreated, Encode(CreateReply{id}), {descriptor, kept.upper.get()});
}

Error Launcher::Freeze(const VolumeRequest& request) {
  const auto found = volumes_.find(request.volume);
  if (found == volumes_.end()) return {ENOENT, "no such volume"};
  found->second.frozen = true;
  return MakeForBlank(request.root);
}

Error Launcher::MakeForBlank(const CreateRequest& request) {
  if (request.layers.empty()) return {EPROTO, "an incomplete request"};
  Volume volume;
  Descriptor root;
  ORRERY_TRY(MakeVolumeAndRoot(request, volume, root));
  ReplyVolume(std::move(volume), root.get());
  return {};
}

Error Launcher::PrepareIds(const CreateRequest& request) {
  if (request.layers.empty()) return {EPROTO, "an incomplete request"};
  int unused = -1;
  ORRERY_TRY(id_maps_.Get(kUpperIdBase, request.id_base, unused));
  return layer_mounts_.Get(request.layers.front(), request.id_base, unused);
}

Error Launcher::Change(const VolumeRequest& request) {
  switch (request.action) {
    case VolumeAction::kFreeze:
      return Freeze(request);
    case VolumeAction::kMake:
      return MakeForBlank(request.root);
    case VolumeAction::kPrepare:
      ORRERY_TRY(PrepareIds(request.root));
      break;
    case VolumeAction::kRelease:
      volumes_.erase(request.volume);
      break;
  }
  Reply(MessageType::kDone, {}, {});
  return {};
}

Error Launcher::Answer(Frame& frame) {
  if (frame.type == static_cast<uint16_t>(MessageType::kCreate)) {
    const auto request = Decode<CreateRequest>(frame.body);
    return request ? Create(*request, frame.descriptors) : Error{EPROTO, "a broken request"};
  }
  if (frame.type == static_cast<uint16_t>(MessageType::kVolume)) {
    const auto request = Decode<VolumeRequest>(frame.body);
    return request ? Change(*request) : Error{EPROTO, "a broken request"};
  }
  return {EPROTO, "an unknown request"};
}

int Launcher::Reply(MessageType type, const std::string& body,
                    const std::vector<int>& descriptors) {
  return SendFrame(socket_, static_cast<uint16_t>(type), body, descriptors);
}

int Launcher::Serve() {
  Frame frame;
  Error prepared = Prepare();
  Reply(prepared ? MessageType::kFailure : MessageType::kReady,
        prepared ? Encode(Failure{prepared.number, prepared.what}) : std::string(), {});
  if (prepared) return 1;
  while (ReceiveFrame(socket_, receiver_, frame) == 0) {
    if (const Error error = Answer(frame); error) {
      Reply(MessageType::kFailure, Encode(Failure{error.number, error.what}), {});
    }
    frame = {};
  }
  return 0;
}

}  // namespace

int RunLauncher(int socket, int init) { return Launcher(socket, init).Serve(); }

}  // namespace orrery::sandbox
