#include "orchestrator/commands/sandbox_run.h"

#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "orchestrator/base/status.h"
#include "orchestrator/commands/sandbox_host.h"
#include "orchestrator/commands/sandbox_images.h"
#include "sandbox/bench/bench.h"
#include "sandbox/check/check.h"
#include "sandbox/host/control.h"
#include "sandbox/host/local_host.h"
#include "sandbox/image/image.h"
#include "sandbox/remote/remote_host.h"

namespace orrery::commands {
namespace {

namespace sb = sandbox;

constexpr int kDeadlineCode = 124, kNotRunCode = 125, kSignalCode = 128;

// What the options write into; lives as long as the commands.
struct Arguments {
  std::string store = DefaultImageStore();
  sb::HostOptions host;
  std::string disk = "tmpfs";
  std::string image, id;
  std::vector<std::string> command, limits, env, hosts;
  SecurityFiles security;
  std::string folder, user;
  bool emulate = false, terminal = false;
  double timeout_s = 0;
  sb::BenchOptions bench;
};

absl::Status NeedRoot() {
  if (::geteuid() == 0) return absl::OkStatus();
  return Precondition("orrery sandbox needs root for now: run it as root (sudo)");
}

// "512M", "2G", "100".
absl::StatusOr<double> ParseAmount(const std::string& text) {
  size_t end = 0;
  double value = 0;
  try {
    value = std::stod(text, &end);
  } catch (const std::exception&) {
    return InvalidInput("\"{}\" is no amount; 512M, 2G and 100 are", text);
  }
  const std::string unit = text.substr(end);
  if (unit.empty()) return value;
  const size_t power = std::string("KMGT").find(unit[0]);
  if (power == std::string::npos || unit.size() > 1) {
    return InvalidInput("\"{}\": unknown unit; K, M, G and T are known", text);
  }
  for (size_t i = 0; i <= power; ++i) value *= 1024;
  return value;
}

absl::Status ApplyLimit(const std::string& text, sb::Limits& limits) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  if (equals == std::string::npos) return InvalidInput("--limit {}: write NAME=AMOUNT", text);
  ASSIGN_OR_RETURN(const double value, ParseAmount(text.substr(equals + 1)));
  if (!(value > 0)) return InvalidInput("--limit {}: must be more than 0", text);
  if (name == "cpus") {
    limits.cpus = value;
    return absl::OkStatus();
  }
  const std::pair<const char*, int64_t*> known[] = {
      {"memory", &limits.memory_bytes}, {"processes", &limits.processes},
      {"disk", &limits.disk_bytes},     {"inodes", &limits.inodes},
      {"shm", &limits.shm_bytes},       {"files", &limits.open_files},
      {"file-size", &limits.file_bytes}};
  for (const auto& [key, field] : known) {
    if (name != key) continue;
    *field = static_cast<int64_t>(value);
    return absl::OkStatus();
  }
  return InvalidInput(
      "--limit {}: there are memory, cpus, processes, disk, inodes, shm, files and file-size",
      text);
}

// An image of the store, held for as long as it is used; or a folder that is a root file system.
struct Image {
  std::unique_ptr<sb::ImageStore> store;
  std::optional<sb::ImageStore::Lease> lease;
  sb::PreparedImage prepared;
};

absl::StatusOr<Image> OpenImage(const Arguments& arguments, const std::string& name) {
  Image image;
  if (name.starts_with("/") && std::filesystem::is_directory(name)) {
    image.prepared.id = "folder:" + name;
    image.prepared.layers = {name};
    return image;
  }
  ASSIGN_OR_RETURN(image.store, sb::ImageStore::Open(arguments.store));
  ASSIGN_OR_RETURN(sb::ImageStore::Lease lease, image.store->Acquire(name, arguments.emulate));
  image.prepared = lease.image();
  image.lease = std::move(lease);
  return image;
}

int ExitCodeOf(const sb::ExecResult& result) {
  switch (result.ending) {
    case sb::Ending::kExited:
      return result.code;
    case sb::Ending::kSignalled:
      return kSignalCode + result.code;
    case sb::Ending::kDeadline:
      return kDeadlineCode;
    default:
      return kNotRunCode;
  }
}

// Keys go to the command as they are typed, while this lives.
class RawTerminal {
 public:
  explicit RawTerminal(bool wanted) : active_(wanted && ::tcgetattr(0, &before_) == 0) {
    if (!active_) return;
    termios raw = before_;
    ::cfmakeraw(&raw);
    ::tcsetattr(0, TCSANOW, &raw);
  }
  ~RawTerminal() {
    if (active_) ::tcsetattr(0, TCSANOW, &before_);
  }

 private:
  termios before_{};
  bool active_;
};

void WriteOut(std::string_view bytes, bool error_stream) {
  std::FILE* stream = error_stream ? stderr : stdout;
  std::fwrite(bytes.data(), 1, bytes.size(), stream);
  std::fflush(stream);
}

sb::ExecRequest MakeRequest(const Arguments& arguments) {
  sb::ExecRequest request;
  request.argv = arguments.command;
  request.env = arguments.env;
  request.folder = arguments.folder;
  request.user = arguments.user;
  request.terminal = arguments.terminal;
  request.separate = !arguments.terminal;
  request.timeout_ms = static_cast<int64_t>(arguments.timeout_s * 1000);
  request.keep_bytes = 0;
  request.output_cap_bytes = 0;
  request.input_fd = STDIN_FILENO;
  request.on_output = WriteOut;
  return request;
}

// Says what an exit code cannot, and gives the code.
int Conclude(const sb::ExecResult& result) {
  const bool plain =
      result.ending == sb::Ending::kExited || result.ending == sb::Ending::kSignalled;
  if (!plain || result.out_of_memory || result.disk_full || result.process_limit) {
    std::fprintf(stderr, "orrery: %s\n", sb::Describe(result).c_str());
  }
  return ExitCodeOf(result);
}

absl::StatusOr<std::unique_ptr<sb::SandboxHost>> MakeHost(const Arguments& arguments) {
  if (!arguments.hosts.empty()) {
    sb::RemoteOptions remote;
    remote.hosts = arguments.hosts;
    ASSIGN_OR_RETURN(remote.security, arguments.security.Read());
    return sb::MakeRemoteHost(remote);
  }
  RETURN_IF_ERROR(NeedRoot());
  sb::HostOptions options = arguments.host;
  RETURN_IF_ERROR(ApplyDisk(arguments.disk, &options));
  options.launchers = 1;
  ASSIGN_OR_RETURN(std::unique_ptr<sb::SandboxHost> host, sb::MakeLocalHost(options));
  PrintWarnings(*host);
  return host;
}

absl::StatusOr<int> RunCommand(const Arguments& arguments) {
  sb::SandboxOptions options;
  for (const std::string& limit : arguments.limits) {
    RETURN_IF_ERROR(ApplyLimit(limit, options.limits));
  }
  Image image;
  options.image.id = arguments.image;
  if (arguments.hosts.empty()) {
    RETURN_IF_ERROR(NeedRoot());
    ASSIGN_OR_RETURN(image, OpenImage(arguments, arguments.image));
    options.image = image.prepared;
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<sb::SandboxHost> host, MakeHost(arguments));
  ASSIGN_OR_RETURN(const std::unique_ptr<sb::Sandbox> sandbox, host->Create(options));
  const RawTerminal raw(arguments.terminal);
  return Conclude(sandbox->Exec(MakeRequest(arguments)));
}

absl::StatusOr<int> ExecCommand(const Arguments& arguments) {
  RETURN_IF_ERROR(NeedRoot());
  const RawTerminal raw(arguments.terminal);
  ASSIGN_OR_RETURN(const sb::ExecResult result,
                   sb::ExecInSandbox(arguments.host, arguments.id, MakeRequest(arguments)));
  return Conclude(result);
}

absl::Status Ps(const Arguments& arguments) {
  RETURN_IF_ERROR(NeedRoot());
  ASSIGN_OR_RETURN(const std::vector<sb::SandboxRow> rows, sb::ListSandboxes(arguments.host));
  std::printf("%-24s %-10s %-10s %-9s %s\n", "SANDBOX", "OWNER", "AGE", "COMMANDS", "IMAGE");
  for (const sb::SandboxRow& row : rows) {
    std::printf("%-24s %-10lld %-10s %-9lld %s\n", row.id.c_str(),
                static_cast<long long>(row.owner_pid),
                fmt::format("{:.1f} s", static_cast<double>(row.age_ms) / 1000).c_str(),
                static_cast<long long>(row.commands), row.image.c_str());
  }
  return absl::OkStatus();
}

absl::Status Check(const Arguments& arguments) {
  RETURN_IF_ERROR(NeedRoot());
  ASSIGN_OR_RETURN(const std::unique_ptr<sb::SandboxHost> host, sb::MakeLocalHost(arguments.host));
  PrintWarnings(*host);
  ASSIGN_OR_RETURN(const std::vector<sb::CheckRow> rows, sb::RunChecks(host.get()));
  int open = 0;
  for (const sb::CheckRow& row : rows) {
    std::printf("%-30s %-5s %s\n", row.name.c_str(), row.held ? "held" : "OPEN",
                row.detail.c_str());
    open += row.held ? 0 : 1;
  }
  std::printf("%zu tried, %d open\n", rows.size(), open);
  if (open > 0) return Failed("{} of {} ways out are open on this host", open, rows.size());
  return absl::OkStatus();
}

absl::Status Bench(const Arguments& arguments) {
  RETURN_IF_ERROR(NeedRoot());
  ASSIGN_OR_RETURN(const Image image, OpenImage(arguments, arguments.image));
  sb::BenchOptions options = arguments.bench;
  options.host = arguments.host;
  RETURN_IF_ERROR(ApplyDisk(arguments.disk, &options.host));
  options.image = image.prepared;
  return sb::RunBench(options);
}

void AddCommandOptions(CLI::App* sub, Arguments& arguments) {
  sub->add_option("CMD", arguments.command, "the program and its arguments, after --")->required();
  sub->add_option("--env", arguments.env, "NAME=VALUE for the command")
      ->type_size(1)
      ->allow_extra_args(false);
  sub->add_option("--workdir", arguments.folder, "its folder; the image's where not given");
  sub->add_option("--user", arguments.user, "NAME, UID or UID:GID; the image's where not given");
  sub->add_option("--timeout", arguments.timeout_s, "seconds; 0: none");
  sub->add_flag("--tty,-t", arguments.terminal, "give the command a terminal");
}

using Code = absl::StatusOr<int> (*)(const Arguments&);

// Everything of the sandbox is gone before the process ends with the command's code.
std::function<absl::StatusOr<Ending>()> EndWith(Code run, std::shared_ptr<Arguments> arguments) {
  return [run, arguments]() -> absl::StatusOr<Ending> {
    ASSIGN_OR_RETURN(const int code, run(*arguments));
    std::fflush(stdout);
    std::exit(code);
  };
}

std::function<absl::StatusOr<Ending>()> Then(absl::Status (*run)(const Arguments&),
                                             std::shared_ptr<Arguments> arguments) {
  return [run, arguments]() -> absl::StatusOr<Ending> {
    RETURN_IF_ERROR(run(*arguments));
    return Ending::kDone;
  };
}

}  // namespace

absl::Status ApplyDisk(const std::string& name, sb::HostOptions* options) {
  options->allow_unenforced = name == "unlimited";
  static constexpr std::pair<std::string_view, sb::DiskBackend> kNames[] = {
      {"tmpfs", sb::DiskBackend::kTmpfs},
      {"loop", sb::DiskBackend::kLoop},
      {"project_quota", sb::DiskBackend::kProjectQuota},
      {"auto", sb::DiskBackend::kAuto},
      {"unlimited", sb::DiskBackend::kUnlimited}};
  for (const auto& [known, disk] : kNames) {
    if (name != known) continue;
    options->disk = disk;
    return absl::OkStatus();
  }
  return InvalidInput("--disk {}: tmpfs, loop, project_quota, auto or unlimited", name);
}

void PrintWarnings(const sb::SandboxHost& host) {
  for (const std::string& line : host.warnings()) {
    std::fprintf(stderr, "orrery: warning: %s\n", line.c_str());
  }
}

const char* DiskHelp() {
  return "where changes lie: tmpfs (counted as memory), loop (an ext4 file each), project_quota (a "
         "folder "
         "each, limited by the file system), auto (the first that there is of project_quota, loop "
         "and "
         "tmpfs) or unlimited";
}

void AddSandboxRunCommands(CLI::App* sandbox, std::function<absl::StatusOr<Ending>()>* chosen) {
  auto arguments = std::make_shared<Arguments>();
  const auto add = [&](const char* name, const char* text,
                       std::function<absl::StatusOr<Ending>()> command) {
    CLI::App* sub = sandbox->add_subcommand(name, text);
    sub->callback([chosen, command = std::move(command)] { *chosen = command; });
    sub->add_option("--state", arguments->host.state_folder, "where running sandboxes are kept");
    return sub;
  };
  CLI::App* run = add("run", "one command in a fresh sandbox", EndWith(RunCommand, arguments));
  run->add_option("IMAGE", arguments->image, "of the store, or the folder of a root file system")
      ->required();
  run->add_option("--limit", arguments->limits,
                  "NAME=AMOUNT: memory, cpus, processes, disk, inodes, shm, files, file-size")
      ->type_size(1)
      ->allow_extra_args(false);
  run->add_option("--disk", arguments->disk, DiskHelp());
  run->add_option("--host", arguments->hosts, "on the sandbox-host there: unix:PATH or HOST:PORT")
      ->type_size(1)
      ->allow_extra_args(false);
  arguments->security.AddOptions(run);
  run->add_option("--store", arguments->store, "the image store");
  run->add_flag("--emulate", arguments->emulate, "allow an image of another architecture");
  AddCommandOptions(run, *arguments);
  add("ps", "sandboxes that run on this machine", Then(Ps, arguments));
  CLI::App* exec =
      add("exec", "one more command in a running sandbox", EndWith(ExecCommand, arguments));
  exec->add_option("SANDBOX", arguments->id, "its name, as ps says it")->required();
  AddCommandOptions(exec, *arguments);
  CLI::App* kill =
      add("kill", "destroy a running sandbox", [arguments]() -> absl::StatusOr<Ending> {
        RETURN_IF_ERROR(NeedRoot());
        RETURN_IF_ERROR(sb::KillSandbox(arguments->host, arguments->id));
        return Ending::kDone;
      });
  kill->add_option("SANDBOX", arguments->id, "its name, as ps says it")->required();
  add("check", "try every escape on this machine", Then(Check, arguments));
  CLI::App* bench = add("bench", "measure sandboxes on this machine", Then(Bench, arguments));
  bench->add_option("--image", arguments->image, "of the store, or a folder")->required();
  bench->add_option("--store", arguments->store, "the image store");
  bench->add_option("--disk", arguments->disk, DiskHelp());
  bench->add_option("--sandboxes", arguments->bench.sandboxes, "how many at once")->delimiter(',');
  bench->add_option("--episodes", arguments->bench.episodes, "lives that are measured");
  bench->add_option("--resident-gib", arguments->bench.resident_gib,
                    "measure once more with so much memory in this process; 0: not");
  bench->add_flag("!--no-runc", arguments->bench.with_runc, "leave out the comparison with runc");
}

}  // namespace orrery::commands
