#include "sandbox/image/digest.h"

#include <openssl/evp.h>

#include <algorithm>

#include "absl/strings/escaping.h"
#include "orchestrator/base/check.h"
#include "orchestrator/base/hash.h"

namespace orrery::sandbox::image {

struct Sha256Stream::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  State() { CHECK(context != nullptr && EVP_DigestInit_ex(context, EVP_sha256(), nullptr) == 1); }
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256Stream::Sha256Stream() : state_(std::make_unique<State>()) {}
Sha256Stream::~Sha256Stream() = default;
Sha256Stream::Sha256Stream(Sha256Stream&&) noexcept = default;
Sha256Stream& Sha256Stream::operator=(Sha256Stream&&) noexcept = default;

void Sha256Stream::Update(std::string_view data) {
  CHECK(EVP_DigestUpdate(state_->context, data.data(), data.size()) == 1);
}

std::string Sha256Stream::Hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  CHECK(EVP_DigestFinal_ex(state_->context, digest, &length) == 1);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), length));
}

bool IsDigest(std::string_view text) {
  constexpr size_t kHexDigits = 64;
  if (!text.starts_with(kDigestPrefix) || text.size() != kDigestPrefix.size() + kHexDigits) {
    return false;
  }
  return std::all_of(text.begin() + kDigestPrefix.size(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

std::string DigestOf(std::string_view data) { return std::string(kDigestPrefix) + Sha256(data); }

std::string HexOf(std::string_view digest) {
  CHECK(IsDigest(digest)) << digest;
  return std::string(digest.substr(kDigestPrefix.size()));
}

std::string ChainId(const std::string& below, const std::string& diff_id) {
  return below.empty() ? diff_id : DigestOf(below + " " + diff_id);
}

}  // namespace orrery::sandbox::image
