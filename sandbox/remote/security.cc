#include "sandbox/remote/security.h"

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"

namespace orrery::sandbox {
namespace {

constexpr size_t kMinTokenSize = 16;

bool IsUnix(const std::string& address) { return address.starts_with("unix:"); }

bool IsLoopback(const std::string& address) {
  const std::string host = address.substr(0, address.rfind(':'));
  return host == "127.0.0.1" || host == "localhost" || host == "[::1]";
}

absl::Status ReadInto(const std::string& file, std::string& text) {
  if (file.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(text, ReadFile(file));
  if (text.empty()) return InvalidInput("{} is empty", file);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RemoteSecurity> ReadSecurity(const std::string& token_file,
                                            const std::string& certificate_file,
                                            const std::string& key_file,
                                            const std::string& authority_file) {
  RemoteSecurity security;
  RETURN_IF_ERROR(ReadInto(token_file, security.token));
  security.token.resize(security.token.find_first_of("\r\n") == std::string::npos
                            ? security.token.size()
                            : security.token.find_first_of("\r\n"));
  if (!token_file.empty() && security.token.size() < kMinTokenSize) {
    return InvalidInput("{}: a token has at least {} characters in its first line", token_file,
                        kMinTokenSize);
  }
  RETURN_IF_ERROR(ReadInto(certificate_file, security.certificate));
  RETURN_IF_ERROR(ReadInto(key_file, security.key));
  RETURN_IF_ERROR(ReadInto(authority_file, security.authority));
  if (security.certificate.empty() != security.key.empty()) {
    return InvalidInput("a certificate and its key are given together, or neither");
  }
  return security;
}

absl::Status CheckSecurity(const RemoteSecurity& security, const std::string& address,
                           bool server) {
  if (IsUnix(address)) return absl::OkStatus();
  if (address.rfind(':') == std::string::npos) {
    return InvalidInput("{}: write unix:PATH or HOST:PORT", address);
  }
  if (!security.tls() && !IsLoopback(address)) {
    return InvalidInput(
        "{} without TLS shows all to the network: give a certificate, its key and an authority, or "
        "take unix:PATH or a loopback address",
        address);
  }
  if (server && security.tls() && security.certificate.empty()) {
    return InvalidInput("{}: a host with TLS needs a certificate and its key", address);
  }
  const bool known = !security.token.empty() || (security.tls() && !security.authority.empty());
  if (server && !known) {
    return InvalidInput("{} would serve anybody: give a token or an authority of clients", address);
  }
  return absl::OkStatus();
}

bool SameToken(const std::string& expected, const std::string& given) {
  unsigned char difference = expected.size() == given.size() ? 0 : 1;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference |= static_cast<unsigned char>(expected[i] ^ (i < given.size() ? given[i] : 0));
  }
  return difference == 0;
}

}  // namespace orrery::sandbox
