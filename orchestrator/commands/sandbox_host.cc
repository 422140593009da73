#include "orchestrator/commands/sandbox_host.h"

#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>

#include "orchestrator/base/status.h"
#include "orchestrator/commands/sandbox_images.h"
#include "orchestrator/commands/sandbox_run.h"
#include "sandbox/host/local_host.h"
#include "sandbox/image/image.h"
#include "sandbox/remote/service.h"

namespace orrery::commands {
namespace {

namespace sb = sandbox;

struct Arguments {
  std::string listen = "unix:/run/orrery-sandbox-host";
  std::string store = DefaultImageStore();
  std::string disk = "tmpfs";
  sb::HostOptions host;
  SecurityFiles security;
  double drain_timeout_s = 3600;
  bool folders = false;
};

// An image of the store, held for as long as a sandbox runs it.
absl::StatusOr<sb::HeldImage> FindImage(const std::string& store_folder, bool folders,
                                        const std::string& name, bool emulate) {
  sb::HeldImage held;
  if (folders && name.starts_with("/") && std::filesystem::is_directory(name)) {
    held.image.id = name;
    held.image.layers = {name};
    return held;
  }
  ASSIGN_OR_RETURN(const auto store, sb::ImageStore::Open(store_folder));
  ASSIGN_OR_RETURN(sb::ImageStore::Lease lease, store->Acquire(name, emulate));
  held.image = lease.image();
  held.hold = std::make_shared<sb::ImageStore::Lease>(std::move(lease));
  return held;
}

// Waits for signals in one place; every thread that begins later has them blocked.
class Signals {
 public:
  Signals() {
    ::sigemptyset(&set_);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&set_, signal);
    ::pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  void Wait() const {
    int signal = 0;
    ::sigwait(&set_, &signal);
  }
  bool Pending() const {
    const timespec now{};
    return ::sigtimedwait(&set_, nullptr, &now) > 0;
  }

 private:
  sigset_t set_;
};

// False where sandboxes were left at the end of the time, or at a second signal.
bool Drain(sb::SandboxService* service, const Signals& signals, double timeout_s) {
  constexpr int64_t kLookMs = 200;
  for (double waited_s = 0; waited_s < timeout_s && !signals.Pending(); waited_s += kLookMs / 1e3) {
    if (service->Drain(kLookMs)) return true;
  }
  return service->Drain(0);
}

absl::Status Serve(const Arguments& arguments) {
  if (::geteuid() != 0) return Precondition("orrery sandbox-host needs root for now: sudo");
  const Signals signals;
  sb::HostOptions host_options = arguments.host;
  RETURN_IF_ERROR(ApplyDisk(arguments.disk, &host_options));
  ASSIGN_OR_RETURN(const sb::RemoteSecurity security, arguments.security.Read());
  ASSIGN_OR_RETURN(const std::unique_ptr<sb::SandboxHost> host, sb::MakeLocalHost(host_options));
  PrintWarnings(*host);
  ASSIGN_OR_RETURN(std::unique_ptr<sb::SandboxService> service,
                   sb::StartSandboxService(host.get(),
                                           [&](const std::string& name, bool emulate) {
                                             return FindImage(arguments.store, arguments.folders,
                                                              name, emulate);
                                           },
                                           {arguments.listen, security}));
  std::printf("serving sandboxes on %s\n", service->address().c_str());
  std::fflush(stdout);
  signals.Wait();
  std::printf("draining: no new sandboxes; a second signal ends at once\n");
  std::fflush(stdout);
  const bool empty = Drain(service.get(), signals, arguments.drain_timeout_s);
  service.reset();
  std::printf("%s\n", empty ? "drained" : "ended with sandboxes alive: they are destroyed");
  return absl::OkStatus();
}

}  // namespace

void SecurityFiles::AddOptions(CLI::App* command) {
  command->add_option("--token-file", token, "whose first line is the token of both sides");
  command->add_option("--tls-cert", certificate, "this side's certificate, PEM");
  command->add_option("--tls-key", key, "its key");
  command->add_option("--tls-ca", authority, "who signs the other side's certificate");
}

absl::StatusOr<sb::RemoteSecurity> SecurityFiles::Read() const {
  return sb::ReadSecurity(token, certificate, key, authority);
}

void AddSandboxHostCommand(CLI::App* app, std::function<absl::StatusOr<Ending>()>* chosen) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* sub =
      app->add_subcommand("sandbox-host", "serve this machine's sandboxes to others (gRPC)");
  sub->callback([chosen, arguments] {
    *chosen = [arguments]() -> absl::StatusOr<Ending> {
      RETURN_IF_ERROR(Serve(*arguments));
      return Ending::kDone;
    };
  });
  sub->add_option("--listen", arguments->listen, "unix:PATH, or HOST:PORT with TLS or loopback");
  arguments->security.AddOptions(sub);
  sub->add_option("--store", arguments->store, "the image store");
  sub->add_option("--state", arguments->host.state_folder, "where running sandboxes are kept");
  sub->add_option("--disk", arguments->disk, DiskHelp());
  sub->add_option("--warm", arguments->host.warm_sandboxes,
                  "how many wait ready for each image and limits asked for lately");
  sub->add_option("--max-sandboxes", arguments->host.max_sandboxes, "at once");
  sub->add_option("--drain-timeout", arguments->drain_timeout_s, "seconds");
  sub->add_flag("--folders", arguments->folders,
                "clients may name folders of this machine as images");
}

}  // namespace orrery::commands
