#include "sandbox/image/store_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "orchestrator/base/file.h"
#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"
#include "sandbox/image/digest.h"
#include "sandbox/image/json.h"

namespace orrery::sandbox::image {
namespace {

constexpr std::string_view kJson = ".json";

absl::Status MakePrivateFolder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoStatus("cannot make", path, errno);
  }
  return absl::OkStatus();
}

absl::StatusOr<Fd> OpenLock(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.ok()) return ErrnoStatus("cannot open", path, errno);
  return fd;
}

absl::StatusOr<rapidjson::Document> ReadJson(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseJson(text, path);
}

absl::Status BrokenRecord(const std::string& path) {
  return absl::DataLossError(
      fmt::format("{}: a broken record; remove the file and import the image again", path));
}

// The records of a folder, by the function that reads one.
template <typename Read>
absl::Status ReadFolder(const std::string& folder, std::vector<std::string>* problems,
                        const Read& read) {
  ASSIGN_OR_RETURN(const Fd fd, OpenFolder(folder));
  ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(fd.get()));
  for (const std::string& name : names) {
    if (!name.ends_with(kJson)) continue;
    const absl::Status status = read(name.substr(0, name.size() - kJson.size()));
    // Removed since it was listed is no problem.
    if (!status.ok() && !absl::IsNotFound(status) && problems != nullptr) {
      problems->push_back(StatusText(status));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<NameRecord> ReadName(const StoreFiles& files, const std::string& hash) {
  const std::string path = files.names() + "/" + hash + std::string(kJson);
  ASSIGN_OR_RETURN(const rapidjson::Document json, ReadJson(path));
  NameRecord record{StringOf(json, "reference"), StringOf(json, "id")};
  if (!IsDigest(record.id) || Sha256(record.reference) != hash) return BrokenRecord(path);
  return record;
}

std::string Finish(JsonWriter* json, const rapidjson::StringBuffer& buffer) {
  json->EndObject();
  return std::string(buffer.GetString(), buffer.GetSize()) + "\n";
}

}  // namespace

std::string StoreFiles::image(const std::string& id) const {
  return images() + "/" + HexOf(id) + std::string(kJson);
}
std::string StoreFiles::lease(const std::string& id) const {
  return images() + "/" + HexOf(id) + ".lease";
}
std::string StoreFiles::name(const std::string& reference) const {
  return names() + "/" + Sha256(reference) + std::string(kJson);
}
std::string StoreFiles::layer(const std::string& chain) const {
  return layers() + "/" + HexOf(chain);
}
std::string StoreFiles::layer_tree(const std::string& chain) const { return layer(chain) + "/fs"; }
std::string StoreFiles::layer_lock(const std::string& chain) const {
  return locks() + "/" + HexOf(chain);
}
std::string StoreFiles::blob(const std::string& digest) const {
  return blobs() + "/" + HexOf(digest);
}

absl::Status StoreFiles::MakeFolders() const {
  RETURN_IF_ERROR(MakePrivateFolder(root_));
  if (::chmod(root_.c_str(), 0700) != 0) return ErrnoStatus("cannot make private", root_, errno);
  for (const std::string& folder :
       {images(), names(), layers(), blobs(), staging(), trash(), locks()}) {
    RETURN_IF_ERROR(MakePrivateFolder(folder));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> StoreFiles::MakeStaging() const {
  std::string path = staging() + "/XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) return ErrnoStatus("cannot make", path, errno);
  return path;
}

absl::Status StoreFiles::Discard(const std::string& path) const {
  std::string slot = trash() + "/XXXXXX";
  if (::mkdtemp(slot.data()) == nullptr) return ErrnoStatus("cannot make", slot, errno);
  if (::rename(path.c_str(), (slot + "/it").c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus("cannot move to the trash", path, errno);
  }
  return absl::OkStatus();
}

absl::Status StoreFiles::EmptyTrash() const {
  ASSIGN_OR_RETURN(const std::optional<Fd> lock, TryLockFile(trash_lock(), LockMode::kExclusive));
  if (!lock.has_value()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Fd folder, OpenFolder(trash()));
  ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(folder.get()));
  for (const std::string& name : names) RETURN_IF_ERROR(RemoveTree(folder.get(), name));
  return absl::OkStatus();
}

absl::StatusOr<Fd> LockFile(const std::string& path, LockMode mode) {
  ASSIGN_OR_RETURN(Fd fd, OpenLock(path));
  while (::flock(fd.get(), mode == LockMode::kShared ? LOCK_SH : LOCK_EX) != 0) {
    if (errno != EINTR) return ErrnoStatus("cannot lock", path, errno);
  }
  return fd;
}

absl::StatusOr<std::optional<Fd>> TryLockFile(const std::string& path, LockMode mode) {
  ASSIGN_OR_RETURN(Fd fd, OpenLock(path));
  const int operation = (mode == LockMode::kShared ? LOCK_SH : LOCK_EX) | LOCK_NB;
  while (::flock(fd.get(), operation) != 0) {
    if (errno == EWOULDBLOCK) return std::nullopt;
    if (errno != EINTR) return ErrnoStatus("cannot lock", path, errno);
  }
  return std::optional<Fd>(std::move(fd));
}

absl::StatusOr<ImageRecord> ReadImage(const StoreFiles& files, const std::string& id) {
  const std::string path = files.image(id);
  ASSIGN_OR_RETURN(const rapidjson::Document json, ReadJson(path));
  ImageRecord record;
  record.id = StringOf(json, "id");
  record.created = NumberOf(json, "created");
  ASSIGN_OR_RETURN(record.config.env, StringsOf(json, "env", path));
  record.config.user = StringOf(json, "user");
  record.config.working_dir = StringOf(json, "working_dir");
  record.config.architecture = StringOf(json, "architecture");
  ASSIGN_OR_RETURN(record.chains, StringsOf(json, "layers", path));
  ASSIGN_OR_RETURN(record.notes, StringsOf(json, "notes", path));
  for (const std::string& chain : record.chains) {
    if (!IsDigest(chain)) return BrokenRecord(path);
  }
  if (record.id != id || record.chains.empty()) return BrokenRecord(path);
  return record;
}

absl::Status WriteImage(const StoreFiles& files, const ImageRecord& record) {
  rapidjson::StringBuffer buffer;
  JsonWriter json(buffer);
  json.StartObject();
  WriteString(&json, "id", record.id);
  json.Key("created");
  json.Int64(record.created);
  WriteStrings(&json, "env", record.config.env);
  WriteString(&json, "user", record.config.user);
  WriteString(&json, "working_dir", record.config.working_dir);
  WriteString(&json, "architecture", record.config.architecture);
  WriteStrings(&json, "layers", record.chains);
  WriteStrings(&json, "notes", record.notes);
  return WriteFileAtomically(files.image(record.id), Finish(&json, buffer));
}

absl::StatusOr<std::vector<ImageRecord>> ReadImages(const StoreFiles& files,
                                                    std::vector<std::string>* problems) {
  std::vector<ImageRecord> records;
  RETURN_IF_ERROR(ReadFolder(files.images(), problems, [&](const std::string& hex) {
    const std::string id = std::string(kDigestPrefix) + hex;
    if (!IsDigest(id)) return BrokenRecord(files.images() + "/" + hex);
    ASSIGN_OR_RETURN(ImageRecord record, ReadImage(files, id));
    records.push_back(std::move(record));
    return absl::OkStatus();
  }));
  return records;
}

absl::StatusOr<std::vector<NameRecord>> ReadNames(const StoreFiles& files,
                                                  std::vector<std::string>* problems) {
  std::vector<NameRecord> records;
  RETURN_IF_ERROR(ReadFolder(files.names(), problems, [&](const std::string& hash) {
    ASSIGN_OR_RETURN(NameRecord record, ReadName(files, hash));
    records.push_back(std::move(record));
    return absl::OkStatus();
  }));
  return records;
}

absl::Status WriteName(const StoreFiles& files, const NameRecord& record) {
  rapidjson::StringBuffer buffer;
  JsonWriter json(buffer);
  json.StartObject();
  WriteString(&json, "reference", record.reference);
  WriteString(&json, "id", record.id);
  return WriteFileAtomically(files.name(record.reference), Finish(&json, buffer));
}

absl::StatusOr<LayerRecord> ReadLayer(const StoreFiles& files, const std::string& chain) {
  const std::string path = files.layer(chain) + "/layer.json";
  ASSIGN_OR_RETURN(const rapidjson::Document json, ReadJson(path));
  LayerRecord record;
  record.chain = StringOf(json, "chain");
  record.diff_id = StringOf(json, "diff_id");
  record.index_hash = StringOf(json, "index_hash");
  record.bytes = NumberOf(json, "bytes");
  record.files = NumberOf(json, "files");
  ASSIGN_OR_RETURN(record.notes, StringsOf(json, "notes", path));
  if (record.chain != chain || !IsDigest(record.diff_id)) return BrokenRecord(path);
  return record;
}

std::string WriteLayerJson(const LayerRecord& record) {
  rapidjson::StringBuffer buffer;
  JsonWriter json(buffer);
  json.StartObject();
  WriteString(&json, "chain", record.chain);
  WriteString(&json, "diff_id", record.diff_id);
  WriteString(&json, "index_hash", record.index_hash);
  json.Key("bytes");
  json.Int64(record.bytes);
  json.Key("files");
  json.Int64(record.files);
  WriteStrings(&json, "notes", record.notes);
  return Finish(&json, buffer);
}

}  // namespace orrery::sandbox::image
