#include "rollout/text/json_cursor.h"

#include "orchestrator/base/status.h"
#include "rapidjson/error/en.h"
#include "rapidjson/stringbuffer.h"
#include "rapidjson/writer.h"

namespace orrery::rollout {
namespace {

constexpr size_t kLongestShownValue = 120;

const rapidjson::Value& NullValue() {
  static const rapidjson::Value null;
  return null;
}

std::string_view View(const rapidjson::Value& string) {
  return {string.GetString(), string.GetStringLength()};
}

// Arrays and objects are only named: writing them out recurses.
std::string Shown(const rapidjson::Value& value) {
  if (value.IsArray()) return fmt::format("a list of {}", value.Size());
  if (value.IsObject()) return fmt::format("an object of {}", value.MemberCount());
  rapidjson::StringBuffer buffer;
  rapidjson::Writer<rapidjson::StringBuffer> writer(buffer);
  value.Accept(writer);
  std::string text(buffer.GetString(), buffer.GetSize());
  if (text.size() > kLongestShownValue) text = text.substr(0, kLongestShownValue) + "...";
  return text;
}

}  // namespace

absl::Status ParseJson(std::string_view text, rapidjson::Document* document) {
  document->Parse<rapidjson::kParseIterativeFlag | rapidjson::kParseValidateEncodingFlag>(
      text.data(), text.size());
  if (document->HasParseError()) {
    return InvalidInput("not JSON: {} at byte {} of {}",
                        rapidjson::GetParseError_En(document->GetParseError()),
                        document->GetErrorOffset(), text.size());
  }
  if (!document->IsObject()) return InvalidInput("not a JSON object but {}", Shown(*document));
  return absl::OkStatus();
}

JsonCursor JsonCursor::operator[](const char* key) const {
  std::string path = path_.empty() ? key : fmt::format("{}.{}", path_, key);
  if (value_->IsObject()) {
    const auto member = value_->FindMember(key);
    if (member != value_->MemberEnd()) return {member->value, std::move(path)};
  }
  return {NullValue(), std::move(path)};
}

absl::StatusOr<std::vector<JsonCursor>> JsonCursor::Elements() const {
  if (!value_->IsArray()) return Expected("a list");
  std::vector<JsonCursor> elements;
  elements.reserve(value_->Size());
  for (const rapidjson::Value& element : value_->GetArray()) {
    elements.emplace_back(element, fmt::format("{}[{}]", path_, elements.size()));
  }
  return elements;
}

absl::StatusOr<std::string> JsonCursor::String() const {
  if (!value_->IsString()) return Expected("a string");
  return std::string(View(*value_));
}

absl::StatusOr<std::string> JsonCursor::StringOr(std::string_view fallback) const {
  if (value_->IsNull()) return std::string(fallback);
  return String();
}

absl::StatusOr<bool> JsonCursor::Bool() const {
  if (!value_->IsBool()) return Expected("true or false");
  return value_->GetBool();
}

absl::StatusOr<bool> JsonCursor::BoolOr(bool fallback) const {
  if (value_->IsNull()) return fallback;
  return Bool();
}

absl::StatusOr<int64_t> JsonCursor::IntBetween(int64_t least, int64_t most) const {
  if (!value_->IsInt64() || value_->GetInt64() < least || value_->GetInt64() > most) {
    return Expected(fmt::format("a whole number from {} to {}", least, most));
  }
  return value_->GetInt64();
}

absl::StatusOr<int> JsonCursor::Choice(std::initializer_list<std::string_view> choices) const {
  const bool is_text = value_->IsString();
  const std::string_view text = is_text ? View(*value_) : std::string_view();
  std::string list;
  int index = 0;
  for (const std::string_view choice : choices) {
    if (is_text && text == choice) return index;
    list += fmt::format("{}{}", index == 0 ? "" : ", ", choice);
    ++index;
  }
  return Expected("one of " + list);
}

absl::Status JsonCursor::RequireObject() const {
  return value_->IsObject() ? absl::OkStatus() : Expected("an object");
}

absl::Status JsonCursor::Expected(std::string_view what) const {
  return InvalidInput("{}: found {}, expected {}", path_, Shown(*value_), what);
}

}  // namespace orrery::rollout
