// What a sandbox changed against its image, from its upper layers; exact: a file that was written
// and put back is no change, nor is one that was only touched (times do not count).
//
// Two trees are equal where they have the same paths and, for each, the same type, permissions,
// owner, group, bytes (files), target (links) and extended attributes (user.*, capabilities).
// Times, hard links (a name is a file of its own) and inode numbers do not count.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sandbox/diff/layered_tree.h"
#include "sandbox/sandbox.h"

namespace orrery::sandbox {

// `root`: the stack of "/". Sorted by path; of a deleted folder only its own path.
absl::StatusOr<std::vector<Change>> FindChanges(const FolderStack& root);

// What lies at a path, reached through folders alone.
absl::StatusOr<LayeredEntry> FindPath(const FolderStack& root, const std::string& path,
                                      std::string& name);

// The bytes of a regular file, in pieces.
absl::Status ReadPath(const FolderStack& root, const std::string& path,
                      const std::function<void(std::string_view)>& sink);

}  // namespace orrery::sandbox
