#include "sandbox/remote/service.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "orchestrator/base/status.h"
#include "sandbox/remote/convert.h"
#include "sandbox/remote/exec_call.h"
#include "sandbox/remote/sessions.h"

namespace orrery::sandbox {
namespace {

using remote::FromWire;
using remote::Session;
using remote::ToGrpc;
using remote::ToWire;

constexpr std::chrono::milliseconds kReportEvery(200);
constexpr int64_t kMaxStreams = 8192, kMaxThreads = 16384;

#define RETURN_GRPC_IF_ERROR(expression)                                              \
  do {                                                                                \
    if (const absl::Status status_to_return = (expression); !status_to_return.ok()) { \
      return ToGrpc(status_to_return);                                                \
    }                                                                                 \
  } while (false)

#define ASSIGN_OR_RETURN_GRPC(lhs, expression) \
  ASSIGN_OR_RETURN_GRPC_INNER(ORRERY_CONCAT(status_or_, __LINE__), lhs, expression)
#define ASSIGN_OR_RETURN_GRPC_INNER(temporary, lhs, expression) \
  auto temporary = (expression);                                \
  if (!temporary.ok()) return ToGrpc(temporary.status());       \
  lhs = *std::move(temporary)

class Service final : public wire::Sandboxes::Service, public SandboxService {
 public:
  Service(SandboxHost* host, ImageSource images, ServiceOptions options)
      : host_(host), images_(std::move(images)), options_(std::move(options)) {}
  ~Service() override;
  absl::Status Start();
  const std::string& address() const override { return address_; }
  bool Drain(int64_t timeout_ms) override;

  grpc::Status Session(grpc::ServerContext* context, const wire::SessionRequest* request,
                       grpc::ServerWriter<wire::SessionEvent>* writer) override;
  grpc::Status Create(grpc::ServerContext* context, const wire::CreateRequest* request,
                      wire::CreateReply* reply) override;
  grpc::Status Destroy(grpc::ServerContext* context, const wire::SandboxRef* request,
                       wire::Nothing*) override;
  grpc::Status Exec(grpc::ServerContext* context,
                    grpc::ServerReaderWriter<wire::ExecOutput, wire::ExecInput>* stream) override;
  grpc::Status Get(grpc::ServerContext* context, const wire::FileRequest* request,
                   grpc::ServerWriter<wire::Piece>* writer) override;
  grpc::Status Put(grpc::ServerContext* context, grpc::ServerReader<wire::PutInput>* reader,
                   wire::Nothing*) override;
  grpc::Status Link(grpc::ServerContext* context, const wire::FileRequest* request,
                    wire::Nothing*) override;
  grpc::Status Remove(grpc::ServerContext* context, const wire::FileRequest* request,
                      wire::Nothing*) override;
  grpc::Status Events(grpc::ServerContext* context, const wire::SandboxRef* request,
                      wire::EventCounts* reply) override;
  grpc::Status Stat(grpc::ServerContext* context, const wire::FileRequest* request,
                    wire::File* reply) override;
  grpc::Status List(grpc::ServerContext* context, const wire::FileRequest* request,
                    grpc::ServerWriter<wire::File>* writer) override;
  grpc::Status TakeSnapshot(grpc::ServerContext* context, const wire::SandboxRef* request,
                            wire::SnapshotRef* reply) override;
  grpc::Status ReleaseSnapshot(grpc::ServerContext* context, const wire::SnapshotRef* request,
                               wire::Nothing*) override;
  grpc::Status Diff(grpc::ServerContext* context, const wire::SandboxRef* request,
                    grpc::ServerWriter<wire::ChangedPath>* writer) override;
  grpc::Status ReadChanged(grpc::ServerContext* context, const wire::FileRequest* request,
                           grpc::ServerWriter<wire::Piece>* writer) override;

 private:
  using Reading = absl::Status (Sandbox::*)(const std::string&,
                                            const std::function<void(std::string_view)>&);
  std::shared_ptr<grpc::ServerCredentials> Credentials() const;
  absl::Status CheckToken(const grpc::ServerContext* context) const;
  absl::StatusOr<std::shared_ptr<Sandbox>> Find(const grpc::ServerContext* context,
                                                const wire::SandboxRef& ref) const;
  grpc::Status Make(const wire::CreateRequest& request, remote::Session* session,
                    wire::CreateReply* reply);
  grpc::Status SendBytes(grpc::ServerContext* context, const wire::FileRequest& request,
                         grpc::ServerWriter<wire::Piece>* writer, Reading read);
  bool WaitForReport();

  SandboxHost* host_;
  const ImageSource images_;
  const ServiceOptions options_;
  std::string address_;
  remote::Sessions sessions_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> draining_{false}, stopping_{false};
  std::unique_ptr<grpc::Server> server_;
};

std::shared_ptr<grpc::ServerCredentials> Service::Credentials() const {
  const RemoteSecurity& security = options_.security;
  if (!security.tls() || options_.address.starts_with("unix:")) {
    return grpc::InsecureServerCredentials();
  }
  grpc::SslServerCredentialsOptions tls(
      security.authority.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                 : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  tls.pem_root_certs = security.authority;
  tls.pem_key_cert_pairs.push_back({security.key, security.certificate});
  return grpc::SslServerCredentials(tls);
}

absl::Status Service::Start() {
  RETURN_IF_ERROR(CheckSecurity(options_.security, options_.address, /*server=*/true));
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options_.address, Credentials(), &port);
  builder.RegisterService(this);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, options_.keepalive_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, options_.keepalive_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             options_.keepalive_ms / 2);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  // Two hosts on one address would take turns unseen.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(remote::kMaxMessageBytes);
  builder.SetResourceQuota(grpc::ResourceQuota("sandboxes").SetMaxThreads(kMaxThreads));
  const bool is_unix = options_.address.starts_with("unix:");
  const mode_t before = is_unix ? ::umask(0177) : 0;
  server_ = builder.BuildAndStart();
  if (is_unix) ::umask(before);
  if (server_ == nullptr || (!is_unix && port == 0)) {
    return Unavailable("cannot listen on {}: is the address taken, or the certificate broken?",
                       options_.address);
  }
  address_ = options_.address;
  if (!is_unix) {
    address_ = address_.substr(0, address_.rfind(':')) + ":" + std::to_string(port);
  }
  return absl::OkStatus();
}

Service::~Service() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = draining_ = true;
    changed_.notify_all();
  }
  if (server_ == nullptr) return;
  // Sessions end by themselves now, and with them their sandboxes and the calls that use them.
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(20));
  server_->Wait();
}

bool Service::Drain(int64_t timeout_ms) {
  draining_ = true;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (sessions_.num_sandboxes() > 0) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

absl::Status Service::CheckToken(const grpc::ServerContext* context) const {
  const std::string& token = options_.security.token;
  if (token.empty()) return absl::OkStatus();
  const auto& metadata = context->client_metadata();
  const auto found = metadata.find(remote::kTokenKey);
  if (found != metadata.end() &&
      SameToken(token, std::string(found->second.data(), found->second.size()))) {
    return absl::OkStatus();
  }
  return absl::UnauthenticatedError("the token is not this sandbox host's");
}

// False where the service ends.
bool Service::WaitForReport() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kReportEvery, [&] { return stopping_.load(); });
  return !stopping_;
}

grpc::Status Service::Session(grpc::ServerContext* context, const wire::SessionRequest* request,
                              grpc::ServerWriter<wire::SessionEvent>* writer) {
  RETURN_GRPC_IF_ERROR(CheckToken(context));
  if (request->version() != remote::kVersion) {
    return {grpc::StatusCode::FAILED_PRECONDITION,
            "client and sandbox host are of different versions: install the same on both"};
  }
  const std::string name = sessions_.Begin();
  wire::SessionEvent event;
  event.set_session(name);
  do {
    *event.mutable_load() = ToWire(host_->load());
    event.set_draining(draining_);
  } while (!context->IsCancelled() && writer->Write(event) && WaitForReport());
  sessions_.End(name);
  return {grpc::StatusCode::UNAVAILABLE, "the sandbox host is closing"};
}

absl::StatusOr<std::shared_ptr<Sandbox>> Service::Find(const grpc::ServerContext* context,
                                                       const wire::SandboxRef& ref) const {
  RETURN_IF_ERROR(CheckToken(context));
  ASSIGN_OR_RETURN(const auto session, sessions_.Find(ref.session()));
  std::shared_ptr<Sandbox> sandbox = session->FindSandbox(ref.sandbox());
  if (sandbox == nullptr) return Unavailable("there is no sandbox {} any more", ref.sandbox());
  return sandbox;
}

grpc::Status Service::Make(const wire::CreateRequest& request, remote::Session* session,
                           wire::CreateReply* reply) {
  ASSIGN_OR_RETURN_GRPC(const HeldImage image, images_(request.image(), request.emulate()));
  SandboxOptions options;
  options.image = image.image;
  options.limits = FromWire(request.limits());
  options.hostname = request.hostname();
  options.warm = request.warm();
  std::shared_ptr<Sandbox> sandbox;
  if (request.snapshot() == 0) {
    ASSIGN_OR_RETURN_GRPC(sandbox, host_->Create(options));
  } else {
    const auto snapshot = session->FindSnapshot(request.snapshot());
    if (snapshot == nullptr) return {grpc::StatusCode::NOT_FOUND, "there is no such snapshot"};
    ASSIGN_OR_RETURN_GRPC(sandbox, host_->Fork(snapshot, options));
  }
  reply->set_sandbox(sandbox->id());
  if (session->Add(std::move(sandbox), image.hold)) return grpc::Status::OK;
  return {grpc::StatusCode::UNAVAILABLE, "the session has ended"};
}

grpc::Status Service::Create(grpc::ServerContext* context, const wire::CreateRequest* request,
                             wire::CreateReply* reply) {
  RETURN_GRPC_IF_ERROR(CheckToken(context));
  // A fork belongs to an episode that has begun.
  if (draining_ && request->snapshot() == 0) {
    return {grpc::StatusCode::UNAVAILABLE, "the sandbox host drains and takes no new sandboxes"};
  }
  ASSIGN_OR_RETURN_GRPC(const auto session, sessions_.Find(request->session()));
  const grpc::Status status = Make(*request, session.get(), reply);
  // A client that gave up meanwhile does not know its name.
  if (status.ok() && context->IsCancelled()) session->Destroy(reply->sandbox()).IgnoreError();
  return status;
}

grpc::Status Service::Destroy(grpc::ServerContext* context, const wire::SandboxRef* request,
                              wire::Nothing*) {
  RETURN_GRPC_IF_ERROR(CheckToken(context));
  ASSIGN_OR_RETURN_GRPC(const auto session, sessions_.Find(request->session()));
  return ToGrpc(session->Destroy(request->sandbox()));
}

grpc::Status Service::Exec(grpc::ServerContext* context, remote::ExecCall::Stream* stream) {
  wire::ExecInput first;
  if (!stream->Read(&first) || first.kind_case() != wire::ExecInput::kStart) {
    return {grpc::StatusCode::INVALID_ARGUMENT, "a command begins with its start"};
  }
  ASSIGN_OR_RETURN_GRPC(const auto sandbox, Find(context, first.start().sandbox()));
  return remote::ExecCall(context, stream).Run(sandbox.get(), first.start());
}

grpc::Status Service::SendBytes(grpc::ServerContext* context, const wire::FileRequest& request,
                                grpc::ServerWriter<wire::Piece>* writer, Reading read) {
  ASSIGN_OR_RETURN_GRPC(const auto sandbox, Find(context, request.sandbox()));
  bool sent = true;
  wire::Piece piece;
  const absl::Status status = (sandbox.get()->*read)(request.path(), [&](std::string_view bytes) {
    sent = sent && remote::InPieces(bytes, [&](std::string_view part) {
             piece.set_data(part.data(), part.size());
             return writer->Write(piece);
           });
  });
  return sent ? ToGrpc(status) : grpc::Status::CANCELLED;
}

grpc::Status Service::Get(grpc::ServerContext* context, const wire::FileRequest* request,
                          grpc::ServerWriter<wire::Piece>* writer) {
  return SendBytes(context, *request, writer, &Sandbox::GetStream);
}

grpc::Status Service::ReadChanged(grpc::ServerContext* context, const wire::FileRequest* request,
                                  grpc::ServerWriter<wire::Piece>* writer) {
  return SendBytes(context, *request, writer, &Sandbox::ReadChanged);
}

grpc::Status Service::Put(grpc::ServerContext* context, grpc::ServerReader<wire::PutInput>* reader,
                          wire::Nothing*) {
  wire::PutInput input;
  if (!reader->Read(&input)) return {grpc::StatusCode::INVALID_ARGUMENT, "nothing to put"};
  ASSIGN_OR_RETURN_GRPC(const auto sandbox, Find(context, input.file().sandbox()));
  const std::string path = input.file().path();
  const uint32_t mode = input.mode();
  bool whole = false;
  const auto source = [&]() -> std::string {
    while (!whole && input.data().empty()) {
      whole = input.last();
      if (!whole && !reader->Read(&input)) return "";
    }
    return std::exchange(*input.mutable_data(), {});
  };
  const absl::Status status = sandbox->PutStream(path, source, mode);
  if (status.ok() && !whole) return grpc::Status::CANCELLED;
  return ToGrpc(status);
}

grpc::Status Service::Link(grpc::ServerContext* context, const wire::FileRequest* request,
                           wire::Nothing*) {
  ASSIGN_OR_RETURN_GRPC(const auto sandbox, Find(context, request->sandbox()));
  return ToGrpc(sandbox->Link(request->path(), request->target()));
}

grpc::Status Service::Remove(grpc::ServerContext* context, const wire::FileRequest* request,
                             wire::Nothing*) {
  ASSIGN_OR_RETURN_GRPC(const auto sandbox, Find(context, request->sandbox()));
  return ToGrpc(sandbox->Remove(request->path()));
}

grpc::Status Service::Events(grpc::ServerContext* context, const wire::SandboxRef* request,
                             wire::EventCounts* reply) {
  ASSIGN_OR_RETURN_GRPC(const auto sandbox, Find(context, *request));
  ASSIGN_OR_RETURN_GRPC(const SandboxEvents events, sandbox->Events());
  *reply = ToWire(events);
  return grpc::Status::OK;
}

grpc::Status Service::Stat(grpc::ServerContext* context, const wire::FileRequest* request,
                           wire::File* reply) {
  ASSIGN_OR_RETURN_GRPC(const auto sandbox, Find(context, request->sandbox()));
  ASSIGN_OR_RETURN_GRPC(const FileInfo info, sandbox->Stat(request->path()));
  *reply = ToWire(info);
  return grpc::Status::OK;
}

grpc::Status Service::List(grpc::ServerContext* context, const wire::FileRequest* request,
                           grpc::ServerWriter<wire::File>* writer) {
  ASSIGN_OR_RETURN_GRPC(const auto sandbox, Find(context, request->sandbox()));
  ASSIGN_OR_RETURN_GRPC(const auto entries, sandbox->List(request->path(), request->any_type()));
  for (const FileInfo& entry : entries) {
    if (!writer->Write(ToWire(entry))) return grpc::Status::CANCELLED;
  }
  return grpc::Status::OK;
}

grpc::Status Service::TakeSnapshot(grpc::ServerContext* context, const wire::SandboxRef* request,
                                   wire::SnapshotRef* reply) {
  ASSIGN_OR_RETURN_GRPC(const auto sandbox, Find(context, *request));
  ASSIGN_OR_RETURN_GRPC(const auto session, sessions_.Find(request->session()));
  ASSIGN_OR_RETURN_GRPC(auto snapshot, sandbox->TakeSnapshot());
  reply->set_snapshot(sessions_.NextSnapshot());
  if (session->Add(reply->snapshot(), std::move(snapshot))) return grpc::Status::OK;
  return {grpc::StatusCode::UNAVAILABLE, "the session has ended"};
}

grpc::Status Service::ReleaseSnapshot(grpc::ServerContext* context,
                                      const wire::SnapshotRef* request, wire::Nothing*) {
  RETURN_GRPC_IF_ERROR(CheckToken(context));
  ASSIGN_OR_RETURN_GRPC(const auto session, sessions_.Find(request->session()));
  session->Release(request->snapshot());
  return grpc::Status::OK;
}

grpc::Status Service::Diff(grpc::ServerContext* context, const wire::SandboxRef* request,
                           grpc::ServerWriter<wire::ChangedPath>* writer) {
  ASSIGN_OR_RETURN_GRPC(const auto sandbox, Find(context, *request));
  ASSIGN_OR_RETURN_GRPC(const auto changes, sandbox->Diff());
  for (const Change& change : changes) {
    if (!writer->Write(ToWire(change))) return grpc::Status::CANCELLED;
  }
  return grpc::Status::OK;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SandboxService>> StartSandboxService(SandboxHost* host,
                                                                    ImageSource images,
                                                                    const ServiceOptions& options) {
  auto service = std::make_unique<Service>(host, std::move(images), options);
  RETURN_IF_ERROR(service->Start());
  return std::unique_ptr<SandboxService>(std::move(service));
}

}  // namespace orrery::sandbox
