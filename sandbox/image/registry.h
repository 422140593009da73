// Images from a registry by the OCI distribution specification 1.1, over the hub's HTTP transport:
// anonymous, basic and bearer-token authentication, indexes by architecture, layers resumed where
// an earlier try stopped and checked by digest.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "sandbox/image/image.h"
#include "sandbox/image/install.h"
#include "sandbox/image/reference.h"
#include "sandbox/image/store_files.h"

namespace orrery::sandbox::image {

// What the image is; its layers are fetched when Install() opens them, into the store's blobs, and
// deleted once unpacked.
absl::StatusOr<NewImage> OpenRegistryImage(const StoreFiles& files, const Reference& reference,
                                           const PullOptions& options);

// User and password for a registry from $REGISTRY_AUTH_FILE, $DOCKER_CONFIG/config.json or
// ~/.docker/config.json ("auths"); both empty where there is none.
struct Credentials {
  std::string user, password;
};
absl::StatusOr<Credentials> FindCredentials(const std::string& host);

// The parameters of a WWW-Authenticate header: `Bearer realm="...",service="...",scope="..."`.
struct Challenge {
  std::string scheme;  // in lower case
  std::string realm, service, scope;
};
Challenge ParseChallenge(const std::string& header);

}  // namespace orrery::sandbox::image
