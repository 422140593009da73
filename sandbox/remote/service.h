// A sandbox host for other machines: the interface of sandbox.h over gRPC (sandbox.proto).
//
// A client opens a session, a stream that stays open. What it makes belongs to the session: when
// the stream ends (the client closed it, died, or the network between is gone: pings find out in
// some 20 s) every sandbox and snapshot of it is destroyed. So nothing is left behind on a host
// whose clients are gone, and a host's own death is dealt with as that of any owner (local_host.h).
//
// Streams move in pieces of 256 KiB, and a slow client holds its command up, not the host's memory.
// Threads: one a running call, as gRPC has them; the methods below may be called from any.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "sandbox/remote/security.h"
#include "sandbox/sandbox.h"

namespace orrery::sandbox {

// An image that stays in its store for as long as `hold` does.
struct HeldImage {
  PreparedImage image;
  std::shared_ptr<const void> hold;
};
// Finds what a client names.
using ImageSource =
    std::function<absl::StatusOr<HeldImage>(const std::string& reference, bool emulate)>;

struct ServiceOptions {
  std::string address;  // "unix:PATH" (mode 0600) or "HOST:PORT"; port 0: a free one
  RemoteSecurity security;
  int keepalive_ms = 10'000;  // between pings, and for their answer
};

class SandboxService {
 public:
  virtual ~SandboxService() = default;  // ends all calls and destroys what clients have
  // "unix:PATH", or "HOST:PORT" with the port that was taken.
  virtual const std::string& address() const = 0;
  // No new sandboxes from now on; waits until those of clients are gone, at most so long. False
  // where some were left.
  virtual bool Drain(int64_t timeout_ms) = 0;
};

// Serves until it is destroyed. `host` outlives it.
absl::StatusOr<std::unique_ptr<SandboxService>> StartSandboxService(SandboxHost* host,
                                                                    ImageSource images,
                                                                    const ServiceOptions& options);

}  // namespace orrery::sandbox
