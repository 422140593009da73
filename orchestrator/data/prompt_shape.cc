#include "orchestrator/data/prompt_shape.h"

#include <algorithm>
#include <cctype>

#include "orchestrator/base/status.h"
#include "orchestrator/base/utf8.h"

namespace orrery::data {
namespace {

bool IsNameByte(unsigned char c, bool first) {
  if (c >= 0x80) return false;
  return std::isalpha(c) || c == '_' || (!first && (std::isdigit(c) || c == '.' || c == '-'));
}

// Length of "{name}" at the start of the text, 0 where there is none: \boxed{} and {1, 2} are text.
size_t PlaceholderSize(std::string_view text) {
  if (!text.starts_with('{')) return 0;
  size_t end = 1;
  while (end < text.size() && IsNameByte(static_cast<unsigned char>(text[end]), end == 1)) ++end;
  return end > 1 && end < text.size() && text[end] == '}' ? end + 1 : 0;
}

absl::Status CheckMessages(const std::vector<Message>& messages) {
  for (const Message& message : messages) {
    if (message.role != "system" && message.role != "user" && message.role != "assistant" &&
        message.role != "tool") {
      return InvalidInput("a message has the role '{}'; there are system, user, assistant and tool",
                          ShortenUtf8(message.role, 40));
    }
  }
  return absl::OkStatus();
}

// Cuts the turns after the last message of the user off: they are what sft learns.
absl::StatusOr<std::vector<Message>> TakeSolution(std::vector<Message>& messages) {
  const auto last_user = std::find_if(messages.rbegin(), messages.rend(),
                                      [](const Message& m) { return m.role == "user"; });
  if (last_user == messages.rend()) {
    return InvalidInput("the messages have none of the user; add one to answer to");
  }
  const auto begin = last_user.base();
  std::vector<Message> solution(begin, messages.end());
  messages.erase(begin, messages.end());
  if (!solution.empty() && solution.front().role != "assistant") {
    return InvalidInput(
        "after the user's last message comes one of the {}; the assistant's should "
        "come first",
        solution.front().role);
  }
  return solution;
}

}  // namespace

PromptShape::PromptShape(const configs::DataConfig& config)
    : pieces_(ParseTemplate(config.prompt_template)),
      system_prompt_(config.system_prompt),
      chat_(config.chat) {}

std::vector<PromptShape::Piece> PromptShape::ParseTemplate(std::string_view text) {
  std::vector<Piece> pieces;
  std::string literal;
  const auto flush = [&] {
    if (!literal.empty()) pieces.push_back({false, std::exchange(literal, "")});
  };
  while (!text.empty()) {
    const size_t escaped = text[0] == '{' ? PlaceholderSize(text.substr(1)) : 0;
    if (escaped > 0 && text.size() > escaped + 1 && text[escaped + 1] == '}') {  // {{name}}
      literal += text.substr(1, escaped);
      text.remove_prefix(escaped + 2);
    } else if (const size_t size = PlaceholderSize(text); size > 0) {
      flush();
      pieces.push_back({true, std::string(text.substr(1, size - 2))});
      text.remove_prefix(size);
    } else {
      literal += text[0];
      text.remove_prefix(1);
    }
  }
  flush();
  return pieces;
}

std::vector<std::string> PromptShape::FieldsAskedFor() const {
  std::vector<std::string> fields;
  for (const Piece& piece : pieces_) {
    if (piece.is_field && piece.text != "prompt") fields.push_back(piece.text);
  }
  return fields;
}

absl::StatusOr<std::string> PromptShape::Fill(std::string_view prompt_text,
                                              const Lookup& lookup) const {
  if (pieces_.empty()) return std::string(prompt_text);
  std::string filled;
  for (const Piece& piece : pieces_) {
    if (!piece.is_field) {
      filled += piece.text;
    } else if (piece.text == "prompt") {
      filled += prompt_text;
    } else {
      const absl::StatusOr<std::string> field = lookup(piece.text);
      if (!field.ok()) {
        return InvalidInput(
            "data.prompt_template asks for {{{0}}}: {1}; write {{{{{0}}}}} where "
            "{{{0}}} itself is meant",
            piece.text, StatusText(field.status()));
      }
      filled += *field;
    }
  }
  return filled;
}

absl::Status PromptShape::AddSystemPrompt(std::vector<Message>& messages) const {
  if (system_prompt_.empty()) return absl::OkStatus();
  if (!messages.empty() && messages.front().role == "system") {
    return InvalidInput("the row has a system message already; remove data.system_prompt");
  }
  messages.insert(messages.begin(), {"system", system_prompt_});
  return absl::OkStatus();
}

absl::Status PromptShape::FromText(std::string_view text, const Lookup& lookup,
                                   Prompt& prompt) const {
  ASSIGN_OR_RETURN(std::string filled, Fill(text, lookup));
  if (filled.empty()) return InvalidInput("the prompt is empty; remove the row");
  if (!chat_) {
    prompt.text = std::move(filled);
    return absl::OkStatus();
  }
  prompt.messages = {{"user", std::move(filled)}};
  return AddSystemPrompt(prompt.messages);
}

absl::Status PromptShape::FromMessages(std::vector<Message> messages, const Lookup& lookup,
                                       Prompt& prompt) const {
  RETURN_IF_ERROR(CheckMessages(messages));
  if (!chat_) {
    return InvalidInput(
        "the prompt is a list of messages, which needs a chat template; set "
        "data.chat: true, or data.prompt_field to a text");
  }
  ASSIGN_OR_RETURN(std::vector<Message> solution, TakeSolution(messages));
  ASSIGN_OR_RETURN(messages.back().content, Fill(messages.back().content, lookup));
  RETURN_IF_ERROR(AddSystemPrompt(messages));
  prompt.messages = std::move(messages);
  if (solution.size() == 1) {
    prompt.solution = std::move(solution.front().content);
  } else {
    prompt.solution_messages = std::move(solution);
  }
  return absl::OkStatus();
}

}  // namespace orrery::data
