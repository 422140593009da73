// One file from a URL to a path, whole and right or not at all: resumed where an earlier try
// stopped, checked by size and hash.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "orchestrator/hub/http.h"
#include "orchestrator/hub/hub.h"
#include "orchestrator/hub/remote.h"

namespace orrery::hub {

struct Download {
  std::string what;  // for messages: "hf:ORG/NAME@COMMIT/config.json"
  std::string url;
  std::string page;  // of the repository, for messages
  std::string token;
  std::string authorization;  // in place of a token: see HttpRequest
  FileMetadata expected;
  std::string path;                // the finished file
  std::string incomplete;          // what has come so far; stays after a failure, to be resumed
  std::string server = "the hub";  // for messages
  // What a final answer other than success means; empty: HttpError() of the hub.
  std::function<absl::Status(const HttpResponse&)> error;
};

// `bytes_so_far` is called with the size of the incomplete file as it grows. The caller holds a
// lock on the path.
absl::Status DownloadFile(const Download& download, const RetryPolicy& retry,
                          const std::function<void(int64_t bytes_so_far)>& bytes_so_far);

// SHA-1 of "blob SIZE\0" and the content: git's name of a file. Lower-case hexadecimal.
std::string GitBlobSha1(std::string_view content);

}  // namespace orrery::hub
