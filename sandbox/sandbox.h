// Isolated places in which programs that a model wrote are run. A host makes sandboxes from
// prepared images; a sandbox runs commands, moves files in and out, can be frozen and forked, and
// is gone with its host.
//
// Threads: every method of a host and of a sandbox may be called from any thread, at the same time.
// A Sandbox may not outlive its SandboxHost.
//
// Errors: a Status is about what could not be asked (a broken request, a host that cannot enforce a
// limit, no room). What became of a command is its ExecResult, whose infrastructure failures are no
// score: retry them on a fresh sandbox.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sandbox/image/image.h"

namespace orrery::sandbox {

// Where the changes of a sandbox lie, and by that how disk and inodes are limited.
enum class DiskBackend : uint8_t {
  kTmpfs,         // in memory, counted inside the memory limit
  kLoop,          // a pool of preformatted ext4 images
  kProjectQuota,  // a folder of a project of its own, where the state folder's file system has them
  kAuto,          // the first that this machine has of kProjectQuota, kLoop and kTmpfs
  kUnlimited,     // a folder: the disk limit is not enforced (only with allow_unenforced)
};

struct Limits {
  int64_t memory_bytes = int64_t{2} << 30;  // swap included, and the files of DiskBackend::kTmpfs
  int64_t processes = 512;
  double cpus = 2;
  int64_t disk_bytes = int64_t{1} << 30;
  int64_t inodes = 200'000;
  int64_t shm_bytes = 64 << 20;  // /dev/shm; counted inside memory as well
  int64_t open_files = 4096;     // a process
  int64_t file_bytes = int64_t{16} << 30;
  int64_t terminals = 16;
  int64_t user_objects = 128;  // inotify instances; watches 256 times as many
  // What admission counts a sandbox as. Its limits above may add up to more than the host has: all
  // sandboxes together are bounded besides.
  int64_t memory_request_bytes = 32 << 20;
  double cpu_request = 1.0 / 128;
  int64_t disk_request_bytes = 32 << 20;  // not of DiskBackend::kTmpfs

  bool operator==(const Limits&) const = default;
};

struct SandboxOptions {
  PreparedImage image;
  Limits limits;
  std::string hostname = "sandbox";
  bool warm = true;  // may come from the host's pool
};

// How a command ended. Where several hold, the first of this order is reported: what never began
// (kRefused), what cannot be known (kInfrastructure), what the host did to it (kDeadline or
// kOutputCap, whichever came first), what the process did (kSignalled, kExited). A process whose
// end was reported before the host struck counts as ended by itself.
enum class Ending : uint8_t {
  kRefused,         // never began; `why` says by what: busy, no such program, process limit
  kInfrastructure,  // the sandbox or its host failed
  kDeadline,        // out of time; its whole tree was killed
  kOutputCap,       // wrote more than the hard cap; its whole tree was killed
  kSignalled,
  kExited,
};

struct ExecRequest {
  std::vector<std::string> argv;
  std::vector<std::string> env;  // added to the image's, replacing names it has
  std::string folder;            // empty: the image's WorkingDir, or "/"
  std::string user;              // empty: the image's User, or root
  std::string input;             // standard input; /dev/null where empty and no `next_input`
  // More of standard input, called on the thread of Exec until it gives an empty string.
  std::function<std::string()> next_input;
  int input_fd = -1;  // borrowed; standard input is what comes from it, in place of both
  int stop_fd = -1;   // borrowed; once it is readable the command is killed: kDeadline, "stopped"
  bool separate = false;  // standard error apart from standard output
  bool terminal = false;
  int64_t timeout_ms = 60'000;             // 0: none
  int64_t keep_bytes = 1 << 20;            // head and tail together, of each stream
  int64_t output_cap_bytes = 256ll << 20;  // written in all before the command is killed
  // Gets the output as it comes, in place of keeping it. On the thread of Exec.
  std::function<void(std::string_view bytes, bool error_stream)> on_output;
};

// Of what a stream carried: its beginning, and its end where the middle did not fit.
struct Output {
  std::string head, tail;
  int64_t total_bytes = 0;

  int64_t dropped_bytes() const {
    return total_bytes - static_cast<int64_t>(head.size() + tail.size());
  }
  // All of it, with a line that says what was left out.
  std::string Text() const;
};

struct ExecResult {
  Ending ending = Ending::kInfrastructure;
  int code = 0;  // exit code, or the signal
  std::string why;
  bool retryable = false;  // of kInfrastructure: a fresh sandbox may do it
  // Beside any ending.
  bool out_of_memory = false;  // the kernel killed for the sandbox's memory limit meanwhile
  bool disk_full = false;      // the upper layer had no bytes or inodes left at the end
  bool process_limit = false;  // a fork failed for the sandbox's process limit meanwhile
  Output output, error_output;
  int64_t wall_us = 0, user_us = 0, system_us = 0, max_resident_kb = 0;

  bool ok() const { return ending == Ending::kExited && code == 0; }
};

// What happened in a sandbox since it began, and how its upper layer is now.
struct SandboxEvents {
  int64_t oom_kills = 0;           // by the kernel, for the memory limit
  int64_t process_limit_hits = 0;  // forks that failed for the process limit
  bool disk_full = false;          // the upper layer has no bytes or inodes left
};

// What happened between the two.
void AddEvents(const SandboxEvents& before, const SandboxEvents& after, ExecResult& result);

std::string_view EndingName(Ending ending);
// One line for a person: "exited 1", "deadline after 60000 ms", with the flags.
std::string Describe(const ExecResult& result);

struct FileInfo {
  std::string name;
  uint32_t mode = 0;  // type and permissions, as stat(2)
  uint32_t uid = 0, gid = 0;
  int64_t size = 0;
  int64_t modified_ns = 0;
  std::string target;  // of a symbolic link
};

// One path that an episode changed against its image (diff/diff.h says what counts).
struct Change {
  enum class Kind : uint8_t { kAdded, kModified, kDeleted };
  Kind kind = Kind::kAdded;
  std::string path;      // "/testbed/a.py"
  FileInfo info;         // of kAdded and kModified
  bool content = false;  // bytes, link target or type differ, not permissions and owners alone
  std::vector<std::pair<std::string, std::string>> xattrs;
};

// The files of a sandbox at one moment. Its folders stay until the last holder lets go.
class Snapshot {
 public:
  virtual ~Snapshot() = default;
};

class Sandbox {
 public:
  virtual ~Sandbox() = default;  // destroys

  virtual const std::string& id() const = 0;
  // Runs one command to its end. As many at once as there are threads that call.
  virtual ExecResult Exec(const ExecRequest& request) = 0;

  // An ExecResult says what happened while its command ran; this is for what lasts longer.
  virtual absl::StatusOr<SandboxEvents> Events() = 0;

  // Whole files, exact bytes. Regular files only; a path that is something else is an error.
  virtual absl::StatusOr<std::string> Get(const std::string& path, int64_t max_bytes) = 0;
  virtual absl::Status Put(const std::string& path, std::string_view content,
                           uint32_t mode = 0644) = 0;
  // The same in pieces, for files of any size.
  virtual absl::Status GetStream(const std::string& path,
                                 const std::function<void(std::string_view)>& sink) = 0;
  virtual absl::Status PutStream(const std::string& path,
                                 const std::function<std::string()>& source,
                                 uint32_t mode = 0644) = 0;
  // A symbolic link in place of whatever file has the name.
  virtual absl::Status Link(const std::string& path, const std::string& target) = 0;
  // A file or a folder with all that is in it; fine where there is none.
  virtual absl::Status Remove(const std::string& path) = 0;
  virtual absl::StatusOr<FileInfo> Stat(const std::string& path) = 0;
  // Files, folders and links; everything with `any_type`.
  virtual absl::StatusOr<std::vector<FileInfo>> List(const std::string& path,
                                                     bool any_type = false) = 0;

  // Needs a sandbox in which no command runs; otherwise a Precondition error that says "busy". The
  // sandbox goes on above the snapshot.
  virtual absl::StatusOr<std::shared_ptr<const Snapshot>> TakeSnapshot() = 0;
  // What differs from the image, sorted by path; snapshots in between are looked through. Exact
  // where no command runs meanwhile.
  virtual absl::StatusOr<std::vector<Change>> Diff() = 0;
  // Bytes of a changed file, read from outside: nothing runs in the sandbox for it.
  virtual absl::Status ReadChanged(const std::string& path,
                                   const std::function<void(std::string_view)>& sink) = 0;

  // Kills everything inside and gives all back; afterwards every other call is refused.
  virtual absl::Status Destroy() = 0;
};

struct HostLoad {
  int64_t sandboxes = 0, max_sandboxes = 0;
  int64_t memory_bytes = 0, max_memory_bytes = 0;  // granted
  double cpus = 0, max_cpus = 0;
  int64_t waiting = 0;
  int64_t blank = 0;  // ready but for an image; they count as nothing
  int64_t warm = 0;   // ready in the pool; they count as free, for they make room when it is needed
};

class SandboxHost {
 public:
  virtual ~SandboxHost() = default;  // destroys what is left
  // Waits in the queue where there is no room now; Exhausted where the queue is full or the request
  // could never fit.
  virtual absl::StatusOr<std::unique_ptr<Sandbox>> Create(const SandboxOptions& options) = 0;
  // A sandbox that begins with the snapshot's files.
  virtual absl::StatusOr<std::unique_ptr<Sandbox>> Fork(
      const std::shared_ptr<const Snapshot>& snapshot, const SandboxOptions& options) = 0;
  virtual HostLoad load() const = 0;
  // What its sandboxes are not held to, where that is allowed, and what else should be known: for a
  // person, one line each.
  virtual std::vector<std::string> warnings() const { return {}; }
};

}  // namespace orrery::sandbox
