// How other processes reach the sandboxes of a running host: `sandbox ps`, `exec` and `kill`. Each
// host listens on STATE/hosts/ID/control, a socket that root alone can reach. One connection is one
// request; frames as between host and launcher (protocol/frame.h).
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sandbox/host/local_host.h"
#include "sandbox/protocol/descriptor.h"
#include "sandbox/protocol/frame.h"
#include "sandbox/sandbox.h"

namespace orrery::sandbox {

struct SandboxRow {
  std::string id;  // "HOST/s3"
  std::string image;
  int64_t owner_pid = 0;
  int64_t age_ms = 0;
  int64_t commands = 0;  // running now
};

// The host's side. Serves until it is destroyed.
class ControlServer {
 public:
  struct Handlers {
    std::function<std::vector<SandboxRow>()> list;
    std::function<ExecResult(const std::string& id, const ExecRequest& request)> exec;
    std::function<absl::Status(const std::string& id)> kill;
  };
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(const std::string& path,
                                                              Handlers handlers);
  ~ControlServer();

 private:
  ControlServer(Descriptor listener, Descriptor wake, Handlers handlers)
      : listener_(std::move(listener)), wake_(std::move(wake)), handlers_(std::move(handlers)) {}
  void Serve();
  void Answer(Descriptor connection);
  void AnswerFrame(int connection, Frame& frame);

  Descriptor listener_, wake_;
  Handlers handlers_;
  std::thread thread_;
  std::mutex mutex_;
  std::vector<std::thread> connections_;
};

// The client's side, over all live hosts of a state folder. An id may be given without its host
// where it is the only one.
absl::StatusOr<std::vector<SandboxRow>> ListSandboxes(const HostOptions& options);
absl::Status KillSandbox(const HostOptions& options, const std::string& id);
// `request`'s input_fd and the caller's standard output and error are handed over.
absl::StatusOr<ExecResult> ExecInSandbox(const HostOptions& options, const std::string& id,
                                         const ExecRequest& request);

}  // namespace orrery::sandbox
