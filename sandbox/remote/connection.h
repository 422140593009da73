// A client's side of one host: the channel, and a thread that keeps a session open and hears the
// host's load. Thread-safe.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "sandbox/remote/convert.h"
#include "sandbox/remote/remote_host.h"

namespace orrery::sandbox::remote {

// A session from its first event on. What was made in it is lost with it.
struct OpenSession {
  std::string name;
  std::atomic<bool> alive{true};
};

class Connection {
 public:
  struct State {
    std::shared_ptr<OpenSession> session;  // null: the host does not answer
    HostLoad load;
    bool draining = false;
    int64_t creating = 0;  // asked for since, not in the load yet
    std::string error;     // why there is no session
  };

  Connection(const std::string& address, const RemoteOptions& options);
  ~Connection();  // ends the session

  const std::string& address() const { return address_; }
  const RemoteOptions& options() const { return options_; }
  wire::Sandboxes::Stub* stub() const { return stub_.get(); }
  State state() const;
  void CountCreating(int64_t by);

  // Token and deadline (0: none) of a call.
  void Prepare(grpc::ClientContext* context, int64_t timeout_ms) const;
  absl::Status ToStatus(const grpc::Status& status) const { return FromGrpc(status, address_); }

 private:
  void KeepSession();
  void AwaitChannel();
  void HearEvents();
  bool Pause(int64_t ms);

  const std::string address_;
  const RemoteOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<wire::Sandboxes::Stub> stub_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  State state_;
  bool stopping_ = false;
  grpc::ClientContext* running_ = nullptr;  // of the session's stream
  std::thread thread_;
};

}  // namespace orrery::sandbox::remote
