// The host's git on data that nobody vouches for: run as nobody, with an empty environment and no
// configuration of any level, without network, in a mount namespace where the one folder it may
// write stands at /tmp. Bounded in time, memory, file size and output.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace orrery::sandbox::image {

struct GitCommand {
  std::vector<std::string> arguments;  // behind "git"
  std::string input;                   // its standard input
  std::vector<std::string> environment;
  int64_t max_output_bytes = int64_t{1} << 30;
  int timeout_s = 600;
};

class TrustedGit {
 public:
  // `folder` becomes /tmp in git's eyes; GIT_DIR is /tmp/git.
  explicit TrustedGit(std::string folder) : folder_(std::move(folder)) {}

  // Standard output of a command that succeeds; an error with what it wrote to standard error.
  absl::StatusOr<std::string> Run(const GitCommand& command) const;
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
};

}  // namespace orrery::sandbox::image
