// How a sandbox host and its clients know each other: a Unix socket that root alone can reach, TLS
// on both sides (mTLS), or a token over TLS. A token in the clear is allowed on this machine's
// loopback alone. Sandboxes run as root of a host: who can make one there is nearly its root.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orrery::sandbox {

struct RemoteSecurity {
  std::string token;             // shared by both sides; empty: none
  std::string certificate, key;  // PEM, of this side
  std::string authority;         // PEM, who signs the other side's certificate

  bool tls() const { return !certificate.empty() || !authority.empty(); }
};

// From files; empty names are left out. The token is the file's first line.
absl::StatusOr<RemoteSecurity> ReadSecurity(const std::string& token_file,
                                            const std::string& certificate_file,
                                            const std::string& key_file,
                                            const std::string& authority_file);

// Refuses what would let anybody in, or show the token to all. `address`: "unix:PATH", "HOST:PORT".
absl::Status CheckSecurity(const RemoteSecurity& security, const std::string& address, bool server);

// In a time that does not tell how much of it was right.
bool SameToken(const std::string& expected, const std::string& given);

}  // namespace orrery::sandbox
