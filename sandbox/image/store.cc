#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "sandbox/image/collect.h"
#include "sandbox/image/digest.h"
#include "sandbox/image/folder_tar.h"
#include "sandbox/image/history.h"
#include "sandbox/image/image.h"
#include "sandbox/image/import.h"
#include "sandbox/image/install.h"
#include "sandbox/image/manifest.h"
#include "sandbox/image/reference.h"
#include "sandbox/image/registry.h"
#include "sandbox/image/store_files.h"

namespace orrery::sandbox::image {
namespace {

constexpr size_t kFewestIdDigits = 6;

// A folder in staging that goes with its owner.
class Scratch {
 public:
  static absl::StatusOr<std::unique_ptr<Scratch>> Make(const StoreFiles& files) {
    ASSIGN_OR_RETURN(std::string path, files.MakeStaging());
    return std::unique_ptr<Scratch>(new Scratch(std::move(path)));
  }
  ~Scratch() { RemoveTree(path_).IgnoreError(); }
  const std::string& path() const { return path_; }

 private:
  explicit Scratch(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

std::vector<std::string> TreesOf(const StoreFiles& files, const std::vector<std::string>& chains) {
  std::vector<std::string> trees;
  for (const std::string& chain : chains) trees.push_back(files.layer_tree(chain));
  return trees;
}

// After the image's layers stand: a layer more for each repository, which hides its old git folder.
absl::Status CutHistories(const StoreFiles& files, const ImportOptions& options, NewImage* image,
                          std::vector<std::string>* chains) {
  for (size_t i = 0; i < chains->size(); ++i) {
    ASSIGN_OR_RETURN(const LayerRecord record, ReadLayer(files, (*chains)[i]));
    image->layers[i].diff_id = record.diff_id;
  }
  for (const HistoryCut& cut : options.history) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Scratch> scratch, Scratch::Make(files));
    ASSIGN_OR_RETURN(const CutRepository repository,
                     CutHistory(TreesOf(files, *chains), cut, scratch->path()));
    image->layers.push_back({.open = [repository] {
      return TarOfFolder(repository.folder, {.prefix = repository.prefix, .opaque = {""}});
    }});
    image->notes.push_back(repository.note);
    ASSIGN_OR_RETURN(*chains, InstallLayers(files, *image, options));
    ASSIGN_OR_RETURN(const LayerRecord record, ReadLayer(files, chains->back()));
    image->layers.back().diff_id = record.diff_id;
  }
  image->id.clear();  // another image than its config's digest says
  return absl::OkStatus();
}

absl::StatusOr<ImageRecord> InstallImage(const StoreFiles& files, NewImage image,
                                         const ImportOptions& options) {
  ASSIGN_OR_RETURN(std::vector<std::string> chains, InstallLayers(files, image, options));
  if (!options.history.empty()) {
    RETURN_IF_ERROR(CutHistories(files, options, &image, &chains));
  }
  return FinishImage(files, image, chains);
}

int64_t LastUse(const StoreFiles& files, const std::string& id) {
  struct stat status;
  return ::stat(files.lease(id).c_str(), &status) == 0 ? status.st_mtim.tv_sec : 0;
}

bool InUse(const StoreFiles& files, const std::string& id) {
  const auto lock = TryLockFile(files.lease(id), LockMode::kExclusive);
  return lock.ok() && !lock->has_value();
}

absl::StatusOr<ImageSummary> Summarize(const StoreFiles& files, const ImageRecord& record,
                                       const std::vector<NameRecord>& names) {
  ImageSummary summary;
  summary.id = record.id;
  summary.architecture = record.config.architecture;
  summary.created = record.created;
  summary.notes = record.notes;
  summary.num_layers = static_cast<int64_t>(record.chains.size());
  for (const std::string& chain : record.chains) {
    ASSIGN_OR_RETURN(const LayerRecord layer, ReadLayer(files, chain));
    summary.bytes += layer.bytes;
  }
  for (const NameRecord& name : names) {
    if (name.id == record.id) summary.names.push_back(name.reference);
  }
  std::sort(summary.names.begin(), summary.names.end());
  summary.used = LastUse(files, record.id);
  summary.in_use = InUse(files, record.id);
  return summary;
}

absl::StatusOr<ImageSummary> SummarizeNew(const StoreFiles& files,
                                          const absl::StatusOr<ImageRecord>& record) {
  if (!record.ok()) return record.status();
  ASSIGN_OR_RETURN(const std::vector<NameRecord> names, ReadNames(files, nullptr));
  return Summarize(files, *record, names);
}

// The hexadecimal digits of what may be an id or the beginning of one.
std::string IdDigits(const std::string& reference) {
  std::string digits = reference;
  if (digits.starts_with(kDigestPrefix)) digits.erase(0, kDigestPrefix.size());
  const bool hex = std::all_of(digits.begin(), digits.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
  });
  return hex && digits.size() >= kFewestIdDigits && digits.size() <= 64 ? digits : "";
}

absl::StatusOr<std::string> FindByDigits(const StoreFiles& files, const std::string& digits,
                                         const std::string& reference) {
  ASSIGN_OR_RETURN(const std::vector<ImageRecord> records, ReadImages(files, nullptr));
  std::string id;
  for (const ImageRecord& record : records) {
    if (!HexOf(record.id).starts_with(digits)) continue;
    if (!id.empty()) return InvalidInput("'{}' is the beginning of several images' ids", reference);
    id = record.id;
  }
  if (!id.empty()) return id;
  return NotFound(
      "there is no image '{}' in {}: `orrery sandbox images` lists them, `orrery "
      "sandbox import` and `pull` bring one",
      reference, files.root());
}

absl::StatusOr<std::string> FindId(const StoreFiles& files, const std::string& reference) {
  const std::string local = LocalName(reference);
  ASSIGN_OR_RETURN(const std::vector<NameRecord> names, ReadNames(files, nullptr));
  for (const NameRecord& name : names) {
    if (name.reference == local) return name.id;
  }
  const std::string digits = IdDigits(reference);
  return FindByDigits(files, digits.empty() ? "-" : digits, reference);
}

absl::Status CheckArchitecture(const ImageRecord& record, const std::string& reference,
                               bool emulate) {
  const std::string host = HostArchitecture();
  if (record.config.architecture == host || emulate) return absl::OkStatus();
  return Precondition(
      "image '{}' is for {}, this machine is {}: use an image for {} (pull it with --arch {}), or "
      "set emulate: true (--emulate) to run it under qemu, many times slower",
      reference, record.config.architecture, host, host, host);
}

absl::StatusOr<ImageRecord> FindImage(const StoreFiles& files, const std::string& reference,
                                      bool emulate) {
  ASSIGN_OR_RETURN(const std::string id, FindId(files, reference));
  ASSIGN_OR_RETURN(ImageRecord record, ReadImage(files, id));
  RETURN_IF_ERROR(CheckArchitecture(record, reference, emulate));
  return record;
}

// A name while the image has another; else the image with all its names, and what it alone used.
absl::Status RemoveReference(const StoreFiles& files, const std::string& reference) {
  ASSIGN_OR_RETURN(const std::string id, FindId(files, reference));
  const std::string local = LocalName(reference);
  ASSIGN_OR_RETURN(const std::vector<NameRecord> names, ReadNames(files, nullptr));
  const auto count = [&](bool same) {
    return std::count_if(names.begin(), names.end(), [&](const NameRecord& name) {
      return name.id == id && (name.reference == local) == same;
    });
  };
  if (count(true) > 0 && count(false) > 0) {
    RETURN_IF_ERROR(RemoveTree(files.name(local)));
    return SyncPath(files.names());
  }
  RETURN_IF_ERROR(RemoveImage(files, id));
  return RemoveUnusedLayers(files).status();
}

PreparedImage Prepare(const StoreFiles& files, const ImageRecord& record) {
  return {record.id, TreesOf(files, record.chains), record.config};
}

}  // namespace
}  // namespace orrery::sandbox::image

namespace orrery::sandbox {

using namespace image;  // NOLINT: this file is the door between the two

ImageStore::Lease::Lease(Lease&& other) noexcept
    : image_(std::move(other.image_)), fd_(std::exchange(other.fd_, -1)) {}

ImageStore::Lease& ImageStore::Lease::operator=(Lease&& other) noexcept {
  if (this == &other) return *this;
  if (fd_ >= 0) ::close(fd_);
  image_ = std::move(other.image_);
  fd_ = std::exchange(other.fd_, -1);
  return *this;
}

ImageStore::Lease::~Lease() {
  if (fd_ >= 0) ::close(fd_);
}

absl::StatusOr<std::unique_ptr<ImageStore>> ImageStore::Open(const std::string& root) {
  if (::geteuid() != 0) {
    return absl::PermissionDeniedError(
        "the image store needs root: layers keep their owners and whiteouts are device nodes");
  }
  const std::string absolute = std::filesystem::absolute(root).lexically_normal().string();
  RETURN_IF_ERROR(MakeFolders(std::filesystem::path(absolute).parent_path().string()));
  const StoreFiles files(absolute);
  RETURN_IF_ERROR(files.MakeFolders());
  // Whoever is bringing an image holds the lock shared; alone, all that is half done is garbage.
  ASSIGN_OR_RETURN(std::optional<Fd> alone, TryLockFile(files.lock(), LockMode::kExclusive));
  if (alone.has_value()) RETURN_IF_ERROR(Sweep(files));
  alone.reset();
  RETURN_IF_ERROR(files.EmptyTrash());
  return std::unique_ptr<ImageStore>(new ImageStore(absolute));
}

absl::StatusOr<ImageSummary> ImageStore::Import(const std::string& path,
                                                const ImportOptions& options) {
  const StoreFiles files(root_);
  ASSIGN_OR_RETURN(const Fd lock, LockFile(files.lock(), LockMode::kShared));
  ASSIGN_OR_RETURN(const std::unique_ptr<Scratch> scratch, Scratch::Make(files));
  ASSIGN_OR_RETURN(NewImage image, OpenImageSource(path, options, scratch->path()));
  if (!options.name.empty()) {
    RETURN_IF_ERROR(ParseReference(options.name).status());
    image.name = options.name;
  }
  image.name = LocalName(image.name);
  return SummarizeNew(files, InstallImage(files, std::move(image), options));
}

absl::StatusOr<ImageSummary> ImageStore::Pull(const std::string& text, const PullOptions& options) {
  ASSIGN_OR_RETURN(const Reference reference, ParseReference(text));
  const StoreFiles files(root_);
  ASSIGN_OR_RETURN(const Fd lock, LockFile(files.lock(), LockMode::kShared));
  ASSIGN_OR_RETURN(NewImage image, OpenRegistryImage(files, reference, options));
  if (!options.name.empty()) RETURN_IF_ERROR(ParseReference(options.name).status());
  image.name = LocalName(options.name.empty() ? text : options.name);
  return SummarizeNew(files, InstallImage(files, std::move(image), options));
}

absl::StatusOr<PreparedImage> ImageStore::Resolve(const std::string& reference,
                                                  bool emulate) const {
  const StoreFiles files(root_);
  ASSIGN_OR_RETURN(const ImageRecord record, FindImage(files, reference, emulate));
  return Prepare(files, record);
}

absl::StatusOr<ImageStore::Lease> ImageStore::Acquire(const std::string& reference,
                                                      bool emulate) const {
  const StoreFiles files(root_);
  // With the store's lock no image goes between its record and its lease.
  ASSIGN_OR_RETURN(const Fd lock, LockFile(files.lock(), LockMode::kShared));
  ASSIGN_OR_RETURN(const ImageRecord found, FindImage(files, reference, emulate));
  ASSIGN_OR_RETURN(Fd lease, LockFile(files.lease(found.id), LockMode::kShared));
  ASSIGN_OR_RETURN(const ImageRecord record, ReadImage(files, found.id));
  ::futimens(lease.get(), nullptr);
  return Lease(Prepare(files, record), lease.release());
}

absl::StatusOr<std::vector<ImageSummary>> ImageStore::List() const {
  const StoreFiles files(root_);
  ASSIGN_OR_RETURN(const std::vector<NameRecord> names, ReadNames(files, nullptr));
  ASSIGN_OR_RETURN(const std::vector<ImageRecord> records, ReadImages(files, nullptr));
  std::vector<ImageSummary> summaries;
  for (const ImageRecord& record : records) {
    absl::StatusOr<ImageSummary> summary = Summarize(files, record, names);
    if (summary.ok()) summaries.push_back(*std::move(summary));
  }
  std::sort(summaries.begin(), summaries.end(), [](const ImageSummary& a, const ImageSummary& b) {
    return std::tie(a.names, a.id) < std::tie(b.names, b.id);
  });
  return summaries;
}

absl::Status ImageStore::Remove(const std::string& reference) {
  const StoreFiles files(root_);
  {
    ASSIGN_OR_RETURN(const Fd lock, LockFile(files.lock(), LockMode::kExclusive));
    RETURN_IF_ERROR(RemoveReference(files, reference));
  }
  return files.EmptyTrash();
}

absl::StatusOr<GcReport> ImageStore::Gc(std::optional<int64_t> budget_bytes) {
  const StoreFiles files(root_);
  ASSIGN_OR_RETURN(Fd lock, LockFile(files.lock(), LockMode::kExclusive));
  ASSIGN_OR_RETURN(GcReport report, Collect(files, budget_bytes));
  lock = Fd();
  RETURN_IF_ERROR(files.EmptyTrash());
  return report;
}

absl::StatusOr<VerifyReport> ImageStore::Verify() const {
  const StoreFiles files(root_);
  ASSIGN_OR_RETURN(const Fd lock, LockFile(files.lock(), LockMode::kShared));
  return VerifyStore(files);
}

}  // namespace orrery::sandbox
