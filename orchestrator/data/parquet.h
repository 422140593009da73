// Rows from Parquet files, the format of datasets on the Hugging Face hub. Arrow's headers and
// types stay in parquet.cc. Errors name file and row. Safe from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "orchestrator/data/row_mapper.h"
#include "orchestrator/types.h"

namespace orrery::data {

// Appends the rows of the file to `rows`, no more than `limit` in all (0: no limit). An error where
// this build has no Arrow.
absl::Status ReadParquetRows(const std::string& path, const RowMapper& mapper, int64_t limit,
                             std::vector<Prompt>& rows);

}  // namespace orrery::data
