#include "trainer/model/safetensors.h"

#include <fmt/ranges.h>
#include <rapidjson/document.h>
#include <rapidjson/error/en.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "orchestrator/base/status.h"

namespace orrery::model {
namespace {

// The limit of the reference implementation; no header of a real checkpoint comes near it.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kLengthBytes = 8;

// Begin and end within the data part of the file.
struct Extent {
  std::string name;
  uint64_t begin = 0;
  uint64_t end = 0;
};

std::string_view Text(const rapidjson::Value& value) {
  return {value.GetString(), value.GetStringLength()};
}

// Where messages say something is wrong: a tensor of a file.
struct Place {
  const std::string& path;
  std::string_view name;
};

template <typename... Args>
absl::Status BadTensor(const Place& place, fmt::format_string<Args...> format, Args&&... args) {
  return InvalidInput("{}: tensor '{}': {} (the file is damaged: fetch or write it again)",
                      place.path, Printable(place.name),
                      fmt::format(format, std::forward<Args>(args)...));
}

absl::StatusOr<std::string_view> HeaderText(std::string_view file, const std::string& path) {
  if (file.size() < kLengthBytes) {
    return InvalidInput(
        "{}: {} bytes, too short for a safetensors file, which begins with 8 bytes "
        "of header length (an unfinished download?)",
        path, file.size());
  }
  const uint64_t length = LoadLittle<uint64_t>(file.data());
  if (length > kMaxHeaderBytes) {
    return InvalidInput("{}: header length is {}, more than the allowed {}: not a safetensors file",
                        path, length, kMaxHeaderBytes);
  }
  if (length > file.size() - kLengthBytes) {
    return InvalidInput(
        "{}: header length is {}, but the file has only {} bytes after it "
        "(truncated: fetch it again)",
        path, length, file.size() - kLengthBytes);
  }
  if (length == 0 || file[kLengthBytes] != '{') {
    return InvalidInput("{}: header does not begin with '{{': not a safetensors file", path);
  }
  return file.substr(kLengthBytes, length);
}

absl::StatusOr<FileDtype> ReadDtype(const rapidjson::Value& entry, const Place& place) {
  const auto member = entry.FindMember("dtype");
  if (member == entry.MemberEnd() || !member->value.IsString()) {
    return BadTensor(place, "\"dtype\" is missing or not a string");
  }
  const std::optional<FileDtype> dtype = ParseFileDtype(Text(member->value));
  if (!dtype) {
    return InvalidInput("{}: tensor '{}': dtype '{}' is not supported; supported are {}",
                        place.path, Printable(place.name), Printable(Text(member->value)),
                        FileDtypeNames());
  }
  return *dtype;
}

absl::StatusOr<std::vector<int64_t>> ReadShape(const rapidjson::Value& entry, const Place& place) {
  const auto member = entry.FindMember("shape");
  if (member == entry.MemberEnd() || !member->value.IsArray()) {
    return BadTensor(place, "\"shape\" is missing or not an array");
  }
  std::vector<int64_t> shape;
  for (const rapidjson::Value& size : member->value.GetArray()) {
    if (!size.IsInt64() || size.GetInt64() < 0) {
      return BadTensor(place, "\"shape\" holds something that is not a size");
    }
    shape.push_back(size.GetInt64());
  }
  return shape;
}

absl::StatusOr<std::pair<uint64_t, uint64_t>> ReadOffsets(const rapidjson::Value& entry,
                                                          const Place& place) {
  const auto member = entry.FindMember("data_offsets");
  const bool pair = member != entry.MemberEnd() && member->value.IsArray() &&
                    member->value.Size() == 2 && member->value[0].IsUint64() &&
                    member->value[1].IsUint64();
  if (!pair) return BadTensor(place, "\"data_offsets\" is missing or not [begin, end]");
  return std::pair(member->value[0].GetUint64(), member->value[1].GetUint64());
}

// Bytes of a tensor, or nothing where the product overflows.
std::optional<uint64_t> NumBytes(FileDtype dtype, std::span<const int64_t> shape) {
  uint64_t bytes = FileDtypeSize(dtype);
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) return std::nullopt;
  }
  return bytes;
}

absl::Status ReadMetadata(const rapidjson::Value& value, const std::string& path,
                          SafetensorsHeader& header) {
  if (!value.IsObject()) return InvalidInput("{}: \"__metadata__\" is not an object", path);
  for (const auto& member : value.GetObject()) {
    if (!member.value.IsString()) {
      return InvalidInput("{}: \"__metadata__\": '{}' is not a string", path,
                          Printable(Text(member.name)));
    }
    header.metadata[std::string(Text(member.name))] = std::string(Text(member.value));
  }
  return absl::OkStatus();
}

absl::Status ReadTensor(const rapidjson::Value& entry, const Place& place, std::string_view data,
                        SafetensorsHeader& header, std::vector<Extent>& extents) {
  if (!entry.IsObject()) return BadTensor(place, "its entry is not an object");
  if (entry.MemberCount() != 3) {
    return BadTensor(place, "its entry has {} keys instead of dtype, shape and data_offsets",
                     entry.MemberCount());
  }
  FileTensor tensor;
  ASSIGN_OR_RETURN(tensor.dtype, ReadDtype(entry, place));
  ASSIGN_OR_RETURN(tensor.shape, ReadShape(entry, place));
  ASSIGN_OR_RETURN(const auto offsets, ReadOffsets(entry, place));
  const auto [begin, end] = offsets;
  if (begin > end || end > data.size()) {
    return BadTensor(place, "data_offsets [{}, {}] are not within the file's {} bytes of data",
                     begin, end, data.size());
  }
  const std::optional<uint64_t> bytes = NumBytes(tensor.dtype, tensor.shape);
  if (!bytes) return BadTensor(place, "shape {} overflows", ShapeText(tensor.shape));
  if (*bytes != end - begin) {
    return BadTensor(place, "shape {} of {} takes {} bytes, but data_offsets [{}, {}] hold {}",
                     ShapeText(tensor.shape), FileDtypeName(tensor.dtype), *bytes, begin, end,
                     end - begin);
  }
  tensor.data = std::as_bytes(std::span(data.data() + begin, end - begin));
  std::string name(place.name);
  if (!header.tensors.emplace(name, std::move(tensor)).second) {
    return BadTensor(place, "the name stands in the header twice");
  }
  extents.push_back({std::move(name), begin, end});
  return absl::OkStatus();
}

// The tensors must cover the data: each begins where the one before it ends.
absl::Status CheckCoverage(const std::vector<Extent>& extents, uint64_t size,
                           const std::string& path) {
  uint64_t end = 0;
  std::string_view before;
  for (const Extent& extent : extents) {
    const Place place{path, extent.name};
    if (extent.begin < end) {
      return BadTensor(place, "data_offsets [{}, {}] overlap those of '{}', which end at {}",
                       extent.begin, extent.end, Printable(before), end);
    }
    if (extent.begin > end) {
      return BadTensor(place, "data_offsets [{}, {}] leave a hole from {}", extent.begin,
                       extent.end, end);
    }
    end = extent.end;
    before = extent.name;
  }
  if (end != size) {
    return InvalidInput(
        "{}: the tensors end at byte {} of the data, but there are {} bytes: the "
        "header does not belong to this file (fetch or write it again)",
        path, end, size);
  }
  return absl::OkStatus();
}

}  // namespace

std::string ShapeText(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

absl::StatusOr<SafetensorsHeader> ParseSafetensors(std::string_view file, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string_view text, HeaderText(file, path));
  // Iterative: a header of a million '[' must not exhaust the stack.
  rapidjson::Document json;
  json.Parse<rapidjson::kParseIterativeFlag | rapidjson::kParseValidateEncodingFlag>(text.data(),
                                                                                     text.size());
  if (json.HasParseError()) {
    return InvalidInput("{}: header is not JSON: {} at byte {}", path,
                        rapidjson::GetParseError_En(json.GetParseError()),
                        kLengthBytes + json.GetErrorOffset());
  }
  if (!json.IsObject()) return InvalidInput("{}: header is not a JSON object", path);
  const std::string_view data = file.substr(kLengthBytes + text.size());
  SafetensorsHeader header;
  std::vector<Extent> extents;
  for (const auto& member : json.GetObject()) {
    const std::string_view name = Text(member.name);
    if (name == "__metadata__") {
      RETURN_IF_ERROR(ReadMetadata(member.value, path, header));
    } else {
      RETURN_IF_ERROR(ReadTensor(member.value, {path, name}, data, header, extents));
    }
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  RETURN_IF_ERROR(CheckCoverage(extents, data.size(), path));
  for (Extent& extent : extents) header.names.push_back(std::move(extent.name));
  return header;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  ASSIGN_OR_RETURN(SafetensorsHeader header, ParseSafetensors(file->view(), path));
  return std::unique_ptr<SafetensorsFile>(
      new SafetensorsFile(path, std::move(file), std::move(header)));
}

const FileTensor* SafetensorsFile::Find(const std::string& name) const {
  const auto found = header_.tensors.find(name);
  return found == header_.tensors.end() ? nullptr : &found->second;
}

absl::Status ToFloat32(const FileTensor& tensor, std::span<float> out) {
  const size_t count = static_cast<size_t>(tensor.num_elements());
  if (out.size() != count) {
    return InvalidInput("tensor of shape {} has {} elements, the place for it {}",
                        ShapeText(tensor.shape), count, out.size());
  }
  const std::byte* data = tensor.data.data();
  switch (tensor.dtype) {
    case FileDtype::kF32:
      if (count > 0) std::memcpy(out.data(), data, count * sizeof(float));
      return absl::OkStatus();
    case FileDtype::kBF16:
      for (size_t i = 0; i < count; ++i) {
        out[i] = Bfloat16ToFloat(LoadLittle<uint16_t>(data + 2 * i));
      }
      return absl::OkStatus();
    case FileDtype::kF16:
      for (size_t i = 0; i < count; ++i) out[i] = HalfToFloat(LoadLittle<uint16_t>(data + 2 * i));
      return absl::OkStatus();
    case FileDtype::kF64:
      for (size_t i = 0; i < count; ++i) {
        out[i] = static_cast<float>(LoadLittle<double>(data + 8 * i));
      }
      return absl::OkStatus();
    default:
      return InvalidInput("dtype {} cannot be read as float32; F32, F16, BF16 and F64 can",
                          FileDtypeName(tensor.dtype));
  }
}

}  // namespace orrery::model
