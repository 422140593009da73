#include "sandbox/remote/remote_sandbox.h"

#include <cerrno>

#include "orchestrator/base/status.h"
#include "sandbox/remote/exec_client.h"

namespace orrery::sandbox::remote {
namespace {

constexpr int64_t kReleaseTimeoutMs = 10'000;

}  // namespace

RemoteSnapshot::~RemoteSnapshot() {
  if (!session_->alive) return;
  grpc::ClientContext context;
  connection_->Prepare(&context, kReleaseTimeoutMs);
  wire::SnapshotRef ref;
  ref.set_session(session_->name);
  ref.set_snapshot(id_);
  wire::Nothing nothing;
  connection_->stub()->ReleaseSnapshot(&context, ref, &nothing);
}

wire::SandboxRef RemoteSandbox::Ref() const {
  wire::SandboxRef ref;
  ref.set_session(session_->name);
  ref.set_sandbox(name_);
  return ref;
}

wire::FileRequest RemoteSandbox::FileOf(const std::string& path) const {
  wire::FileRequest request;
  *request.mutable_sandbox() = Ref();
  request.set_path(path);
  return request;
}

absl::Status RemoteSandbox::CheckAlive() const {
  if (destroyed_) return Precondition("the sandbox is destroyed");
  if (session_->alive) return absl::OkStatus();
  return Unavailable("sandbox {}: the connection to its host was lost", id_);
}

ExecResult RemoteSandbox::Exec(const ExecRequest& request) {
  ExecResult result;
  if (destroyed_) {
    result.ending = Ending::kRefused;
    result.why = "the sandbox is destroyed";
    return result;
  }
  grpc::ClientContext context;
  const RemoteOptions& options = connection_->options();
  connection_->Prepare(&context,
                       request.timeout_ms > 0 ? request.timeout_ms + options.exec_slack_ms : 0);
  grpc::Status status;
  ExecClient client(request, connection_->stub()->Exec(&context));
  if (client.Run(Ref(), &result, &status)) return result;
  // A request that no host can take fails everywhere.
  if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED ||
      status.error_code() == grpc::StatusCode::INVALID_ARGUMENT) {
    result.ending = Ending::kRefused;
    result.code = E2BIG;
    result.why = StatusText(connection_->ToStatus(status));
    return result;
  }
  // What had come of the output stays.
  result.ending = Ending::kInfrastructure;
  result.retryable = true;
  result.why =
      status.ok() ? "the sandbox host gave no result" : StatusText(connection_->ToStatus(status));
  return result;
}

absl::Status RemoteSandbox::ReadPieces(grpc::ClientContext* context,
                                       grpc::ClientReader<wire::Piece>* reader,
                                       const std::function<bool(std::string_view)>& sink) {
  wire::Piece piece;
  bool enough = false;
  while (!enough && reader->Read(&piece)) enough = !sink(piece.data());
  if (enough) context->TryCancel();
  const grpc::Status status = reader->Finish();
  return enough ? absl::OkStatus() : connection_->ToStatus(status);
}

absl::Status RemoteSandbox::GetUpTo(const std::string& path,
                                    const std::function<bool(std::string_view)>& sink) {
  RETURN_IF_ERROR(CheckAlive());
  grpc::ClientContext context;
  connection_->Prepare(&context, connection_->options().call_timeout_ms);
  return ReadPieces(&context, connection_->stub()->Get(&context, FileOf(path)).get(), sink);
}

absl::StatusOr<std::string> RemoteSandbox::Get(const std::string& path, int64_t max_bytes) {
  std::string content;
  bool too_long = false;
  RETURN_IF_ERROR(GetUpTo(path, [&](std::string_view bytes) {
    too_long = static_cast<int64_t>(content.size() + bytes.size()) > max_bytes;
    if (!too_long) content.append(bytes);
    return !too_long;
  }));
  if (too_long) return Exhausted("{} is longer than the {} bytes asked for", path, max_bytes);
  return content;
}

absl::Status RemoteSandbox::GetStream(const std::string& path,
                                      const std::function<void(std::string_view)>& sink) {
  return GetUpTo(path, [&](std::string_view bytes) {
    sink(bytes);
    return true;
  });
}

absl::Status RemoteSandbox::Put(const std::string& path, std::string_view content, uint32_t mode) {
  size_t offset = 0;
  const auto next = [&]() -> std::string {
    const std::string_view piece = content.substr(offset, kPieceBytes);
    offset += piece.size();
    return std::string(piece);
  };
  return PutStream(path, next, mode);
}

absl::Status RemoteSandbox::PutStream(const std::string& path,
                                      const std::function<std::string()>& source, uint32_t mode) {
  RETURN_IF_ERROR(CheckAlive());
  grpc::ClientContext context;
  connection_->Prepare(&context, connection_->options().call_timeout_ms);
  wire::Nothing nothing;
  const auto writer = connection_->stub()->Put(&context, &nothing);
  wire::PutInput input;
  *input.mutable_file() = FileOf(path);
  input.set_mode(mode);
  bool open = writer->Write(input);
  input.Clear();
  for (std::string bytes = source(); open && !bytes.empty(); bytes = source()) {
    open = InPieces(bytes, [&](std::string_view piece) {
      input.set_data(piece.data(), piece.size());
      return writer->Write(input);
    });
  }
  if (open) {
    input.Clear();
    input.set_last(true);
    writer->Write(input);
  }
  writer->WritesDone();
  return connection_->ToStatus(writer->Finish());
}

absl::Status RemoteSandbox::Link(const std::string& path, const std::string& target) {
  RETURN_IF_ERROR(CheckAlive());
  grpc::ClientContext context;
  connection_->Prepare(&context, connection_->options().call_timeout_ms);
  wire::FileRequest request = FileOf(path);
  request.set_target(target);
  wire::Nothing nothing;
  return connection_->ToStatus(connection_->stub()->Link(&context, request, &nothing));
}

absl::Status RemoteSandbox::Remove(const std::string& path) {
  RETURN_IF_ERROR(CheckAlive());
  grpc::ClientContext context;
  connection_->Prepare(&context, connection_->options().call_timeout_ms);
  wire::Nothing nothing;
  return connection_->ToStatus(connection_->stub()->Remove(&context, FileOf(path), &nothing));
}

absl::StatusOr<SandboxEvents> RemoteSandbox::Events() {
  RETURN_IF_ERROR(CheckAlive());
  grpc::ClientContext context;
  connection_->Prepare(&context, connection_->options().call_timeout_ms);
  wire::EventCounts events;
  RETURN_IF_ERROR(connection_->ToStatus(connection_->stub()->Events(&context, Ref(), &events)));
  return FromWire(events);
}

absl::StatusOr<FileInfo> RemoteSandbox::Stat(const std::string& path) {
  RETURN_IF_ERROR(CheckAlive());
  grpc::ClientContext context;
  connection_->Prepare(&context, connection_->options().call_timeout_ms);
  wire::File file;
  RETURN_IF_ERROR(connection_->ToStatus(connection_->stub()->Stat(&context, FileOf(path), &file)));
  return FromWire(file);
}

absl::StatusOr<std::vector<FileInfo>> RemoteSandbox::List(const std::string& path, bool any_type) {
  RETURN_IF_ERROR(CheckAlive());
  grpc::ClientContext context;
  connection_->Prepare(&context, connection_->options().call_timeout_ms);
  wire::FileRequest request = FileOf(path);
  request.set_any_type(any_type);
  const auto reader = connection_->stub()->List(&context, request);
  std::vector<FileInfo> entries;
  for (wire::File file; reader->Read(&file);) entries.push_back(FromWire(file));
  RETURN_IF_ERROR(connection_->ToStatus(reader->Finish()));
  return entries;
}

absl::StatusOr<std::shared_ptr<const Snapshot>> RemoteSandbox::TakeSnapshot() {
  RETURN_IF_ERROR(CheckAlive());
  grpc::ClientContext context;
  connection_->Prepare(&context, connection_->options().call_timeout_ms);
  wire::SnapshotRef snapshot;
  RETURN_IF_ERROR(
      connection_->ToStatus(connection_->stub()->TakeSnapshot(&context, Ref(), &snapshot)));
  return std::shared_ptr<const Snapshot>(
      std::make_shared<RemoteSnapshot>(connection_, session_, snapshot.snapshot()));
}

absl::StatusOr<std::vector<Change>> RemoteSandbox::Diff() {
  RETURN_IF_ERROR(CheckAlive());
  grpc::ClientContext context;
  connection_->Prepare(&context, connection_->options().call_timeout_ms);
  const auto reader = connection_->stub()->Diff(&context, Ref());
  std::vector<Change> changes;
  for (wire::ChangedPath changed; reader->Read(&changed);) changes.push_back(FromWire(changed));
  RETURN_IF_ERROR(connection_->ToStatus(reader->Finish()));
  return changes;
}

absl::Status RemoteSandbox::ReadChanged(const std::string& path,
                                        const std::function<void(std::string_view)>& sink) {
  RETURN_IF_ERROR(CheckAlive());
  grpc::ClientContext context;
  connection_->Prepare(&context, connection_->options().call_timeout_ms);
  const auto reader = connection_->stub()->ReadChanged(&context, FileOf(path));
  return ReadPieces(&context, reader.get(), [&](std::string_view bytes) {
    sink(bytes);
    return true;
  });
}

// A host that is lost destroys by itself.
absl::Status RemoteSandbox::Destroy() {
  if (destroyed_.exchange(true) || !session_->alive) return absl::OkStatus();
  grpc::ClientContext context;
  connection_->Prepare(&context, connection_->options().call_timeout_ms);
  wire::Nothing nothing;
  const grpc::Status status = connection_->stub()->Destroy(&context, Ref(), &nothing);
  return session_->alive ? connection_->ToStatus(status) : absl::OkStatus();
}

}  // namespace orrery::sandbox::remote
