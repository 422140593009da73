// One sandbox of another machine. Its state is there; here is its name.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "sandbox/remote/connection.h"
#include "sandbox/sandbox.h"

namespace orrery::sandbox::remote {

class RemoteSnapshot : public Snapshot {
 public:
  RemoteSnapshot(Connection* connection, std::shared_ptr<OpenSession> session, uint64_t id)
      : connection_(connection), session_(std::move(session)), id_(id) {}
  ~RemoteSnapshot() override;

  Connection* connection() const { return connection_; }
  const std::shared_ptr<OpenSession>& session() const { return session_; }
  uint64_t id() const { return id_; }

 private:
  Connection* connection_;
  std::shared_ptr<OpenSession> session_;
  uint64_t id_;
};

class RemoteSandbox : public Sandbox {
 public:
  // `connection` outlives it.
  RemoteSandbox(Connection* connection, std::shared_ptr<OpenSession> session, std::string name)
      : connection_(connection),
        session_(std::move(session)),
        name_(std::move(name)),
        id_(connection->address() + "/" + name_) {}
  ~RemoteSandbox() override { Destroy().IgnoreError(); }

  const std::string& id() const override { return id_; }
  ExecResult Exec(const ExecRequest& request) override;
  absl::StatusOr<std::string> Get(const std::string& path, int64_t max_bytes) override;
  absl::Status Put(const std::string& path, std::string_view content, uint32_t mode) override;
  absl::Status GetStream(const std::string& path,
                         const std::function<void(std::string_view)>& sink) override;
  absl::Status PutStream(const std::string& path, const std::function<std::string()>& source,
                         uint32_t mode) override;
  absl::Status Link(const std::string& path, const std::string& target) override;
  absl::Status Remove(const std::string& path) override;
  absl::StatusOr<SandboxEvents> Events() override;
  absl::StatusOr<FileInfo> Stat(const std::string& path) override;
  absl::StatusOr<std::vector<FileInfo>> List(const std::string& path, bool any_type) override;
  absl::StatusOr<std::shared_ptr<const Snapshot>> TakeSnapshot() override;
  absl::StatusOr<std::vector<Change>> Diff() override;
  absl::Status ReadChanged(const std::string& path,
                           const std::function<void(std::string_view)>& sink) override;
  absl::Status Destroy() override;

 private:
  wire::SandboxRef Ref() const;
  wire::FileRequest FileOf(const std::string& path) const;
  absl::Status CheckAlive() const;
  absl::Status ReadPieces(grpc::ClientContext* context, grpc::ClientReader<wire::Piece>* reader,
                          const std::function<bool(std::string_view)>& sink);
  absl::Status GetUpTo(const std::string& path, const std::function<bool(std::string_view)>& sink);

  Connection* connection_;
  std::shared_ptr<OpenSession> session_;
  const std::string name_, id_;
  std::atomic<bool> destroyed_{false};
};

}  // namespace orrery::sandbox::remote
