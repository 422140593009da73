// What host, launcher and init say to each other. One struct a message; Encode and Decode are made
// from one list of fields each (Fields), so that both sides agree.
//
//   host -> launcher   LauncherConfig first of all; then
//                      CreateRequest  (descriptors: init's end of the control socket, the folder of
//                                      the sandbox's v2 cgroup, its v1 cgroup.procs files)
//                      VolumeRequest  make, release or freeze an upper layer
//   launcher -> host   CreateReply    (descriptors: pidfd of init, the upper layer's folder)
//                      Failure
//   host -> init       InitConfig     first of all, sent before init exists
//                      StartRequest   (descriptors: the command's channel, its v2 cgroup folder)
//                      SignalRequest, RemountRequest (descriptor: the new root)
//   init -> host       on the control socket: Ready or Failure, once; Remounted
//                      on a command's channel: StartReply (descriptors: pipes), then ExitReport; or
//                      Failure
//
// Shared with the static helper: no Abseil.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sandbox/protocol/wire.h"

namespace orrery::sandbox {

enum class MessageType : uint16_t {
  kCreate = 1,
  kCreated,
  kFailure,
  kVolume,
  kDone,
  kConfig,
  kReady,
  kStart,
  kStarted,
  kExited,
  kSignal,
  kRemount,
};

// Ids that a sandbox sees as 0..65535.
inline constexpr uint32_t kIdCount = 65536;
// Owners of files in every upper layer on disk: this range, whichever sandbox wrote them.
inline constexpr uint32_t kUpperIdBase = 0x0fff0000;
inline constexpr uint32_t kFirstSandboxId = 0x10000000;

enum class UpperKind : uint8_t { kTmpfs, kFolder, kLoop };

// Of a launcher's reply and init's: which step failed, and errno.
struct Failure {
  int32_t error = 0;
  std::string what;
  template <typename Visitor>
  void Fields(Visitor visit) {
    visit(error), visit(what);
  }
};

struct CreateRequest {
  static constexpr MessageType kType = MessageType::kCreate;
  // Everything but a root of its own, which comes later as after a snapshot (kRemount). The reply
  // has no volume. REQUIRES: no emulator.
  bool blank = false;
  std::string hostname;
  uint32_t id_base = 0;             // host id of the sandbox's root
  std::vector<std::string> layers;  // lowest first
  std::vector<uint64_t> frozen;     // volumes of snapshots, on top of the layers, lowest first
  UpperKind upper = UpperKind::kTmpfs;
  uint64_t upper_bytes = 0, upper_inodes = 0;  // limits of kTmpfs
  std::string upper_path;                      // folder of kFolder, image file of kLoop
  uint64_t shm_bytes = 0;
  uint32_t max_terminals = 0;
  uint32_t max_user_objects = 0;  // user.max_inotify_instances and its like
  std::vector<uint32_t> cpus;     // affinity; empty: all
  // For programs of another architecture: the program, and what binfmt_misc is told of them.
  std::string emulator, binfmt_rule;
  template <typename Visitor>
  void Fields(Visitor visit) {
    visit(blank), visit(hostname), visit(id_base), visit(layers), visit(frozen), visit(upper);
    visit(upper_bytes), visit(upper_inodes), visit(upper_path);
    visit(shm_bytes), visit(max_terminals), visit(max_user_objects), visit(cpus);
    visit(emulator), visit(binfmt_rule);
  }
};

struct CreateReply {
  static constexpr MessageType kType = MessageType::kCreated;
  uint64_t volume = 0;  // names the upper layer in later requests
  template <typename Visitor>
  void Fields(Visitor visit) {
    visit(volume);
  }
};

enum class VolumeAction : uint8_t {
  kRelease,  // unmounts an upper layer, or a frozen one
  // Takes a sandbox's upper layer as a frozen one and gives the sandbox a new root above it: the
  // reply carries the new root's mount and the new upper folder.
  kFreeze,
  kMake,     // an upper layer and a root, for a blank sandbox; the same reply
  kPrepare,  // does ahead what the first root of a range of ids needs
};

struct VolumeRequest {
  static constexpr MessageType kType = MessageType::kVolume;
  VolumeAction action = VolumeAction::kRelease;
  uint64_t volume = 0;
  // How the new root is made. Of kFreeze: `frozen` ends with `volume`.
  CreateRequest root;
  template <typename Visitor>
  void Fields(Visitor visit) {
    visit(action), visit(volume);
    root.Fields(visit);
  }
};

// The launcher's settings, its first frame.
struct LauncherConfig {
  static constexpr MessageType kType = MessageType::kConfig;
  std::string seccomp;  // struct sock_filter[]
  std::string stage;    // a folder for its mounts to hang on; empty: they hang nowhere (stage.h)
  template <typename Visitor>
  void Fields(Visitor visit) {
    visit(seccomp), visit(stage);
  }
};

struct InitConfig {
  static constexpr MessageType kType = MessageType::kConfig;
  std::string seccomp;  // what each command adds to the launcher's filter
  uint64_t open_files = 0, file_bytes = 0, locked_bytes = 0;
  uint64_t capabilities = 0;  // bits that root keeps
  template <typename Visitor>
  void Fields(Visitor visit) {
    visit(seccomp), visit(open_files), visit(file_bytes), visit(locked_bytes);
    visit(capabilities);
  }
};

// What a started process does: runs a program, or one of init's own file operations in its place.
enum class CommandKind : uint8_t { kProgram, kGet, kPut, kStat, kList, kLink, kRemove };
enum class OutputMode : uint8_t { kMerged, kSeparate, kTerminal };

struct StartRequest {
  static constexpr MessageType kType = MessageType::kStart;
  uint64_t id = 0;
  CommandKind kind = CommandKind::kProgram;
  std::vector<std::string> argv;
  std::vector<std::string> env;
  std::string folder;  // working directory
  std::string user;    // "", "name", "uid", "uid:gid", "name:group"
  bool input = false;  // a pipe as standard input, else /dev/null
  OutputMode output = OutputMode::kMerged;
  uint16_t rows = 24, columns = 80;  // of kTerminal
  std::string path;                  // of the file operations
  std::string target;                // of kLink
  uint32_t mode = 0644;              // of kPut
  bool any_type = false;             // of kList and kStat: report, of kGet: still regular files
  template <typename Visitor>
  void Fields(Visitor visit) {
    visit(id), visit(kind), visit(argv), visit(env), visit(folder), visit(user), visit(input);
    visit(output), visit(rows), visit(columns), visit(path), visit(target), visit(mode);
    visit(any_type);
  }
};

struct StartReply {
  static constexpr MessageType kType = MessageType::kStarted;
  int32_t pid = 0;                            // inside
  bool has_input = false, has_error = false;  // which pipes follow the one of the output
  template <typename Visitor>
  void Fields(Visitor visit) {
    visit(pid), visit(has_input), visit(has_error);
  }
};

struct ExitReport {
  static constexpr MessageType kType = MessageType::kExited;
  int32_t wait_status = 0;  // as wait4 gives it
  int64_t user_us = 0, system_us = 0, wall_us = 0;
  int64_t max_resident_kb = 0;
  template <typename Visitor>
  void Fields(Visitor visit) {
    visit(wait_status), visit(user_us), visit(system_us), visit(wall_us), visit(max_resident_kb);
  }
};

// What `stat` and `list` write to their output: each entry is one of these, encoded.
struct FileEntry {
  std::string name;   // as asked for; of a list the name in the folder
  uint32_t mode = 0;  // type and permissions, as in struct stat
  uint32_t uid = 0, gid = 0;
  uint64_t size = 0;
  int64_t modified_ns = 0;
  std::string target;  // of a symbolic link
  template <typename Visitor>
  void Fields(Visitor visit) {
    visit(name), visit(mode), visit(uid), visit(gid), visit(size), visit(modified_ns);
    visit(target);
  }
};

struct SignalRequest {
  static constexpr MessageType kType = MessageType::kSignal;
  uint64_t id = 0;
  int32_t signal = 0;
  bool group = false;              // the process group that the command leads
  uint16_t rows = 0, columns = 0;  // with signal 0: a new size of the terminal
  template <typename Visitor>
  void Fields(Visitor visit) {
    visit(id), visit(signal), visit(group), visit(rows), visit(columns);
  }
};

template <typename Message>
std::string Encode(Message message) {
  Writer writer;
  message.Fields([&](const auto& field) { writer.Put(field); });
  return writer.bytes();
}

// Nothing where the bytes are not exactly one such message.
template <typename Message>
std::optional<Message> Decode(std::string_view bytes) {
  Reader reader(bytes);
  Message message;
  message.Fields([&](auto& field) { reader.Get(field); });
  return reader.done() ? std::optional(std::move(message)) : std::nullopt;
}

}  // namespace orrery::sandbox
