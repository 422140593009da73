// Whole files into memory, plain or compressed. Which it is, is seen from the first bytes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace orrery::data {

// More than this in one file is refused: rows are kept in memory.
inline constexpr size_t kMaxDataBytes = size_t{16} << 30;

// gzip (several members too) and Zstandard (several frames too) are unpacked, anything else is
// returned as it is. A broken or truncated stream is an error that says so; `name` is for messages.
absl::StatusOr<std::string> Unpack(std::string bytes, const std::string& name,
                                   size_t max_bytes = kMaxDataBytes);

absl::StatusOr<std::string> ReadDataFile(const std::string& path);

}  // namespace orrery::data
