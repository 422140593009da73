#include "rollout/text/chat_template.h"

#include <algorithm>
#include <filesystem>

#include "orchestrator/base/file.h"
#include "orchestrator/base/utf8.h"
#include "rollout/text/jinja_json.h"

namespace orrery::rollout {

namespace {

using jinja::Kind;
using jinja::Map;
using jinja::Value;

constexpr char kDefault[] = "default";
constexpr char kToolUse[] = "tool_use";

bool IsFile(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

absl::StatusOr<Value> ReadJsonObject(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  ASSIGN_OR_RETURN(Value value, jinja::FromJson(text, path));
  if (!value.Is(Kind::kMap)) return InvalidInput("{}: expected a JSON object", path);
  return value;
}

// A special token is a text, or an object with the text as its content.
const Value* TokenText(const Value& token) {
  if (token.Is(Kind::kText)) return &token;
  if (!token.Is(Kind::kMap)) return nullptr;
  const Value* content = token.map().Find("content");
  return content != nullptr && content->Is(Kind::kText) ? content : nullptr;
}

absl::StatusOr<Value> FromMessages(std::span<const Message> messages) {
  std::vector<Value> values;
  values.reserve(messages.size());
  for (const Message& message : messages) {
    Map map;
    map.Set("role", Value::Of(message.role));
    map.Set("content", Value::Of(message.content));
    ASSIGN_OR_RETURN(Value value, jinja::MakeMap(std::move(map)));
    values.push_back(std::move(value));
  }
  return jinja::MakeList(std::move(values));
}

const Value* ReasoningOf(const Map& message) {
  for (const std::string_view field : {"reasoning_content", "thinking", "reasoning"}) {
    const Value* value = message.Find(field);
    if (value != nullptr && !value->Is(Kind::kNone)) return value;
  }
  return nullptr;
}

// As transformers 5 prepares a message (utils/chat_template_utils.py): null fields are left out;
// the reasoning goes by the names "thinking", in front, and "reasoning_content".
Map NormalizedMessage(const Map& message) {
  Map normalized;
  const Value* reasoning = ReasoningOf(message);
  if (reasoning != nullptr) normalized.Set("thinking", *reasoning);
  for (const auto& [key, value] : message.entries()) {
    if (!value.Is(Kind::kNone)) normalized.Set(key, value);
  }
  if (reasoning != nullptr) normalized.Set("reasoning_content", *reasoning);
  return normalized;
}

absl::StatusOr<Value> NormalizedMessages(const Value& messages) {
  if (!messages.Is(Kind::kList)) {
    return InvalidInput("messages: expected a JSON array of messages, found a {}",
                        messages.type_name());
  }
  std::vector<Value> normalized;
  for (const Value& message : messages.list().items) {
    if (!message.Is(Kind::kMap)) {
      return InvalidInput("messages[{}]: expected an object, found a {}", normalized.size(),
                          message.type_name());
    }
    ASSIGN_OR_RETURN(Value value, jinja::MakeMap(NormalizedMessage(message.map())));
    normalized.push_back(std::move(value));
  }
  return jinja::MakeList(std::move(normalized));
}

absl::StatusOr<Value> ParseTools(const std::string& json) {
  if (json.empty()) return Value::OfNone();
  ASSIGN_OR_RETURN(Value tools, jinja::FromJson(json, "tools"));
  if (!tools.Is(Kind::kList)) {
    return InvalidInput("tools: expected a JSON array of tool schemas, found a {}",
                        tools.type_name());
  }
  return tools;
}

std::vector<Message> Joined(std::span<const Message> previous, std::span<const Message> added) {
  std::vector<Message> all(previous.begin(), previous.end());
  all.insert(all.end(), added.begin(), added.end());
  return all;
}

}  // namespace

absl::Status ChatTemplate::AddTemplate(const std::string& name, std::string_view source,
                                       const std::string& place) {
  ASSIGN_OR_RETURN(jinja::Template parsed, jinja::Template::Parse(source, place));
  templates_.insert_or_assign(name, std::move(parsed));
  return absl::OkStatus();
}

absl::Status ChatTemplate::AddConfiguredTemplates(const Value& configured,
                                                  const std::string& place) {
  if (configured.Is(Kind::kText)) return AddTemplate(kDefault, configured.text(), place);
  if (!configured.Is(Kind::kList)) {
    return InvalidInput("{}: expected a text or a list of {{name, template}}, found a {}", place,
                        configured.type_name());
  }
  for (const Value& entry : configured.list().items) {
    const Value* name = entry.Is(Kind::kMap) ? entry.map().Find("name") : nullptr;
    const Value* source = entry.Is(Kind::kMap) ? entry.map().Find("template") : nullptr;
    if (name == nullptr || source == nullptr || !name->Is(Kind::kText) ||
        !source->Is(Kind::kText)) {
      return InvalidInput("{}: expected every entry to have the texts \"name\" and \"template\"",
                          place);
    }
    RETURN_IF_ERROR(
        AddTemplate(name->text(), source->text(), fmt::format("{} ({})", place, name->text())));
  }
  return absl::OkStatus();
}

absl::Status ChatTemplate::AddSpecialTokens(const Map& config, const std::string& place) {
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    const Value* token = config.Find(name);
    if (token == nullptr || token->Is(Kind::kNone) || tokens_.Find(name) != nullptr) continue;
    const Value* text = TokenText(*token);
    if (text == nullptr) {
      return InvalidInput("{}: {}: expected a text or an object with \"content\", found a {}",
                          place, name, token->type_name());
    }
    tokens_.Set(name, *text);
  }
  const Value* more = config.Find("additional_special_tokens");
  if (more == nullptr || !more->Is(Kind::kList)) return absl::OkStatus();
  std::vector<Value> texts;
  for (const Value& token : more->list().items) {
    if (const Value* text = TokenText(token)) texts.push_back(*text);
  }
  ASSIGN_OR_RETURN(Value list, jinja::MakeList(std::move(texts)));
  if (tokens_.Find("additional_special_tokens") == nullptr) {
    tokens_.Set("additional_special_tokens", std::move(list));
  }
  return absl::OkStatus();
}

absl::StatusOr<ChatTemplate> ChatTemplate::Load(const std::string& folder) {
  ChatTemplate result;
  result.place_ = folder;
  const std::string config_path = folder + "/tokenizer_config.json";
  const std::string file_path = folder + "/chat_template.jinja";
  Value configured;
  if (IsFile(config_path)) {
    ASSIGN_OR_RETURN(const Value config, ReadJsonObject(config_path));
    RETURN_IF_ERROR(result.AddSpecialTokens(config.map(), config_path));
    const Value* found = config.map().Find("chat_template");
    if (found != nullptr) configured = *found;
  }
  if (IsFile(folder + "/special_tokens_map.json")) {
    ASSIGN_OR_RETURN(const Value map, ReadJsonObject(folder + "/special_tokens_map.json"));
    RETURN_IF_ERROR(result.AddSpecialTokens(map.map(), folder + "/special_tokens_map.json"));
  }
  if (IsFile(file_path)) {
    ASSIGN_OR_RETURN(const std::string source, ReadFile(file_path));
    RETURN_IF_ERROR(result.AddTemplate(kDefault, source, file_path));
    const std::string tool_use_path = folder + "/additional_chat_templates/tool_use.jinja";
    if (IsFile(tool_use_path)) {
      ASSIGN_OR_RETURN(const std::string tool_use, ReadFile(tool_use_path));
      RETURN_IF_ERROR(result.AddTemplate(kToolUse, tool_use, tool_use_path));
    }
  } else if (!configured.Is(Kind::kUndefined) && !configured.Is(Kind::kNone)) {
    RETURN_IF_ERROR(result.AddConfiguredTemplates(configured, config_path + ": chat_template"));
  }
  if (result.templates_.empty()) {
    return NotFound(
        "{}: no chat template (no chat_template.jinja, and no chat_template in "
        "tokenizer_config.json); take an instruction-tuned checkpoint, add a "
        "chat_template.jinja, or give prompts as plain text",
        folder);
  }
  return result;
}

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view source,
                                                 const std::map<std::string, std::string>& tokens,
                                                 const std::string& name) {
  ChatTemplate result;
  result.place_ = name;
  RETURN_IF_ERROR(result.AddTemplate(kDefault, source, name));
  for (const auto& [token_name, text] : tokens) result.tokens_.Set(token_name, Value::Of(text));
  return result;
}

// transformers: a template named "tool_use" serves conversations with tools.
absl::StatusOr<const jinja::Template*> ChatTemplate::Choose(bool with_tools) const {
  const auto tool_use = templates_.find(kToolUse);
  if (with_tools && tool_use != templates_.end()) return &tool_use->second;
  const auto standard = templates_.find(kDefault);
  if (standard != templates_.end()) return &standard->second;
  return InvalidInput("{}: has the chat template '{}', but none named 'default'", place_,
                      templates_.begin()->first);
}

absl::StatusOr<std::string> ChatTemplate::RenderValues(Value messages,
                                                       const RenderOptions& options) const {
  ASSIGN_OR_RETURN(Value tools, ParseTools(options.tools_json));
  ASSIGN_OR_RETURN(const jinja::Template* chosen, Choose(!tools.Is(Kind::kNone)));
  Map variables = tokens_;
  variables.Set("messages", std::move(messages));
  variables.Set("tools", std::move(tools));
  variables.Set("documents", Value::OfNone());
  variables.Set("add_generation_prompt", Value::Of(options.add_generation_prompt));
  for (const auto& [name, value] : options.variables) variables.Set(name, value);
  return chosen->Render(variables, {}, options.now);
}

absl::StatusOr<std::string> ChatTemplate::Render(std::span<const Message> messages,
                                                 const RenderOptions& options) const {
  ASSIGN_OR_RETURN(Value values, FromMessages(messages));
  return RenderValues(std::move(values), options);
}

absl::StatusOr<std::string> ChatTemplate::RenderJson(std::string_view messages_json,
                                                     const RenderOptions& options) const {
  ASSIGN_OR_RETURN(const Value parsed, jinja::FromJson(messages_json, "messages"));
  ASSIGN_OR_RETURN(Value messages, NormalizedMessages(parsed));
  return RenderValues(std::move(messages), options);
}

absl::StatusOr<std::string> ChatTemplate::RenderDelta(std::span<const Message> previous,
                                                      std::span<const Message> added,
                                                      const RenderOptions& options) const {
  RenderOptions of_previous = options;
  of_previous.add_generation_prompt = false;
  ASSIGN_OR_RETURN(const std::string before, Render(previous, of_previous));
  ASSIGN_OR_RETURN(const std::string whole, Render(Joined(previous, added), options));
  const auto [old_end, new_end] =
      std::mismatch(before.begin(), before.end(), whole.begin(), whole.end());
  const auto common = static_cast<size_t>(old_end - before.begin());
  if (common == before.size()) return whole.substr(common);
  return InvalidInput(
      "{}: new messages change how the template renders earlier ones: after {} equal bytes '{}' "
      "becomes '{}'; append to sampled tokens with RenderNextTurn instead",
      place_, common, ShortenUtf8(std::string_view(before).substr(common), 40),
      ShortenUtf8(std::string_view(whole).substr(common), 40));
}

absl::StatusOr<std::string> ChatTemplate::RenderNextTurn(std::span<const Message> previous,
                                                         std::span<const Message> added,
                                                         std::string_view stop_text,
                                                         const RenderOptions& options) const {
  if (previous.empty() || previous.back().role != "assistant") {
    return InvalidInput("{}: expected the previous messages to end with an assistant turn", place_);
  }
  if (stop_text.empty()) return InvalidInput("{}: the stop text is empty", place_);
  std::vector<Message> all = Joined(previous, added);
  // Stands for the sampled turn, to be found again in the rendering.
  std::string marker = "OrrerySampledTurn";
  const auto occurs = [&](const Message& message) {
    return message.content.find(marker) != std::string::npos;
  };
  while (std::any_of(all.begin(), all.end(), occurs)) marker += "X";
  all[previous.size() - 1].content = marker;
  ASSIGN_OR_RETURN(const std::string whole, Render(all, options));
  const size_t at = whole.find(marker);
  if (at == std::string::npos || whole.find(marker, at + 1) != std::string::npos) {
    return InvalidInput(
        "{}: the template does not print the content of an assistant turn exactly once", place_);
  }
  const size_t stop = whole.find(stop_text, at + marker.size());
  if (stop == std::string::npos) {
    return InvalidInput("{}: the template prints no '{}' behind an assistant turn", place_,
                        ShortenUtf8(stop_text, 40));
  }
  return whole.substr(stop + stop_text.size());
}

}  // namespace orrery::rollout
