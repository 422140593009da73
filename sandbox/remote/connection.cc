#include "sandbox/remote/connection.h"

#include <algorithm>
#include <chrono>

namespace orrery::sandbox::remote {
namespace {

constexpr int64_t kFirstPauseMs = 50, kLongestPauseMs = 2000;
constexpr int kLooks = 20;
constexpr std::chrono::milliseconds kLookFor(100);

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const RemoteOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, options.keepalive_ms);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, options.keepalive_ms);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  // Calls of one object share nothing with those of another, the connection included.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const RemoteSecurity& security = options.security;
  if (!security.tls() || address.starts_with("unix:")) {
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }
  if (!options.tls_name.empty()) arguments.SetSslTargetNameOverride(options.tls_name);
  grpc::SslCredentialsOptions tls;
  tls.pem_root_certs = security.authority;
  tls.pem_private_key = security.key;
  tls.pem_cert_chain = security.certificate;
  return grpc::CreateCustomChannel(address, grpc::SslCredentials(tls), arguments);
}

}  // namespace

Connection::Connection(const std::string& address, const RemoteOptions& options)
    : address_(address),
      options_(options),
      channel_(MakeChannel(address, options)),
      stub_(wire::Sandboxes::NewStub(channel_)),
      thread_(&Connection::KeepSession, this) {}

Connection::~Connection() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (running_ != nullptr) running_->TryCancel();
    changed_.notify_all();
  }
  thread_.join();
}

Connection::State Connection::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void Connection::CountCreating(int64_t by) {
  const std::lock_guard lock(mutex_);
  state_.creating += by;
}

void Connection::Prepare(grpc::ClientContext* context, int64_t timeout_ms) const {
  if (!options_.security.token.empty()) context->AddMetadata(kTokenKey, options_.security.token);
  if (timeout_ms > 0) {
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms));
  }
}

bool Connection::Pause(int64_t ms) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, std::chrono::milliseconds(ms), [&] { return stopping_; });
}

void Connection::KeepSession() {
  int64_t pause_ms = kFirstPauseMs;
  do {
    AwaitChannel();
    HearEvents();
    const std::lock_guard lock(mutex_);
    pause_ms = state_.session != nullptr ? kFirstPauseMs : std::min(2 * pause_ms, kLongestPauseMs);
    if (state_.session != nullptr) state_.session->alive = false;
    state_.session = nullptr;
  } while (Pause(pause_ms));
}

// A connection comes about only while somebody waits for it. Where none does, the next call says
// why.
void Connection::AwaitChannel() {
  for (int i = 0; i < kLooks; ++i) {
    if (channel_->WaitForConnected(std::chrono::system_clock::now() + kLookFor)) return;
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
  }
}

// One session, to its end.
void Connection::HearEvents() {
  grpc::ClientContext context;
  Prepare(&context, 0);
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    running_ = &context;
  }
  wire::SessionRequest request;
  request.set_version(kVersion);
  const auto reader = stub_->Session(&context, request);
  wire::SessionEvent event;
  while (reader->Read(&event)) {
    const std::lock_guard lock(mutex_);
    if (state_.session == nullptr) {
      state_.session = std::make_shared<OpenSession>();
      state_.session->name = event.session();
    }
    state_.load = FromWire(event.load());
    state_.draining = event.draining();
  }
  const grpc::Status status = reader->Finish();
  const std::lock_guard lock(mutex_);
  running_ = nullptr;
  state_.error = status.error_message();
}

}  // namespace orrery::sandbox::remote
