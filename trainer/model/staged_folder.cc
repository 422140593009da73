#include "trainer/model/staged_folder.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"

namespace orrery::model {

namespace fs = std::filesystem;

absl::StatusOr<std::unique_ptr<StagedFolder>> StagedFolder::Create(const std::string& target) {
  fs::path clean = fs::path(target).lexically_normal();
  if (!clean.has_filename()) clean = clean.parent_path();  // "out/" is "out"
  std::error_code error;
  if (fs::exists(clean, error) && !(fs::is_directory(clean, error) && fs::is_empty(clean, error))) {
    return Precondition("{}: exists already; give a new folder, or remove this one", target);
  }
  const std::string parent = clean.parent_path().string();
  if (!parent.empty()) RETURN_IF_ERROR(MakeFolders(parent));
  const std::string path = fmt::format("{}.tmp-{}", clean.string(), ::getpid());
  fs::remove_all(path, error);  // of a process of the same number that was killed
  RETURN_IF_ERROR(MakeFolders(path));
  return std::unique_ptr<StagedFolder>(new StagedFolder(clean.string(), path));
}

StagedFolder::~StagedFolder() {
  if (committed_) return;
  std::error_code error;
  fs::remove_all(path_, error);
}

absl::Status StagedFolder::Write(const std::string& name, std::string_view content) {
  return WriteFileAtomically(path_ + "/" + name, content);
}

absl::Status StagedFolder::Commit() {
  RETURN_IF_ERROR(SyncPath(path_));
  if (std::rename(path_.c_str(), target_.c_str()) != 0) {
    return ErrnoStatus("cannot rename onto", target_, errno);
  }
  committed_ = true;
  const std::string parent = fs::path(target_).parent_path().string();
  return SyncPath(parent.empty() ? "." : parent);
}

}  // namespace orrery::model
