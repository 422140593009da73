// Builds one layer's tree below a folder, in overlayfs form. Links in the tree are followed as the
// image would follow them, with the folder as root: nothing outside is read or written. Small files
// are written by a few threads; what must see them waits for them.
//
// Calls from one thread. An error leaves a tree of no use; the caller removes it.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sandbox/image/tree.h"
#include "sandbox/image/workers.h"

namespace orrery::sandbox::image {

struct Attributes {
  mode_t mode = 0;  // without the type
  uid_t uid = 0;
  gid_t gid = 0;
  timespec mtime = {};
  std::vector<Xattr> xattrs;
};

using Components = std::vector<std::string>;
using FileHashes = std::unordered_map<ino_t, std::string>;

struct TreeFacts {
  // Folders that no entry named; their attributes are those of the layer below, if it has them.
  std::set<std::string> implicit;
  std::set<std::string> whiteouts;
  std::set<std::string> opaque;
  FileHashes hashes;  // of regular files, by inode
};

class TreeWriter {
 public:
  // `root` is an empty folder and outlives the writer.
  TreeWriter(int root, int threads);

  absl::Status MakeFolder(const Components& path, const Attributes& attributes);
  absl::Status MakeFile(const Components& path, Attributes attributes, std::string content);
  absl::Status MakeLink(const Components& path, const Attributes& attributes,
                        const std::string& target);
  absl::Status MakeFifo(const Components& path, const Attributes& attributes);
  absl::Status MakeHardLink(const Components& path, const Components& target);
  // `path` is of what the layer takes away.
  absl::Status MakeWhiteout(const Components& path);
  absl::Status MakeOpaque(const Components& path);

  // A large file: OpenFile(), writes by the caller at any offsets, CloseFile() with the whole size.
  absl::StatusOr<Fd> OpenFile(const Components& path);
  absl::Status CloseFile(const Components& path, Fd file, const Attributes& attributes,
                         int64_t size);

  // Waits for all files and sets the folders' times.
  absl::StatusOr<TreeFacts> Finish();

 private:
  struct Parent {
    Fd fd;
    ino_t inode = 0;
  };
  using SharedParent = std::shared_ptr<const Parent>;
  // A file that met something of its name; made when nothing else runs.
  struct Postponed {
    SharedParent parent;
    std::string name, path;
    Attributes attributes;
    std::string content;
  };

  absl::StatusOr<SharedParent> OpenParent(const Components& path, size_t count);
  absl::Status MakeMissing(const Components& path, size_t count);
  // The parent of an entry about to be made, with no entry of its name left in it.
  absl::StatusOr<SharedParent> Clear(const Components& path);
  absl::Status Replace(const Parent& parent, const Components& path);
  absl::Status Drain();
  absl::Status DrainIfInFlight(const Parent& parent, const std::string& name);
  void Forget(const std::string& path);
  absl::Status WriteSmall(const SharedParent& parent, const std::string& name,
                          const std::string& path, const Attributes& attributes,
                          const std::string& content);

  const int root_;
  std::unordered_map<std::string, SharedParent> parents_;
  std::unordered_set<std::string> in_flight_;  // parent's inode and name
  std::map<std::string, timespec> folders_;
  TreeFacts facts_;
  std::mutex mutex_;  // guards facts_.hashes and postponed_
  std::vector<Postponed> postponed_;
  Workers workers_;  // last: its threads use the rest
};

}  // namespace orrery::sandbox::image
