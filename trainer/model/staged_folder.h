// StagedFolder: a folder that appears under its name complete or not at all. Files are written into
// path(); Commit() syncs and renames; without Commit() the destructor removes everything. The owner
// of the object owns the temporary folder.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orrery::model {

class StagedFolder {
 public:
  // Refused where `target` exists and is anything but an empty folder.
  static absl::StatusOr<std::unique_ptr<StagedFolder>> Create(const std::string& target);
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  const std::string& path() const { return path_; }
  absl::Status Write(const std::string& name, std::string_view content);
  absl::Status Commit();

 private:
  StagedFolder(std::string target, std::string path)
      : target_(std::move(target)), path_(std::move(path)) {}

  std::string target_;
  std::string path_;
  bool committed_ = false;
};

}  // namespace orrery::model
