// The patch of an episode, byte for byte, made where nothing of the episode runs: in a fresh
// sandbox of the pristine image into which the changed files of the work tree are carried, by this
// host's git, against the image's own HEAD with a scratch index.
//
// Whatever the episode did to its .git (index, hooks, config, filters, fsmonitor, attributes,
// replace refs, HEAD) has no part in it: .git is not carried over. Attributes in the tree do not
// act either: bytes are taken as they are, so that CRLF stays. Staged, unstaged, untracked, deleted
// and renamed files are all in the work tree; renames are written as a deletion and an addition,
// which every tool that applies patches knows. Files that .gitignore names are left out unless
// asked for.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "sandbox/sandbox.h"

namespace orrery::sandbox {

struct PatchOptions {
  SandboxOptions fresh;  // the episode's image and limits
  std::string repository = "/testbed";
  std::string git_layer;  // a folder that MakeGitLayer filled
  bool ignored = false;
  int64_t max_bytes = 64 << 20;
};

// REQUIRES: no command runs in the episode's sandbox any more, or what it writes meanwhile may be
// half in the patch.
absl::StatusOr<std::string> ExtractPatch(SandboxHost* host, Sandbox* episode,
                                         const PatchOptions& options);

}  // namespace orrery::sandbox
