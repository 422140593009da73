// One repository on a hub, at one revision: its list of files and what the hub says of each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "orchestrator/hub/environment.h"
#include "orchestrator/hub/hub.h"

namespace orrery::hub {

struct RemoteFile {
  std::string path;
  int64_t size = -1;  // -1: the hub does not say
};

struct Listing {
  std::string commit;
  std::vector<RemoteFile> files;
};

struct FileMetadata {
  std::string hash;  // 64 hexadecimal digits: SHA-256; 40: git's SHA-1 of a blob; else only a name
  int64_t size = -1;
};

class RemoteRepo {
 public:
  RemoteRepo(const HubEnvironment& environment, const RetryPolicy& retry, Kind kind,
             const std::string& repo)
      : environment_(environment), retry_(retry), kind_(kind), repo_(repo) {}

  absl::StatusOr<Listing> List(const std::string& revision) const;
  absl::StatusOr<FileMetadata> Metadata(const std::string& commit, const std::string& path) const;
  std::string FileUrl(const std::string& commit, const std::string& path) const;
  // "hf:ORG/NAME@REVISION", for messages.
  std::string Name(const std::string& revision) const;
  // Where a person reads about the repository.
  std::string Page() const;
  const HubEnvironment& environment() const { return environment_; }
  const RetryPolicy& retry() const { return retry_; }

 private:
  const HubEnvironment& environment_;
  const RetryPolicy& retry_;
  Kind kind_;
  const std::string& repo_;
};

// The answer to GET /api/models/ORG/NAME/revision/REV, checked. `what` is for messages.
absl::StatusOr<Listing> ParseListing(const std::string& json, const std::string& what);

}  // namespace orrery::hub
