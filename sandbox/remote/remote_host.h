// Sandboxes of other machines behind the interface of this one's: a client of service.h. A caller
// cannot tell, but for what a network adds: a host that is lost ends its commands as retryable
// infrastructure failures, and other calls as Unavailable.
//
// Each sandbox is made on the host with the most room, as the hosts last reported it; where a host
// does not answer or drains, on the next. Lost hosts are tried again for as long as this lives. A
// fork is made where its snapshot is. Images are named by PreparedImage::id (an id or a name,
// layers need not be known here) and looked up in each host's own store.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sandbox/remote/security.h"
#include "sandbox/sandbox.h"

namespace orrery::sandbox {

struct RemoteOptions {
  std::vector<std::string> hosts;  // each "unix:PATH" or "HOST:PORT"
  RemoteSecurity security;
  // In place of the host's name in its certificate.
  std::string tls_name;
  int64_t connect_timeout_ms = 10'000;  // how long to wait where no host answers
  int64_t create_timeout_ms = 600'000;  // of one creation, the host's queue included
  int64_t call_timeout_ms = 600'000;    // of a file operation, snapshot or diff
  int64_t exec_slack_ms = 60'000;       // beyond a command's own deadline
  int keepalive_ms = 10'000;
};

absl::StatusOr<std::unique_ptr<SandboxHost>> MakeRemoteHost(const RemoteOptions& options);

}  // namespace orrery::sandbox
