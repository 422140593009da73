// Reading and writing the small files of control groups.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sandbox/protocol/descriptor.h"

namespace orrery::sandbox {

// `path` below `folder` (AT_FDCWD with a whole path).
absl::Status WriteGroupFile(int folder, const std::string& path, std::string_view text);
absl::StatusOr<std::string> ReadGroupFile(int folder, const std::string& path);
// An open one from its beginning.
absl::StatusOr<std::string> ReadGroupFile(const Descriptor& file);
// The number behind `key` in lines of "key number"; 0 where there is none.
int64_t ValueOf(std::string_view text, std::string_view key);

}  // namespace orrery::sandbox
