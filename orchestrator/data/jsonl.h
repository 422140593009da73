// Rows from JSON files: an object a line, or one list of objects. Each error names file and line.
// Free functions, safe from any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "orchestrator/data/row_mapper.h"
#include "orchestrator/types.h"

namespace orrery::data {

// Appends the rows of `text` to `rows`, no more than `limit` in all (0: no limit). Empty lines are
// skipped. `name` is for messages.
absl::Status ParseJsonRows(std::string_view text, const std::string& name, const RowMapper& mapper,
                           int64_t limit, std::vector<Prompt>& rows);

// The same from a file, which may be compressed with gzip or Zstandard.
absl::Status ReadJsonRows(const std::string& path, const RowMapper& mapper, int64_t limit,
                          std::vector<Prompt>& rows);

}  // namespace orrery::data
