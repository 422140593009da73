// The store's folders, records and locks on disk (drawn in image.h). Records are written atomically
// and read with every mistake as an error.
//
// Locks, flock(2) on files, always taken in this order:
//   ROOT/lock            shared while images come in or are taken, exclusive while things go
//   ROOT/locks/CHAIN     exclusive while one layer is made, lower layers first
//   ROOT/images/ID.lease shared while a sandbox runs the image; exclusive, tried, to remove it
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sandbox/image/image.h"
#include "sandbox/image/tree.h"

namespace orrery::sandbox::image {

class StoreFiles {
 public:
  explicit StoreFiles(std::string root) : root_(std::move(root)) {}

  const std::string& root() const { return root_; }
  std::string images() const { return root_ + "/images"; }
  std::string names() const { return root_ + "/names"; }
  std::string layers() const { return root_ + "/layers"; }
  std::string blobs() const { return root_ + "/blobs"; }
  std::string staging() const { return root_ + "/staging"; }
  std::string trash() const { return root_ + "/trash"; }
  std::string locks() const { return root_ + "/locks"; }
  std::string trash_lock() const { return root_ + "/trash.lock"; }
  std::string lock() const { return root_ + "/lock"; }
  std::string image(const std::string& id) const;
  std::string lease(const std::string& id) const;
  std::string name(const std::string& reference) const;
  std::string layer(const std::string& chain) const;       // chain: "sha256:..."
  std::string layer_tree(const std::string& chain) const;  // .../fs
  std::string layer_lock(const std::string& chain) const;
  std::string blob(const std::string& digest) const;

  absl::Status MakeFolders() const;
  // A new folder in staging.
  absl::StatusOr<std::string> MakeStaging() const;
  // Moves a folder or file to the trash, where EmptyTrash() deletes it.
  absl::Status Discard(const std::string& path) const;
  // Does nothing where another is at it.
  absl::Status EmptyTrash() const;

 private:
  std::string root_;
};

enum class LockMode { kShared, kExclusive };
// Waits; the lock is held as long as the descriptor.
absl::StatusOr<Fd> LockFile(const std::string& path, LockMode mode);
// Does not wait: nullopt where another holds it.
absl::StatusOr<std::optional<Fd>> TryLockFile(const std::string& path, LockMode mode);

struct ImageRecord {
  std::string id;
  ImageConfig config;
  std::vector<std::string> chains;  // lowest first
  int64_t created = 0;
  std::vector<std::string> notes;
};
absl::StatusOr<ImageRecord> ReadImage(const StoreFiles& files, const std::string& id);
absl::Status WriteImage(const StoreFiles& files, const ImageRecord& record);
// All records that can be read; what cannot be is left out, and named in `problems` where given.
absl::StatusOr<std::vector<ImageRecord>> ReadImages(const StoreFiles& files,
                                                    std::vector<std::string>* problems);

struct NameRecord {
  std::string reference, id;
};
absl::StatusOr<std::vector<NameRecord>> ReadNames(const StoreFiles& files,
                                                  std::vector<std::string>* problems);
absl::Status WriteName(const StoreFiles& files, const NameRecord& record);

struct LayerRecord {
  std::string chain, diff_id, index_hash;
  int64_t bytes = 0, files = 0;
  std::vector<std::string> notes;
};
absl::StatusOr<LayerRecord> ReadLayer(const StoreFiles& files, const std::string& chain);
std::string WriteLayerJson(const LayerRecord& record);

}  // namespace orrery::sandbox::image
