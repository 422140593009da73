// class Checkpoint: one file, or an index and its shards.
#include <fmt/ranges.h>
#include <rapidjson/document.h>
#include <rapidjson/error/en.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "orchestrator/base/status.h"
#include "trainer/model/safetensors.h"

namespace orrery::model {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";

bool IsFile(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// Names that an index maps to the file they are in.
using WeightMap = std::map<std::string, std::string>;

absl::Status ReadWeight(const rapidjson::Value& name, const rapidjson::Value& file,
                        const std::string& path, WeightMap& map) {
  const std::string tensor(name.GetString(), name.GetStringLength());
  if (!file.IsString()) {
    return InvalidInput("{}: weight_map: tensor '{}': not a file name", path, Printable(tensor));
  }
  const std::string shard(file.GetString(), file.GetStringLength());
  // A shard lies beside its index; anything else would read files the user did not name.
  if (shard.empty() || shard == "." || shard == ".." || shard.find('/') != std::string::npos ||
      shard.find('\0') != std::string::npos) {
    return InvalidInput(
        "{}: weight_map: tensor '{}' is said to be in '{}', which is not the name of "
        "a file beside the index",
        path, Printable(tensor), Printable(shard));
  }
  if (!map.emplace(tensor, shard).second) {
    return InvalidInput("{}: weight_map: tensor '{}' stands there twice", path, Printable(tensor));
  }
  return absl::OkStatus();
}

absl::StatusOr<WeightMap> ReadIndex(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  rapidjson::Document json;
  json.Parse<rapidjson::kParseIterativeFlag | rapidjson::kParseValidateEncodingFlag>(text.data(),
                                                                                     text.size());
  if (json.HasParseError()) {
    return InvalidInput("{}: not JSON: {} at byte {}", path,
                        rapidjson::GetParseError_En(json.GetParseError()), json.GetErrorOffset());
  }
  if (!json.IsObject() || !json.HasMember("weight_map") || !json["weight_map"].IsObject()) {
    return InvalidInput("{}: has no object \"weight_map\" (tensor name to file name)", path);
  }
  WeightMap map;
  for (const auto& member : json["weight_map"].GetObject()) {
    RETURN_IF_ERROR(ReadWeight(member.name, member.value, path, map));
  }
  if (map.empty()) return InvalidInput("{}: \"weight_map\" names no tensor", path);
  return map;
}

absl::Status NoWeights(const fs::path& folder) {
  for (const std::string_view other : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (IsFile(folder / other)) {
      return NotFound(
          "{}: holds {} but no {}: save it again as safetensors "
          "(save_pretrained(..., safe_serialization=True))",
          folder.string(), other, kSingleFile);
    }
  }
  return NotFound(
      "{}: holds neither {} nor {}; give a Hugging Face model folder, or turn a GGUF into "
      "one with 'orrery import FILE.gguf'",
      folder.string(), kSingleFile, kIndexFile);
}

// How many letters two names have in common at the front and at the back.
size_t Likeness(std::string_view a, std::string_view b) {
  const size_t shorter = std::min(a.size(), b.size());
  size_t front = 0;
  while (front < shorter && a[front] == b[front]) ++front;
  size_t back = 0;
  while (back < shorter - front && a[a.size() - 1 - back] == b[b.size() - 1 - back]) ++back;
  return front + back;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint(path));
  const fs::path folder(path);
  std::error_code error;
  if (!fs::exists(folder, error)) return NotFound("{}: no such file or folder", path);
  if (!fs::is_directory(folder, error)) {
    RETURN_IF_ERROR(checkpoint->AddFile(path));
  } else if (IsFile(folder / kSingleFile)) {
    RETURN_IF_ERROR(checkpoint->AddFile((folder / kSingleFile).string()));
  } else if (IsFile(folder / kIndexFile)) {
    RETURN_IF_ERROR(checkpoint->AddShards((folder / kIndexFile).string()));
  } else {
    return NoWeights(folder);
  }
  return checkpoint;
}

absl::Status Checkpoint::AddFile(const std::string& file_path) {
  ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file, SafetensorsFile::Open(file_path));
  names_ = file->names();
  for (const std::string& name : names_) tensors_[name] = file->Find(name);
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status Checkpoint::AddShards(const std::string& index_path) {
  ASSIGN_OR_RETURN(const WeightMap map, ReadIndex(index_path));
  std::map<std::string, const SafetensorsFile*> shards;
  for (const auto& [name, shard] : map) {
    if (!shards.contains(shard)) {
      const fs::path path = fs::path(index_path).parent_path() / shard;
      if (!IsFile(path)) {
        return NotFound("{}: tensor '{}' is in {}, which is missing: fetch it again", index_path,
                        Printable(name), path.string());
      }
      ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file, SafetensorsFile::Open(path.string()));
      shards[shard] = file.get();
      files_.push_back(std::move(file));
    }
    const FileTensor* tensor = shards[shard]->Find(name);
    if (tensor == nullptr) {
      return InvalidInput(
          "{}: tensor '{}' is said to be in {}, which does not hold it: index and "
          "shards are of different checkpoints",
          index_path, Printable(name), shards[shard]->path());
    }
    tensors_[name] = tensor;
    names_.push_back(name);
  }
  return absl::OkStatus();
}

const FileTensor* Checkpoint::Find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second;
}

absl::StatusOr<FileTensor> Checkpoint::Get(const std::string& name) const {
  if (const FileTensor* tensor = Find(name)) return *tensor;
  const auto nearest = std::max_element(
      names_.begin(), names_.end(),
      [&](const auto& a, const auto& b) { return Likeness(a, name) < Likeness(b, name); });
  return NotFound(
      "{}: has no tensor '{}' (it has {} tensors{})", path_, Printable(name), names_.size(),
      nearest == names_.end() ? std::string()
                              : fmt::format(", the nearest is '{}'", Printable(*nearest)));
}

}  // namespace orrery::model
