#include "sandbox/check/check.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <thread>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "sandbox/check/probing.h"
#include "sandbox/protocol/descriptor.h"

namespace orrery::sandbox {
namespace {

using Rows = std::vector<CheckRow>;
constexpr int64_t kPatienceMs = 30'000;

// A listener in the abstract name space of this host's network namespace.
class AbstractListener {
 public:
  AbstractListener() : name_(fmt::format("orrery-check-{}", ::getpid())) {
    socket_.Reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name_.copy(address.sun_path + 1, sizeof(address.sun_path) - 2);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name_.size());
    if (::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size) == 0) {
      ::listen(socket_.get(), 4);
    }
  }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  Descriptor socket_;
};

// The probe's lines: a name of 28 columns, "held" or "OPEN", a detail.
Rows ParseRows(const std::string& text) {
  constexpr size_t kNameWidth = 28;
  Rows rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.size() < kNameWidth + 5) continue;
    const std::string name = line.substr(0, kNameWidth);
    rows.push_back({name.substr(0, name.find_last_not_of(' ') + 1),
                    line.substr(kNameWidth + 1, 4) == "held", line.substr(kNameWidth + 6)});
  }
  return rows;
}

CheckRow Row(const std::string& name, bool held, const ExecResult& result) {
  return {name, held, Describe(result)};
}

// A fork that fails has copied its parent, and the kernel frees that late, on a busy machine so
// late that the bomb fills its sandbox's memory too: then the sandbox has ended, which holds it as
// well.
CheckRow CheckForkBomb(const Probing& probing) {
  const ExecResult result = probing.Run("forkbomb", 0, 1500);
  const bool ended = result.ending == Ending::kInfrastructure && result.out_of_memory;
  const bool stopped = result.ending == Ending::kDeadline && probing.Answers();
  return Row("fork bomb", result.process_limit && (stopped || ended), result);
}

CheckRow CheckMemory(const Probing& probing) {
  const ExecResult result = probing.Run("memory", 4096, kPatienceMs);
  const bool killed = result.ending == Ending::kSignalled && result.code == SIGKILL;
  return Row("memory bomb", killed && result.out_of_memory && probing.Answers(), result);
}

CheckRow CheckDisk(const Probing& probing) {
  const ExecResult result = probing.Run("disk", 4096, kPatienceMs);
  const bool held = result.ok() && result.disk_full && probing.sandbox().Stat("/fill").ok();
  return {"disk fill", held, result.output.Text()};
}

CheckRow CheckInodes(const Probing& probing) {
  const ExecResult result = probing.Run("inodes", 1'000'000, kPatienceMs);
  return {"inode fill", result.ok() && result.disk_full, result.output.Text()};
}

CheckRow CheckInotify(const Probing& probing) {
  ExecResult result;
  std::thread inside([&] { result = probing.Run("inotify", 0, kPatienceMs); });
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  const Descriptor ours(::inotify_init1(IN_CLOEXEC));
  inside.join();
  return {"inotify exhaustion", ours.valid() && result.ok(),
          "taken inside: " + result.output.Text()};
}

CheckRow CheckFlood(const Probing& probing) {
  ExecRequest request = Probing::Request("flood", 3 << 10, kPatienceMs);
  request.keep_bytes = 1 << 20;
  request.output_cap_bytes = 64 << 20;
  const ExecResult result = probing.sandbox().Exec(request);
  const size_t kept = result.output.head.size() + result.output.tail.size();
  return Row("output flood of 3 GB", result.ending == Ending::kOutputCap && kept <= 1 << 20,
             result);
}

CheckRow CheckIgnoring(const Probing& probing) {
  const ExecResult result = probing.Run("ignore", 0, 300);
  return Row("process that ignores signals",
             result.ending == Ending::kDeadline && result.output.head == "ignoring\n", result);
}

CheckRow CheckKillAll(const Probing& probing) {
  const ExecResult result = probing.Run("killall", 0, kPatienceMs);
  return Row("kill -9 -1", probing.Answers(), result);
}

CheckRow CheckDaemon(const Probing& probing) {
  const ExecResult result = probing.Run("daemon", 600, kPatienceMs);
  return Row("double fork, streams closed",
             result.ending == Ending::kExited && result.code == 7 && result.wall_us < 5'000'000,
             result);
}

CheckRow CheckServer(const Probing& probing) {
  const ExecResult result = probing.Run("server", 600, kPatienceMs);
  return Row("background process", result.ok() && result.wall_us < 5'000'000, result);
}

// A descriptor of init or the host as a way out (CVE-2024-21626).
CheckRow CheckDescriptorFolders(const Probing& probing) {
  for (int fd = 3; fd < 24; ++fd) {
    ExecRequest request = Probing::Request("server", 0, kPatienceMs);
    request.folder = fmt::format("/proc/self/fd/{}", fd);
    const ExecResult result = probing.sandbox().Exec(request);
    if (result.ending != Ending::kRefused) {
      return {"/proc/self/fd/N as folder", false, request.folder + ": " + Describe(result)};
    }
  }
  return {"/proc/self/fd/N as folder", true, "3 to 23 refused"};
}

// Reads a file that is swapped for a link to init's environment: what comes is the file's content,
// part of it, or an error.
CheckRow CheckRace(const Probing& probing) {
  std::thread racer([&] { probing.Run("race", 2, kPatienceMs); });
  int read = 0, refused = 0;
  std::string wrong;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1500);
  while (std::chrono::steady_clock::now() < end && wrong.empty()) {
    const auto content = probing.sandbox().Get("/tmp/race", 1 << 20);
    (content.ok() ? read : refused) += 1;
    if (content.ok() && !std::string_view("inside").starts_with(*content)) wrong = *content;
    if (!probing.sandbox().Put("/tmp/race", "inside").ok()) ++refused;
  }
  racer.join();
  return {"link race in get and put", wrong.empty(),
          wrong.empty() ? fmt::format("{} read, {} refused", read, refused) : "got " + wrong};
}

CheckRow CheckRefusedFiles(const Probing& probing) {
  for (const char* path : {"/dev/zero", "/dev/tty", "/dev", "/dev/stdin", "/proc/self/mem"}) {
    const auto content = probing.sandbox().Get(path, 1 << 20);
    // A file of /proc has size 0, and as much is read of it.
    if (content.ok() && !content->empty()) return {"get of no regular file", false, path};
  }
  return {"get of no regular file", true, "devices, folders and pipes refused"};
}

}  // namespace

SandboxOptions ProbeOptions(const std::string& work) {
  SandboxOptions options;
  options.image.layers = {work};
  options.limits.memory_bytes = 384 << 20;
  options.limits.processes = 64;
  options.limits.disk_bytes = 64 << 20;
  options.limits.inodes = 2000;
  return options;
}

absl::StatusOr<Rows> CheckEscapes(SandboxHost* host, const SandboxOptions& options) {
  ASSIGN_OR_RETURN(const Probing probing, Probing::Begin(host, options));
  const AbstractListener listener;
  ExecRequest request = Probing::Request("escape", 0, kPatienceMs);
  request.env = {"PROBE_SOCKET=" + listener.name()};
  const ExecResult result = probing.sandbox().Exec(request);
  Rows rows = ParseRows(result.output.Text());
  if (result.ending != Ending::kExited || rows.empty()) {
    return Failed("the probe did not come to its end: {}", Describe(result));
  }
  return rows;
}

absl::StatusOr<Rows> CheckLoads(SandboxHost* host, const SandboxOptions& options) {
  // For the copies of forks that fail, which the number of processes does not bound.
  SandboxOptions roomy = options;
  roomy.limits.memory_bytes = std::max(options.limits.memory_bytes, Limits().memory_bytes);
  Rows rows;
  for (const auto check : {CheckForkBomb, CheckMemory, CheckDisk, CheckInodes, CheckInotify,
                           CheckFlood, CheckIgnoring, CheckKillAll, CheckDaemon, CheckServer}) {
    ASSIGN_OR_RETURN(const Probing probing,
                     Probing::Begin(host, check == CheckForkBomb ? roomy : options));
    rows.push_back(check(probing));
    const absl::Status gone = probing.sandbox().Destroy();
    if (!gone.ok()) rows.push_back({rows.back().name + ", destroyed", false, StatusText(gone)});
  }
  return rows;
}

// Neighbours open /dev/null, as every command does, while one looks on: as many as begin from
// every launcher.
absl::StatusOr<Rows> CheckNeighbours(SandboxHost* host, const SandboxOptions& options) {
  constexpr int kNeighbours = 8;
  ASSIGN_OR_RETURN(const Probing watcher, Probing::Begin(host, options));
  std::vector<Probing> neighbours;
  for (int i = 0; i < kNeighbours; ++i) {
    ASSIGN_OR_RETURN(Probing neighbour, Probing::Begin(host, options));
    neighbours.push_back(std::move(neighbour));
  }
  std::atomic<bool> watching = false;
  ExecRequest request = Probing::Request("watch", 3, kPatienceMs);
  std::string seen;
  request.on_output = [&](std::string_view bytes, bool) {
    seen += bytes;
    watching = true;
  };
  ExecResult result;
  std::thread inside([&] {
    result = watcher.sandbox().Exec(request);
    watching = true;
  });
  while (!watching) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  bool ran = true;
  for (const Probing& neighbour : neighbours) ran = neighbour.Answers() && ran;
  inside.join();
  return Rows{{"neighbours' use of /dev", ran && result.ok() && seen == "watching\n0 events\n",
               "seen: " + seen.substr(std::min<size_t>(seen.size(), 9))}};
}

absl::StatusOr<Rows> CheckFiles(SandboxHost* host, const SandboxOptions& options) {
  Rows rows;
  for (const auto check : {CheckDescriptorFolders, CheckRace, CheckRefusedFiles}) {
    ASSIGN_OR_RETURN(const Probing probing, Probing::Begin(host, options));
    rows.push_back(check(probing));
  }
  return rows;
}

absl::StatusOr<Rows> RunChecks(SandboxHost* host) {
  char work[] = "/tmp/orrery-check-XXXXXX";
  if (::mkdtemp(work) == nullptr) return ErrnoStatus("cannot make", work, errno);
  ::chmod(work, 0755);
  const SandboxOptions options = ProbeOptions(work);
  Rows all;
  absl::Status status;
  for (const auto check : {CheckEscapes, CheckLoads, CheckNeighbours, CheckFiles}) {
    const absl::StatusOr<Rows> rows = check(host, options);
    if (!rows.ok()) {
      status = rows.status();
      break;
    }
    all.insert(all.end(), rows->begin(), rows->end());
  }
  std::filesystem::remove_all(work);
  if (!status.ok()) return status;
  return all;
}

}  // namespace orrery::sandbox
