// From data.source to a dataset: files, folders, hub names and the generated family.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "configs/experiment.h"
#include "orchestrator/data/dataset.h"

namespace orrery::data {

// Makes a file or folder on this machine of a source that begins with "hf:".
using SourceResolver = std::function<absl::StatusOr<std::string>(const std::string& source)>;

// Reads all rows (data.limit of them) and checks each. Errors name file, line, value and fix.
absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const configs::DataConfig& data,
                                                     const configs::StoryMathConfig& story_math,
                                                     uint64_t seed, const SourceResolver& resolver);

// The data files of `path` that hold `split`, sorted by name: the file itself, or those of a folder
// whose name begins with the split ("train.jsonl", "train-00000-of-00002.parquet") or that stand in
// a folder of its name. Where several subfolders have some, "main", "default" or "data" is taken,
// in this order.
absl::StatusOr<std::vector<std::string>> FindDataFiles(const std::string& path,
                                                       const std::string& split);

}  // namespace orrery::data
