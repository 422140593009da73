// SHA-256 of bytes that come in pieces, and digests as OCI writes them: "sha256:" and 64 digits.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace orrery::sandbox::image {

class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(Sha256Stream&&) noexcept;
  Sha256Stream& operator=(Sha256Stream&&) noexcept;
  void Update(std::string_view data);
  // 64 digits; REQUIRES: no Update() afterwards.
  std::string Hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

inline constexpr std::string_view kDigestPrefix = "sha256:";

bool IsDigest(std::string_view text);         // "sha256:" and 64 lower-case digits
std::string DigestOf(std::string_view data);  // "sha256:..."
std::string HexOf(std::string_view digest);   // REQUIRES: IsDigest(digest)

// The OCI chain id of a layer over the chain below it ("" for none).
std::string ChainId(const std::string& below, const std::string& diff_id);

}  // namespace orrery::sandbox::image
