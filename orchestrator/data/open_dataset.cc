#include "orchestrator/data/open_dataset.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <string_view>

#include "orchestrator/base/status.h"
#include "orchestrator/data/jsonl.h"
#include "orchestrator/data/parquet.h"
#include "orchestrator/data/row_mapper.h"
#include "orchestrator/data/story_math.h"

namespace orrery::data {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxFolderDepth = 3;

bool IsParquet(std::string_view path) { return path.ends_with(".parquet"); }

bool IsDataFile(std::string_view path) {
  for (const char* packed : {".gz", ".zst"}) {
    if (path.ends_with(packed)) path.remove_suffix(std::string_view(packed).size());
  }
  return path.ends_with(".jsonl") || path.ends_with(".json") || IsParquet(path);
}

// "train.jsonl" and "train-00000-of-00001.parquet", but not "training.jsonl".
bool HasSplitName(std::string_view file_name, std::string_view split) {
  if (file_name.size() <= split.size() || !file_name.starts_with(split)) return false;
  const auto next = static_cast<unsigned char>(file_name[split.size()]);
  return !std::isalnum(next);
}

absl::StatusOr<std::vector<fs::path>> ListDataFiles(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error), end;
  while (!error && it != end) {
    std::error_code ignored;
    const std::string name = it->path().filename().string();
    if (it->is_directory(ignored)) {
      if (name.starts_with('.') || it.depth() + 1 >= kMaxFolderDepth)
        it.disable_recursion_pending();
    } else if (IsDataFile(name) && !name.starts_with('.')) {
      files.push_back(it->path());
    }
    it.increment(error);
  }
  if (error)
    return InvalidInput("{}: cannot list the folder: {}", folder.string(), error.message());
  std::sort(files.begin(), files.end());
  return files;
}

std::string Names(const std::vector<fs::path>& files, const fs::path& folder) {
  std::string names;
  for (size_t i = 0; i < files.size(); ++i) {
    if (i == 8) return names + ", ...";
    names += (i == 0 ? "" : ", ") + files[i].lexically_relative(folder).string();
  }
  return names.empty() ? "no .jsonl, .json or .parquet file" : names;
}

// Files that belong together: of one folder (that of the split itself left out) and one format.
using Groups = std::map<std::pair<fs::path, bool>, std::vector<fs::path>>;

Groups GroupFiles(const std::vector<fs::path>& files, const std::string& split) {
  Groups groups;
  for (const fs::path& file : files) {
    const bool in_split_folder = file.parent_path().filename() == split;
    if (!in_split_folder && !HasSplitName(file.filename().string(), split)) continue;
    const fs::path home = in_split_folder ? file.parent_path().parent_path() : file.parent_path();
    groups[{home, IsParquet(file.string())}].push_back(file);
  }
  return groups;
}

const std::vector<fs::path>* Preferred(const Groups& groups) {
  if (groups.size() == 1) return &groups.begin()->second;
  for (const char* name : {"main", "default", "data"}) {
    const std::vector<fs::path>* found = nullptr;
    int count = 0;
    for (const auto& [key, files] : groups) {
      if (key.first.filename() != name) continue;
      found = &files;
      ++count;
    }
    if (count == 1) return found;
  }
  return nullptr;
}

absl::StatusOr<std::string> LocalPath(const std::string& source, const SourceResolver& resolver) {
  if (!source.starts_with("hf:")) return source;
  if (resolver == nullptr) return InvalidInput("data.source: '{}' needs the hub", source);
  return resolver(source);
}

absl::Status ReadRows(const std::string& file, const RowMapper& mapper, int64_t limit,
                      std::vector<Prompt>& rows) {
  return IsParquet(file) ? ReadParquetRows(file, mapper, limit, rows)
                         : ReadJsonRows(file, mapper, limit, rows);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FindDataFiles(const std::string& path,
                                                       const std::string& split) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    return NotFound("data.source: there is no file or folder '{}'", path);
  }
  if (!fs::is_directory(path, error)) return std::vector<std::string>{path};
  ASSIGN_OR_RETURN(const std::vector<fs::path> files, ListDataFiles(path));
  const Groups groups = GroupFiles(files, split);
  if (groups.empty()) {
    return InvalidInput(
        "data.source: the folder {} has no files of the split '{}'; it has: {}; set "
        "data.split or name a file",
        path, split, Names(files, path));
  }
  const std::vector<fs::path>* chosen = Preferred(groups);
  if (chosen == nullptr) {
    std::vector<fs::path> firsts;
    for (const auto& [key, members] : groups) firsts.push_back(members.front());
    return InvalidInput(
        "data.source: the folder {} has several sets of the split '{}': {}; name "
        "the folder or file of one",
        path, split, Names(firsts, path));
  }
  std::vector<std::string> names;
  for (const fs::path& file : *chosen) names.push_back(file.string());
  return names;
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const configs::DataConfig& data,
                                                     const configs::StoryMathConfig& story_math,
                                                     uint64_t seed,
                                                     const SourceResolver& resolver) {
  if (data.source == "story_math") return StoryMath::Make(story_math, data, seed);
  if (data.source.empty()) return InvalidInput("data.source: is missing; name a file or folder");
  ASSIGN_OR_RETURN(const std::string path, LocalPath(data.source, resolver));
  ASSIGN_OR_RETURN(const std::vector<std::string> files, FindDataFiles(path, data.split));
  const RowMapper mapper(data);
  std::vector<Prompt> rows;
  for (const std::string& file : files) {
    RETURN_IF_ERROR(ReadRows(file, mapper, data.limit, rows));
  }
  if (rows.empty()) return InvalidInput("{}: there are no rows; add some", files.front());
  return std::make_unique<MemoryDataset>(std::move(rows));
}

}  // namespace orrery::data
