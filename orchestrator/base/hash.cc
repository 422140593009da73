#include "orchestrator/base/hash.h"

#include <openssl/evp.h>

#include "absl/strings/escaping.h"
#include "orchestrator/base/check.h"

namespace orrery {

std::string Sha256(std::string_view data) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  CHECK(EVP_Digest(data.data(), data.size(), digest, &length, EVP_sha256(), nullptr) == 1);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), length));
}

}  // namespace orrery
