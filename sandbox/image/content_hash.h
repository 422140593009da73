// The hash by which the store knows a file's content again: SHA-256 over the 64 KiB blocks that are
// not all zeros, each preceded by its number, and the size. Holes cost nothing, and a file has one
// hash however its holes lie.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace orrery::sandbox::image {

std::string HashContent(std::string_view content);

// `path` is for messages.
absl::StatusOr<std::string> HashFile(int fd, const std::string& path);

}  // namespace orrery::sandbox::image
