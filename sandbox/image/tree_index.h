// A tree as text, one line an entry: what Verify() compares. Fields by tabs:
//   type  mode  uid  gid  size  mtime  content  xattrs  path
// content is a file's hash (content_hash.h), a link's target, "= PATH" for a further hard link, a
// whiteout's 0. Paths and targets are escaped. Folders come before what is in them, names by bytes.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "sandbox/image/tree_writer.h"

namespace orrery::sandbox::image {

struct TreeIndex {
  std::string text;
  int64_t files = 0;  // entries of any type
  int64_t bytes = 0;  // on disk
};

// `known`: hashes of files by inode, or null to read every file.
absl::StatusOr<TreeIndex> IndexTree(int root, const FileHashes* known);

}  // namespace orrery::sandbox::image
