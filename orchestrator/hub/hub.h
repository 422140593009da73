// Models, tokenizers and datasets by name: a local folder or file, or
// `hf:ORG/NAME[@REVISION][/PATH]` on a Hugging Face hub, kept in the standard cache that the Python
// library huggingface_hub shares.
//
// A file lands in the cache only complete and with the right size and hash (SHA-256 of large files,
// git's SHA-1 of small ones); a broken download is resumed where it stopped, by this process or a
// later one. Processes that want the same file wait for each other. Where the hub cannot be asked,
// what the cache holds is used, with a warning; with HF_HUB_OFFLINE set nothing is asked at all.
//
// Blocking; any thread; several at once are fine.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "orchestrator/hub/environment.h"

namespace orrery::hub {

enum class Kind : uint8_t { kModel, kDataset };

// How long a download has come; file_size and total_bytes are -1 where the hub did not say.
struct Progress {
  std::string_view file;
  int64_t file_bytes = 0;
  int64_t file_size = 0;
  size_t files_done = 0;
  size_t num_files = 0;
  int64_t done_bytes = 0;
  int64_t total_bytes = 0;
};

// When a request that failed for a passing reason is repeated.
struct RetryPolicy {
  int attempts = 6;                            // in a row without a new byte
  std::chrono::milliseconds first_delay{500};  // doubles with each failure
  std::chrono::milliseconds longest_delay{30'000};
  std::chrono::milliseconds longest_retry_after{300'000};  // the hub may ask for no more than this
  std::chrono::milliseconds connect_timeout{10'000};
  std::chrono::seconds stall_timeout{30};  // silence for so long is a broken line
  // Replaced in tests.
  std::function<void(std::chrono::milliseconds)> sleep;
};

struct ResolveOptions {
  Kind kind = Kind::kModel;
  // Used where the source names none: a branch, a tag or a commit. Empty: main.
  std::string revision;
  // Wanted files, as in the shell ("*.json"; * matches / too). Empty: all.
  std::vector<std::string> patterns;
  std::function<void(const Progress&)> progress;
  RetryPolicy retry;
  // Empty: what the process's environment variables say.
  std::optional<HubEnvironment> environment;
};

// The local folder or file. A source that is no "hf:..." is a path and must exist.
absl::StatusOr<std::string> Resolve(const std::string& source, const ResolveOptions& options = {});

}  // namespace orrery::hub
