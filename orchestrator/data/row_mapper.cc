#include "orchestrator/data/row_mapper.h"

#include <rapidjson/stringbuffer.h>
#include <rapidjson/writer.h>

#include <cmath>
#include <optional>
#include <set>

#include "orchestrator/base/status.h"
#include "orchestrator/base/utf8.h"
#include "orchestrator/data/known_sets.h"

namespace orrery::data {
namespace {

using rapidjson::Value;

std::string_view TextOf(const Value& value) { return {value.GetString(), value.GetStringLength()}; }

std::string_view KindOf(const Value& value) {
  if (value.IsNull()) return "null";
  if (value.IsObject()) return "an object";
  if (value.IsArray()) return "a list";
  return "a value";
}

std::string FieldNames(const Value& row) {
  std::string names;
  for (const auto& member : row.GetObject()) {
    if (!names.empty()) names += ", ";
    names += TextOf(member.name);
    if (names.size() > 300) break;
  }
  return names.empty() ? "no field at all" : ShortenUtf8(names, 300);
}

// "a.b.0": a field of that very name, else fields of fields and entries of lists.
const Value* Find(const Value& value, std::string_view name) {
  if (value.IsObject()) {
    const auto whole = value.FindMember(
        Value(rapidjson::StringRef(name.data(), static_cast<rapidjson::SizeType>(name.size()))));
    if (whole != value.MemberEnd()) return &whole->value;
  }
  const size_t dot = name.find('.');
  const std::string_view first = name.substr(0, dot);
  const Value* inner = nullptr;
  if (value.IsArray() && !first.empty() && first.size() < 9 &&
      first.find_first_not_of("0123456789") == std::string_view::npos) {
    const auto index = static_cast<rapidjson::SizeType>(std::stoul(std::string(first)));
    if (index < value.Size()) inner = &value[index];
  } else if (value.IsObject() && dot != std::string_view::npos) {
    inner = Find(value, first);
  }
  if (inner == nullptr || dot == std::string_view::npos) return inner;
  return Find(*inner, name.substr(dot + 1));
}

absl::StatusOr<std::string> DoubleText(double value) {
  if (!std::isfinite(value)) return InvalidInput("is not a finite number; write it as a text");
  if (value == std::floor(value) && std::abs(value) >= 0x1p53) {
    return InvalidInput("{} has more digits than a JSON number keeps; write it as a text", value);
  }
  return fmt::format("{}", value);
}

absl::StatusOr<std::string> ScalarText(const Value& value) {
  if (value.IsString()) {
    const std::string_view text = TextOf(value);
    if (FindInvalidUtf8(text) == std::string_view::npos) return std::string(text);
    return InvalidInput("'{}' is not UTF-8; convert it", ShortenUtf8(text, 60));
  }
  if (value.IsBool()) return std::string(value.GetBool() ? "true" : "false");
  if (value.IsInt64()) return fmt::format("{}", value.GetInt64());
  if (value.IsUint64()) return fmt::format("{}", value.GetUint64());
  if (value.IsDouble()) return DoubleText(value.GetDouble());
  return InvalidInput("is {}, should be a text or a number", KindOf(value));
}

absl::StatusOr<const Value*> Require(const Value& row, const std::string& name,
                                     std::string_view setting) {
  const Value* value = Find(row, name);
  const std::string fix =
      setting.empty() ? "" : fmt::format("; set data.{}, or mend the row", setting);
  if (value == nullptr) {
    return InvalidInput("there is no field '{}'; the row has: {}{}", name, FieldNames(row), fix);
  }
  if (value->IsNull()) return InvalidInput("field '{}' is null{}", name, fix);
  return value;
}

absl::StatusOr<std::string> RequireText(const Value& row, const std::string& name,
                                        std::string_view setting) {
  ASSIGN_OR_RETURN(const Value* value, Require(row, name, setting));
  absl::StatusOr<std::string> text = ScalarText(*value);
  if (!text.ok()) return InvalidInput("field '{}' {}", name, StatusText(text.status()));
  return text;
}

absl::StatusOr<std::string> MessagePart(const Value& message, const char* part, size_t index) {
  const auto found = message.FindMember(part);
  if (found == message.MemberEnd() || !found->value.IsString()) {
    return InvalidInput("message {} has no text '{}'; write {{\"role\": ..., \"content\": ...}}",
                        index, part);
  }
  return ScalarText(found->value);
}

absl::StatusOr<std::vector<Message>> ReadMessages(const Value& list) {
  std::vector<Message> messages;
  for (const Value& item : list.GetArray()) {
    const size_t index = messages.size();
    if (!item.IsObject()) {
      return InvalidInput("message {} is {}, should be {{\"role\": ..., \"content\": ...}}", index,
                          KindOf(item));
    }
    Message& message = messages.emplace_back();
    ASSIGN_OR_RETURN(message.role, MessagePart(item, "role", index));
    ASSIGN_OR_RETURN(message.content, MessagePart(item, "content", index));
  }
  if (messages.empty()) return InvalidInput("the list of messages is empty; remove the row");
  return messages;
}

absl::Status CheckNoDuplicates(const Value& row) {
  std::set<std::string_view> names;
  for (const auto& member : row.GetObject()) {
    if (!names.insert(TextOf(member.name)).second) {
      return InvalidInput("field '{}' is there twice; remove one",
                          ShortenUtf8(TextOf(member.name), 60));
    }
  }
  return absl::OkStatus();
}

// A field as metadata: texts as they are, lists and objects as JSON; nothing for null and for bytes
// that are no text.
std::optional<std::string> MetadataText(const Value& value) {
  if (value.IsNull()) return std::nullopt;
  if (!value.IsArray() && !value.IsObject()) {
    absl::StatusOr<std::string> text = ScalarText(value);
    return text.ok() ? std::optional(*std::move(text)) : std::nullopt;
  }
  rapidjson::StringBuffer buffer;
  rapidjson::Writer<rapidjson::StringBuffer> writer(buffer);
  if (!value.Accept(writer)) return std::nullopt;
  std::string text(buffer.GetString(), buffer.GetSize());
  if (FindInvalidUtf8(text) != std::string_view::npos) return std::nullopt;
  return text;
}

}  // namespace

RowMapper::RowMapper(const configs::DataConfig& config)
    : preset_(config.preset),
      split_(config.split),
      shape_(config),
      prompt_field_(config.prompt_field),
      answer_field_(config.answer_field),
      solution_field_(config.solution_field) {
  if (preset_ == "gsm8k") {
    prompt_field_ = "question";
    answer_field_ = solution_field_ = "answer";
  } else if (preset_ == "math") {
    prompt_field_ = "problem";
    answer_field_ = "answer";
    solution_field_ = "solution";
  }
}

absl::StatusOr<Prompt> RowMapper::Map(const Value& row, int64_t index) const {
  if (!row.IsObject()) {
    return InvalidInput("the row is {}, should be an object like {{\"{}\": ...}}", KindOf(row),
                        prompt_field_);
  }
  RETURN_IF_ERROR(CheckNoDuplicates(row));
  Prompt prompt;
  prompt.id = fmt::format("{}/{}", split_, index);
  RETURN_IF_ERROR(MapPrompt(row, prompt));
  if (preset_ == "gsm8k") {
    RETURN_IF_ERROR(MapGsm8k(row, prompt));
  } else if (preset_ == "math") {
    RETURN_IF_ERROR(MapMath(row, prompt));
  } else {
    RETURN_IF_ERROR(MapSolution(row, prompt));
    RETURN_IF_ERROR(MapAnswer(row, prompt));
  }
  MapMetadata(row, prompt);
  return prompt;
}

absl::Status RowMapper::MapPrompt(const Value& row, Prompt& prompt) const {
  const std::string_view setting = preset_ == "none" ? "prompt_field" : "";
  ASSIGN_OR_RETURN(const Value* value, Require(row, prompt_field_, setting));
  const auto lookup = [&](std::string_view field) {
    return RequireText(row, std::string(field), "");
  };
  if (value->IsArray()) {
    absl::StatusOr<std::vector<Message>> messages = ReadMessages(*value);
    if (!messages.ok()) return Annotate(messages.status(), "field '" + prompt_field_ + "'");
    return shape_.FromMessages(*std::move(messages), lookup, prompt);
  }
  ASSIGN_OR_RETURN(const std::string text, RequireText(row, prompt_field_, setting));
  return shape_.FromText(text, lookup, prompt);
}

// A text, or messages that continue the prompt.
absl::Status RowMapper::MapSolution(const Value& row, Prompt& prompt) const {
  if (solution_field_.empty()) return absl::OkStatus();
  if (!prompt.solution.empty() || !prompt.solution_messages.empty()) {
    return InvalidInput(
        "the messages of '{}' end with an answer, and data.solution_field names "
        "another; remove one of them",
        prompt_field_);
  }
  ASSIGN_OR_RETURN(const Value* value, Require(row, solution_field_, "solution_field"));
  if (!value->IsArray()) {
    ASSIGN_OR_RETURN(prompt.solution, RequireText(row, solution_field_, "solution_field"));
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<Message>> messages = ReadMessages(*value);
  if (!messages.ok()) return Annotate(messages.status(), "field '" + solution_field_ + "'");
  if (messages->front().role != "assistant") {
    return InvalidInput("field '{}' should begin with a message of the assistant, not of the '{}'",
                        solution_field_, ShortenUtf8(messages->front().role, 40));
  }
  if (messages->size() == 1) {
    prompt.solution = std::move(messages->front().content);
  } else {
    prompt.solution_messages = *std::move(messages);
  }
  return absl::OkStatus();
}

absl::Status RowMapper::MapAnswer(const Value& row, Prompt& prompt) const {
  if (answer_field_.empty()) return absl::OkStatus();
  absl::StatusOr<std::string> answer = RequireText(row, answer_field_, "answer_field");
  if (!answer.ok()) {
    return InvalidInput("{} (data.answer_field: \"\" where there are no answers)",
                        StatusText(answer.status()));
  }
  prompt.answer = *std::move(answer);
  return absl::OkStatus();
}

absl::Status RowMapper::MapGsm8k(const Value& row, Prompt& prompt) const {
  ASSIGN_OR_RETURN(const std::string text, RequireText(row, answer_field_, ""));
  std::optional<std::string> answer = Gsm8kAnswer(text);
  if (!answer) {
    return InvalidInput(
        "field 'answer' has nothing behind '####': '{}'; gsm8k answers end with "
        "'#### 72'",
        ShortenUtf8(text, 60));
  }
  prompt.answer = *std::move(answer);
  prompt.solution = WithoutAnnotations(text);
  return absl::OkStatus();
}

absl::Status RowMapper::MapMath(const Value& row, Prompt& prompt) const {
  if (const Value* solution = Find(row, solution_field_); solution && solution->IsString()) {
    ASSIGN_OR_RETURN(prompt.solution, RequireText(row, solution_field_, ""));
  }
  if (const Value* answer = Find(row, answer_field_); answer && !answer->IsNull()) {
    ASSIGN_OR_RETURN(prompt.answer, RequireText(row, answer_field_, ""));
    return absl::OkStatus();
  }
  std::optional<std::string> boxed = LastBoxed(prompt.solution);
  if (!boxed) {
    return InvalidInput(
        "there is neither a field 'answer' nor a \\boxed{{...}} in the field "
        "'solution'; the row has: {}",
        FieldNames(row));
  }
  prompt.answer = *std::move(boxed);
  return absl::OkStatus();
}

void RowMapper::MapMetadata(const Value& row, Prompt& prompt) const {
  for (const auto& member : row.GetObject()) {
    const std::string_view name = TextOf(member.name);
    if (name == prompt_field_ || name == answer_field_ || name == solution_field_) continue;
    if (FindInvalidUtf8(name) != std::string_view::npos) continue;
    if (std::optional<std::string> text = MetadataText(member.value)) {
      prompt.metadata.emplace(name, *std::move(text));
    }
  }
}

}  // namespace orrery::data
