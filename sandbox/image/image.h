// The content-addressed store of images that sandboxes run on. On disk, all of it mode 0700 and
// root's:
//
//   ROOT/images/ID.json    what an image is made of; ID.lease, locked shared while a sandbox runs
//   it ROOT/names/HASH.json   a reference and the image it stands for ROOT/layers/CHAIN/fs   an
//   unpacked layer in overlayfs form (whiteouts are character devices
//                          0/0, opaque directories carry trusted.overlay.opaque=y: mount the
//                          overlay without `userxattr`); CHAIN/layer.json and CHAIN/index for
//                          Verify()
//   ROOT/blobs/DIGEST      what a pull has fetched of a layer that is not unpacked yet; resumed
//   ROOT/staging, trash    being made, being deleted: worthless after a crash, swept by Open()
//
// CHAIN is the OCI chain id (the layer and all below it), so that images with a common base share
// it, and a layer may depend on what lies below: parents that its archive does not name keep the
// lower layer's attributes, and whiteouts of nothing vanish. Names come into being by rename(2) of
// what is complete and synced; the staging folder is the journal, so a kill at any moment leaves
// an image whole or absent. Whole layers and fetched bytes of an image that was interrupted stay
// for the next try, until Gc().
//
// In a prepared image /proc, /sys and /dev are directories, never links; no device node exists
// besides whiteouts; owners are the image's own numbers, 0..65535, ready for an idmapped mount.
//
// Any thread, any number of processes on one store. Root is required. Errors are absl::Status with
// the place and the fix; an image of another architecture is refused unless `emulate`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orrery::sandbox {

struct ImageConfig {
  std::vector<std::string> env;  // "NAME=value"
  std::string user;              // "", "name", "uid", "uid:gid", as in an image's User
  std::string working_dir;       // "" is "/"
  std::string architecture;      // as OCI says it: "amd64", "arm64"

  bool operator==(const ImageConfig&) const = default;
};

struct PreparedImage {
  std::string id;                   // "sha256:..."
  std::vector<std::string> layers;  // absolute paths of unpacked read-only layers, lowest first
  ImageConfig config;

  bool operator==(const PreparedImage&) const = default;
};

// What an archive may do at most before it is taken for a bomb.
struct UnpackLimits {
  int64_t max_bytes = int64_t{64} << 30;  // of one layer, holes of sparse files included
  int64_t max_image_bytes = int64_t{256} << 30;
  int64_t max_entries = 4'000'000;  // of one layer
  int64_t max_layers = 512;
  // Uncompressed to compressed, once more than `ratio_free_bytes` came out.
  int64_t max_ratio = 1000;
  int64_t ratio_free_bytes = int64_t{1} << 30;
};

// In a git repository inside an image, nothing newer than `base_commit`: no ref, tag, reflog or
// object that it does not reach.
struct HistoryCut {
  std::string path;         // of the working tree, or of a bare repository: "/testbed"
  std::string base_commit;  // full hexadecimal; empty: what HEAD is
};

struct ImageProgress {
  std::string_view what;  // "layer 2 of 5"
  int64_t bytes = 0;      // fetched or read so far
  int64_t total = -1;     // -1: unknown
};

struct ImportOptions {
  std::string name;          // a reference for it; empty: what the archive says, or its file's name
  std::string architecture;  // chooses in an index; names that of a root file system; empty: host
  UnpackLimits limits;
  // Only where the source is a root file system, which says none of it.
  ImageConfig config;
  // Device nodes below /dev are always left out (the sandbox mounts its own); with this all are,
  // otherwise one elsewhere is an error.
  bool drop_devices = false;
  // Owners beyond 65535 become 65534 instead of an error.
  bool squash_owners = false;
  std::vector<HistoryCut> history;
  int threads = 0;  // 0: one a CPU, at most 8
  std::function<void(const ImageProgress&)> progress;
};

struct PullOptions : ImportOptions {
  std::string user, password;  // empty: $REGISTRY_AUTH_FILE or ~/.docker/config.json
  bool plain_http = false;     // always allowed for a registry on this machine
  // Replaced in tests: pauses between tries.
  std::function<void(int64_t milliseconds)> sleep;
};

struct ImageSummary {
  std::string id;
  std::vector<std::string> names;
  std::string architecture;
  int64_t bytes = 0;  // on disk; layers shared with another image count for both
  int64_t num_layers = 0;
  int64_t created = 0;  // seconds since 1970: when it came into the store
  int64_t used = 0;     // when a sandbox last took it
  bool in_use = false;
  std::vector<std::string> notes;  // what unpacking left out: "3 device nodes below /dev"
};

struct GcReport {
  std::vector<std::string> removed_images;
  int64_t removed_layers = 0;
  int64_t freed_bytes = 0;
  int64_t bytes = 0;  // what the store holds now
  bool fits = true;   // the budget is met; not where running sandboxes hold too much
};

struct VerifyReport {
  int64_t images = 0, layers = 0, files = 0;
  std::vector<std::string> problems;  // empty: all is as it was unpacked
};

class ImageStore {
 public:
  // Holds an image in the store: neither Remove() nor Gc() takes it, in any process, until the
  // lease is gone or its process dead. Movable; may outlive the ImageStore.
  class Lease {
   public:
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    ~Lease();
    const PreparedImage& image() const { return image_; }

   private:
    friend class ImageStore;
    Lease(PreparedImage image, int fd) : image_(std::move(image)), fd_(fd) {}
    PreparedImage image_;
    int fd_;
  };

  // Makes the folder where there is none, and sweeps what a dead process left.
  static absl::StatusOr<std::unique_ptr<ImageStore>> Open(const std::string& root);

  // An OCI layout (folder or tar), a docker-archive tar, a tar of a root file system (plain, gzip,
  // zstd) or a folder that is one.
  absl::StatusOr<ImageSummary> Import(const std::string& path, const ImportOptions& options = {});
  // "[HOST[:PORT]/]NAME[:TAG][@sha256:...]" from a registry; without a host, docker.io.
  absl::StatusOr<ImageSummary> Pull(const std::string& reference, const PullOptions& options = {});

  // By name, "sha256:..." or the first 6 or more digits of it.
  absl::StatusOr<PreparedImage> Resolve(const std::string& reference, bool emulate = false) const;
  absl::StatusOr<Lease> Acquire(const std::string& reference, bool emulate = false) const;

  absl::StatusOr<std::vector<ImageSummary>> List() const;
  // A name; the image goes with its last name, and by its id with all of them. Precondition error
  // where a sandbox runs it. Like Gc() it waits until imports and pulls that are under way have
  // ended.
  absl::Status Remove(const std::string& reference);
  // Images without a name, layers of no image, then least recently used images until what is left
  // fits the budget.
  absl::StatusOr<GcReport> Gc(std::optional<int64_t> budget_bytes);
  absl::StatusOr<VerifyReport> Verify() const;

  const std::string& root() const { return root_; }

 private:
  explicit ImageStore(std::string root) : root_(std::move(root)) {}
  std::string root_;  // absolute
};

// This machine's architecture as OCI says it: "amd64", "arm64".
std::string HostArchitecture();

}  // namespace orrery::sandbox
