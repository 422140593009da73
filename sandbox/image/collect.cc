#include "sandbox/image/collect.h"

#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "orchestrator/base/file.h"
#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"
#include "sandbox/image/digest.h"
#include "sandbox/image/tree_index.h"

namespace orrery::sandbox::image {
namespace {

constexpr size_t kMaxIndexBytes = size_t{4} << 30;

absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder) {
  ASSIGN_OR_RETURN(const Fd fd, OpenFolder(folder));
  return ListFolder(fd.get());
}

absl::Status Empty(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(folder));
  for (const std::string& name : names) RETURN_IF_ERROR(RemoveTree(folder + "/" + name));
  return absl::OkStatus();
}

absl::Status EmptyOfTemporaries(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(folder));
  for (const std::string& name : names) {
    if (name.find(".tmp-") != std::string::npos) RETURN_IF_ERROR(RemoveTree(folder + "/" + name));
  }
  return absl::OkStatus();
}

// A kill between a record and its lease leaves one without the other.
absl::Status RemoveStrayLeases(const StoreFiles& files) {
  constexpr std::string_view kSuffix = ".lease";
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(files.images()));
  const std::set<std::string> known(names.begin(), names.end());
  for (const std::string& name : names) {
    if (!name.ends_with(kSuffix)) continue;
    const std::string record = name.substr(0, name.size() - kSuffix.size()) + ".json";
    if (!known.contains(record)) RETURN_IF_ERROR(RemoveTree(files.images() + "/" + name));
  }
  return absl::OkStatus();
}

// Names whose image is not there: a kill in the middle of a removal.
absl::Status RemoveStrayNames(const StoreFiles& files) {
  ASSIGN_OR_RETURN(const std::vector<NameRecord> names, ReadNames(files, nullptr));
  for (const NameRecord& name : names) {
    struct stat status;
    if (::lstat(files.image(name.id).c_str(), &status) == 0) continue;
    RETURN_IF_ERROR(RemoveTree(files.name(name.reference)));
  }
  return absl::OkStatus();
}

bool IsLeased(const StoreFiles& files, const std::string& id) {
  const auto lock = TryLockFile(files.lease(id), LockMode::kExclusive);
  return !lock.ok() || !lock->has_value();
}

absl::StatusOr<int64_t> LayerBytes(const StoreFiles& files) {
  int64_t bytes = 0;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(files.layers()));
  for (const std::string& name : names) {
    const std::string chain = std::string(kDigestPrefix) + name;
    const auto record = IsDigest(chain) ? ReadLayer(files, chain) : NotFound("{}", name);
    if (record.ok()) bytes += record->bytes;
  }
  return bytes;
}

absl::StatusOr<int64_t> BlobBytes(const StoreFiles& files) {
  int64_t bytes = 0;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(files.blobs()));
  for (const std::string& name : names) {
    struct stat status;
    if (::lstat((files.blobs() + "/" + name).c_str(), &status) == 0) {
      bytes += status.st_blocks * 512;
    }
  }
  return bytes;
}

// Images from the first to go to the last: without a name, then least recently used.
absl::StatusOr<std::vector<ImageRecord>> InOrderOfGoing(const StoreFiles& files,
                                                        std::set<std::string>* nameless) {
  ASSIGN_OR_RETURN(std::vector<ImageRecord> records, ReadImages(files, nullptr));
  ASSIGN_OR_RETURN(const std::vector<NameRecord> names, ReadNames(files, nullptr));
  std::set<std::string> named;
  for (const NameRecord& name : names) named.insert(name.id);
  for (const ImageRecord& record : records) {
    if (!named.contains(record.id)) nameless->insert(record.id);
  }
  const auto key = [&](const ImageRecord& record) {
    struct stat status = {};
    ::stat(files.lease(record.id).c_str(), &status);
    return std::make_tuple(named.contains(record.id), status.st_mtim.tv_sec, status.st_mtim.tv_nsec,
                           record.id);
  };
  std::sort(records.begin(), records.end(),
            [&](const ImageRecord& a, const ImageRecord& b) { return key(a) < key(b); });
  return records;
}

absl::StatusOr<std::string> ReadIndex(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string compressed, ReadFile(path));
  const unsigned long long size = ZSTD_getFrameContentSize(compressed.data(), compressed.size());
  if (size > kMaxIndexBytes) return InvalidInput("{}: no index", path);
  std::string text(size, '\0');
  if (ZSTD_decompress(text.data(), text.size(), compressed.data(), compressed.size()) != size) {
    return InvalidInput("{}: broken", path);
  }
  return text;
}

std::string FirstDifference(const std::string& expected, const std::string& actual) {
  const size_t size = std::min(expected.size(), actual.size());
  const auto at = static_cast<size_t>(
      std::mismatch(expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(size),
                    actual.begin())
          .first -
      expected.begin());
  const auto line = [at](const std::string& text) {
    if (text.empty()) return std::string("nothing");
    const size_t begin = at == 0 ? 0 : text.rfind('\n', std::min(at, text.size()) - 1) + 1;
    return text.substr(begin, std::min(text.find('\n', begin), text.size()) - begin);
  };
  return fmt::format("was '{}', is '{}'", line(expected), line(actual));
}

absl::Status VerifyLayer(const StoreFiles& files, const std::string& chain, VerifyReport* report) {
  ASSIGN_OR_RETURN(const LayerRecord record, ReadLayer(files, chain));
  ASSIGN_OR_RETURN(const std::string expected, ReadIndex(files.layer(chain) + "/index.zst"));
  if (Sha256(expected) != record.index_hash) {
    return absl::DataLossError("its index is not the one it was written with");
  }
  ASSIGN_OR_RETURN(const Fd root, OpenFolder(files.layer_tree(chain)));
  ASSIGN_OR_RETURN(const TreeIndex index, IndexTree(root.get(), nullptr));
  report->files += index.files;
  if (index.text == expected) return absl::OkStatus();
  return absl::DataLossError("its tree has changed: " + FirstDifference(expected, index.text));
}

absl::Status VerifyLayers(const StoreFiles& files, VerifyReport* report) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(files.layers()));
  for (const std::string& name : names) {
    const std::string chain = std::string(kDigestPrefix) + name;
    ++report->layers;
    const absl::Status status = IsDigest(chain) ? VerifyLayer(files, chain, report)
                                                : InvalidInput("a stranger among the layers");
    if (!status.ok()) {
      report->problems.push_back(fmt::format("layer {}: {}", name, StatusText(status)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Sweep(const StoreFiles& files) {
  ASSIGN_OR_RETURN(const std::vector<std::string> staged, NamesIn(files.staging()));
  for (const std::string& name : staged) {
    RETURN_IF_ERROR(files.Discard(files.staging() + "/" + name));
  }
  RETURN_IF_ERROR(Empty(files.locks()));
  for (const std::string& folder : {files.images(), files.names()}) {
    RETURN_IF_ERROR(EmptyOfTemporaries(folder));
  }
  RETURN_IF_ERROR(RemoveStrayLeases(files));
  return RemoveStrayNames(files);
}

absl::Status RemoveImage(const StoreFiles& files, const std::string& id) {
  if (IsLeased(files, id)) {
    return Precondition("image {} is in use by a sandbox: end it first (`orrery sandbox ps`)", id);
  }
  ASSIGN_OR_RETURN(const std::vector<NameRecord> names, ReadNames(files, nullptr));
  for (const NameRecord& name : names) {
    if (name.id == id) RETURN_IF_ERROR(RemoveTree(files.name(name.reference)));
  }
  RETURN_IF_ERROR(RemoveTree(files.image(id)));
  RETURN_IF_ERROR(RemoveTree(files.lease(id)));
  RETURN_IF_ERROR(SyncPath(files.names()));
  return SyncPath(files.images());
}

absl::StatusOr<RemovedLayers> RemoveUnusedLayers(const StoreFiles& files) {
  std::vector<std::string> problems;
  ASSIGN_OR_RETURN(const std::vector<ImageRecord> records, ReadImages(files, &problems));
  // A record that cannot be read may need any layer.
  if (!problems.empty()) return absl::DataLossError(problems[0]);
  std::set<std::string> used;
  for (const ImageRecord& record : records) {
    for (const std::string& chain : record.chains) used.insert(HexOf(chain));
  }
  RemovedLayers removed;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(files.layers()));
  for (const std::string& name : names) {
    if (used.contains(name)) continue;
    const std::string chain = std::string(kDigestPrefix) + name;
    const auto record = IsDigest(chain) ? ReadLayer(files, chain) : NotFound("{}", name);
    RETURN_IF_ERROR(files.Discard(files.layers() + "/" + name));
    ++removed.layers;
    removed.bytes += record.ok() ? record->bytes : 0;
  }
  return removed;
}

absl::StatusOr<GcReport> Collect(const StoreFiles& files, std::optional<int64_t> budget_bytes) {
  RETURN_IF_ERROR(Sweep(files));
  GcReport report;
  ASSIGN_OR_RETURN(const int64_t blob_bytes, BlobBytes(files));
  RETURN_IF_ERROR(Empty(files.blobs()));
  report.freed_bytes = blob_bytes;
  std::set<std::string> nameless;
  ASSIGN_OR_RETURN(const std::vector<ImageRecord> records, InOrderOfGoing(files, &nameless));
  const auto drop_layers = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const RemovedLayers removed, RemoveUnusedLayers(files));
    report.removed_layers += removed.layers;
    report.freed_bytes += removed.bytes;
    ASSIGN_OR_RETURN(report.bytes, LayerBytes(files));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(drop_layers());
  const auto fits = [&] { return !budget_bytes.has_value() || report.bytes <= *budget_bytes; };
  for (const ImageRecord& record : records) {
    if (!nameless.contains(record.id) && fits()) break;
    if (IsLeased(files, record.id)) continue;
    RETURN_IF_ERROR(RemoveImage(files, record.id));
    report.removed_images.push_back(record.id);
    RETURN_IF_ERROR(drop_layers());
  }
  report.fits = fits();
  return report;
}

absl::StatusOr<VerifyReport> VerifyStore(const StoreFiles& files) {
  VerifyReport report;
  RETURN_IF_ERROR(VerifyLayers(files, &report));
  ASSIGN_OR_RETURN(const std::vector<ImageRecord> records, ReadImages(files, &report.problems));
  std::set<std::string> ids;
  for (const ImageRecord& record : records) {
    ++report.images;
    ids.insert(record.id);
    for (const std::string& chain : record.chains) {
      struct stat status;
      if (::lstat(files.layer_tree(chain).c_str(), &status) == 0) continue;
      report.problems.push_back(fmt::format("image {} lacks layer {}", record.id, chain));
    }
  }
  ASSIGN_OR_RETURN(const std::vector<NameRecord> names, ReadNames(files, &report.problems));
  for (const NameRecord& name : names) {
    if (ids.contains(name.id)) continue;
    report.problems.push_back(
        fmt::format("name '{}' stands for image {}, which is not there", name.reference, name.id));
  }
  return report;
}

}  // namespace orrery::sandbox::image
