#include "orchestrator/hub/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <thread>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"

namespace orrery::hub {

namespace fs = std::filesystem;

bool IsCommit(std::string_view revision) {
  return revision.size() == 40 && std::all_of(revision.begin(), revision.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

RepoCache::RepoCache(const std::string& cache, Kind kind, const std::string& repo) {
  std::string name = kind == Kind::kModel ? "models--" : "datasets--";
  for (const char c : repo) name += c == '/' ? "--" : std::string(1, c);
  folder_ = cache + "/" + name;
  locks_ = cache + "/.locks/" + name;
}

std::optional<std::string> RepoCache::Commit(const std::string& revision) const {
  if (IsCommit(revision)) return revision;
  const auto content = ReadFile(folder_ + "/refs/" + revision);
  if (!content.ok()) return std::nullopt;
  std::string commit = *content;
  while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back()))) {
    commit.pop_back();
  }
  if (!IsCommit(commit)) return std::nullopt;
  return commit;
}

std::string RepoCache::Snapshot(const std::string& commit) const {
  return folder_ + "/snapshots/" + commit;
}

std::string RepoCache::SnapshotFile(const std::string& commit, const std::string& path) const {
  return Snapshot(commit) + "/" + path;
}

std::string RepoCache::Blob(const std::string& hash) const { return folder_ + "/blobs/" + hash; }

std::string RepoCache::Lock(const std::string& hash) const { return locks_ + "/" + hash + ".lock"; }

absl::Status RepoCache::WriteRef(const std::string& revision, const std::string& commit) const {
  const fs::path path = fs::path(folder_) / "refs" / revision;
  RETURN_IF_ERROR(MakeFolders(path.parent_path().string()));
  return WriteFileAtomically(path.string(), commit);
}

absl::Status RepoCache::Link(const std::string& commit, const std::string& path,
                             const std::string& hash) const {
  const fs::path link = SnapshotFile(commit, path);
  RETURN_IF_ERROR(MakeFolders(link.parent_path().string()));
  // Relative, so that the cache may be moved: up from the file's folder to the repository's.
  std::string target = "../../";
  for (const char c : path) target += c == '/' ? "../" : "";
  target += "blobs/" + hash;
  const std::string temporary = fmt::format("{}.tmp-{}", link.string(), ::getpid());
  ::unlink(temporary.c_str());
  if (::symlink(target.c_str(), temporary.c_str()) != 0) {
    return ErrnoStatus("cannot make link", temporary, errno);
  }
  if (::rename(temporary.c_str(), link.c_str()) != 0) {
    const int error_number = errno;
    ::unlink(temporary.c_str());
    return ErrnoStatus("cannot rename onto", link.string(), error_number);
  }
  return absl::OkStatus();
}

absl::StatusOr<FileLock> FileLock::Acquire(const std::string& path) {
  RETURN_IF_ERROR(MakeFolders(fs::path(path).parent_path().string()));
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus("cannot open lock", path, errno);
  while (::flock(fd, LOCK_EX) != 0) {
    if (errno == EINTR) continue;
    const int error_number = errno;
    ::close(fd);
    return ErrnoStatus("cannot lock", path, error_number);
  }
  return FileLock(fd);
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);  // which unlocks
}

}  // namespace orrery::hub
