#include "sandbox/image/json.h"

#include <rapidjson/error/en.h>

#include "orchestrator/base/status.h"

namespace orrery::sandbox::image {

absl::StatusOr<rapidjson::Document> ParseJson(std::string_view text, const std::string& what,
                                              bool array) {
  rapidjson::Document document;
  document.Parse<rapidjson::kParseIterativeFlag | rapidjson::kParseValidateEncodingFlag>(
      text.data(), text.size());
  if (document.HasParseError()) {
    return InvalidInput("{}: no JSON at byte {}: {}", what, document.GetErrorOffset(),
                        rapidjson::GetParseError_En(document.GetParseError()));
  }
  if (array ? !document.IsArray() : !document.IsObject()) {
    return InvalidInput("{}: is no JSON {}", what, array ? "array" : "object");
  }
  return document;
}

const rapidjson::Value* Member(const rapidjson::Value& value, const char* name) {
  if (!value.IsObject()) return nullptr;
  const auto found = value.FindMember(name);
  if (found == value.MemberEnd() || found->value.IsNull()) return nullptr;
  return &found->value;
}

std::string StringOf(const rapidjson::Value& value, const char* name) {
  const rapidjson::Value* member = Member(value, name);
  if (member == nullptr || !member->IsString()) return "";
  return {member->GetString(), member->GetStringLength()};
}

int64_t NumberOf(const rapidjson::Value& value, const char* name) {
  const rapidjson::Value* member = Member(value, name);
  return member != nullptr && member->IsInt64() ? member->GetInt64() : 0;
}

absl::StatusOr<std::vector<std::string>> StringsOf(const rapidjson::Value& value, const char* name,
                                                   const std::string& what) {
  std::vector<std::string> strings;
  const rapidjson::Value* member = Member(value, name);
  if (member == nullptr) return strings;
  if (!member->IsArray()) return InvalidInput("{}: {} is no array", what, name);
  for (const rapidjson::Value& item : member->GetArray()) {
    if (!item.IsString())
      return InvalidInput("{}: {} has something other than strings", what, name);
    strings.emplace_back(item.GetString(), item.GetStringLength());
  }
  return strings;
}

void WriteString(JsonWriter* json, const char* name, std::string_view value) {
  json->Key(name);
  json->String(value.data(), static_cast<rapidjson::SizeType>(value.size()));
}

void WriteStrings(JsonWriter* json, const char* name, const std::vector<std::string>& values) {
  json->Key(name);
  json->StartArray();
  for (const std::string& value : values) json->String(value);
  json->EndArray();
}

}  // namespace orrery::sandbox::image
