#include "sandbox/remote/remote_host.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "orchestrator/base/status.h"
#include "sandbox/image/image.h"
#include "sandbox/remote/connection.h"
#include "sandbox/remote/remote_sandbox.h"

namespace orrery::sandbox {
namespace {

using remote::Connection;
using remote::OpenSession;
using remote::RemoteSandbox;
using remote::RemoteSnapshot;

constexpr std::chrono::milliseconds kLookAgain(20);

double Free(double used, double most) { return most > 0 ? 1 - used / most : 0; }

// Of a host, how much is free of what it has least of; below 0 with a queue.
double Room(const Connection::State& state) {
  const HostLoad& load = state.load;
  const auto pending = static_cast<double>(state.creating + load.waiting);
  return std::min(
      {Free(static_cast<double>(load.sandboxes) + pending, static_cast<double>(load.max_sandboxes)),
       Free(static_cast<double>(load.memory_bytes), static_cast<double>(load.max_memory_bytes)),
       Free(load.cpus, load.max_cpus)});
}

class RemoteHosts : public SandboxHost {
 public:
  explicit RemoteHosts(const RemoteOptions& options) : options_(options) {
    for (const std::string& address : options.hosts) {
      connections_.push_back(std::make_unique<Connection>(address, options));
    }
  }
  absl::StatusOr<std::unique_ptr<Sandbox>> Create(const SandboxOptions& options) override;
  absl::StatusOr<std::unique_ptr<Sandbox>> Fork(const std::shared_ptr<const Snapshot>& snapshot,
                                                const SandboxOptions& options) override;
  HostLoad load() const override;

 private:
  using Tried = std::set<const Connection*>;
  absl::StatusOr<Connection*> Choose(const Tried& tried) const;
  Connection* Best(const Tried& tried) const;
  absl::Status NobodyAnswers() const;
  absl::StatusOr<std::unique_ptr<Sandbox>> CreateOn(Connection* connection,
                                                    std::shared_ptr<OpenSession> session,
                                                    const SandboxOptions& options,
                                                    uint64_t snapshot) const;

  const RemoteOptions options_;
  std::vector<std::unique_ptr<Connection>> connections_;
};

Connection* RemoteHosts::Best(const Tried& tried) const {
  Connection* best = nullptr;
  double most = 0;
  for (const auto& connection : connections_) {
    const Connection::State state = connection->state();
    if (state.session == nullptr || state.draining || tried.contains(connection.get())) continue;
    const double room = Room(state);
    if (best == nullptr || room > most) {
      best = connection.get();
      most = room;
    }
  }
  return best;
}

absl::Status RemoteHosts::NobodyAnswers() const {
  std::string text;
  for (const auto& connection : connections_) {
    const Connection::State state = connection->state();
    text += fmt::format("{} ({}) ", connection->address(),
                        state.draining        ? "drains"
                        : state.error.empty() ? "no answer"
                                              : state.error);
  }
  return Unavailable("no sandbox host takes a sandbox: {}", text);
}

// Waits for a first host that answers; null where all were tried.
absl::StatusOr<Connection*> RemoteHosts::Choose(const Tried& tried) const {
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(options_.connect_timeout_ms);
  while (true) {
    if (Connection* best = Best(tried); best != nullptr || !tried.empty()) return best;
    if (std::chrono::steady_clock::now() >= end) return NobodyAnswers();
    std::this_thread::sleep_for(kLookAgain);
  }
}

absl::StatusOr<std::unique_ptr<Sandbox>> RemoteHosts::CreateOn(Connection* connection,
                                                               std::shared_ptr<OpenSession> session,
                                                               const SandboxOptions& options,
                                                               uint64_t snapshot) const {
  wire::CreateRequest request;
  request.set_session(session->name);
  request.set_image(options.image.id);
  const std::string& architecture = options.image.config.architecture;
  request.set_emulate(!architecture.empty() && architecture != HostArchitecture());
  *request.mutable_limits() = remote::ToWire(options.limits);
  request.set_hostname(options.hostname);
  request.set_warm(options.warm);
  request.set_snapshot(snapshot);
  grpc::ClientContext context;
  connection->Prepare(&context, options_.create_timeout_ms);
  wire::CreateReply reply;
  connection->CountCreating(1);
  const grpc::Status status = connection->stub()->Create(&context, request, &reply);
  connection->CountCreating(-1);
  RETURN_IF_ERROR(connection->ToStatus(status));
  return std::unique_ptr<Sandbox>(
      std::make_unique<RemoteSandbox>(connection, std::move(session), reply.sandbox()));
}

absl::StatusOr<std::unique_ptr<Sandbox>> RemoteHosts::Create(const SandboxOptions& options) {
  Tried tried;
  absl::Status last;
  while (true) {
    ASSIGN_OR_RETURN(Connection * connection, Choose(tried));
    if (connection == nullptr) return last;
    tried.insert(connection);
    auto session = connection->state().session;
    if (session == nullptr) {
      last = NobodyAnswers();
      continue;
    }
    auto sandbox = CreateOn(connection, std::move(session), options, 0);
    last = sandbox.status();
    // Another host may have room, or the image.
    const bool elsewhere = absl::IsUnavailable(last) || absl::IsResourceExhausted(last) ||
                           absl::IsNotFound(last) || absl::IsCancelled(last);
    if (!elsewhere) return sandbox;
  }
}

absl::StatusOr<std::unique_ptr<Sandbox>> RemoteHosts::Fork(
    const std::shared_ptr<const Snapshot>& snapshot, const SandboxOptions& options) {
  const auto remote = std::dynamic_pointer_cast<const RemoteSnapshot>(snapshot);
  if (remote == nullptr) return InvalidInput("the snapshot is another host's");
  if (!remote->session()->alive) {
    return Unavailable("the snapshot was lost with the connection to {}",
                       remote->connection()->address());
  }
  return CreateOn(remote->connection(), remote->session(), options, remote->id());
}

HostLoad RemoteHosts::load() const {
  HostLoad all;
  for (const auto& connection : connections_) {
    const Connection::State state = connection->state();
    if (state.session == nullptr) continue;
    all.sandboxes += state.load.sandboxes;
    all.max_sandboxes += state.load.max_sandboxes;
    all.memory_bytes += state.load.memory_bytes;
    all.max_memory_bytes += state.load.max_memory_bytes;
    all.cpus += state.load.cpus;
    all.max_cpus += state.load.max_cpus;
    all.waiting += state.load.waiting;
    all.warm += state.load.warm;
  }
  return all;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SandboxHost>> MakeRemoteHost(const RemoteOptions& options) {
  if (options.hosts.empty()) return InvalidInput("no sandbox host is named");
  for (const std::string& address : options.hosts) {
    RETURN_IF_ERROR(CheckSecurity(options.security, address, /*server=*/false));
  }
  return std::unique_ptr<SandboxHost>(std::make_unique<RemoteHosts>(options));
}

}  // namespace orrery::sandbox
