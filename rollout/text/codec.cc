#include "rollout/text/codec.h"

#include "orchestrator/base/status.h"

namespace orrery::rollout {
namespace {

// The date that some templates print: fixed, so that a run repeats bit for bit on another day.
constexpr std::time_t kTemplateDate = 1767225600;  // 2026-01-01

jinja::Value ToValue(const std::string& text) {
  if (text == "true") return jinja::Value::Of(true);
  if (text == "false") return jinja::Value::Of(false);
  return jinja::Value::Of(text);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointCodec>> CheckpointCodec::Load(
    const std::string& folder, const std::map<std::string, std::string>& variables) {
  auto codec = std::unique_ptr<CheckpointCodec>(new CheckpointCodec);
  ASSIGN_OR_RETURN(codec->tokenizer_, Tokenizer::Load(folder));
  absl::StatusOr<ChatTemplate> chat = ChatTemplate::Load(folder);
  if (chat.ok()) {
    codec->template_ = *std::move(chat);
  } else if (chat.status().code() != absl::StatusCode::kNotFound) {
    return chat.status();
  }
  for (const auto& [name, text] : variables) codec->variables_.emplace(name, ToValue(text));
  return codec;
}

std::vector<int32_t> CheckpointCodec::Encode(std::string_view text) const {
  return tokenizer_->Encode(text);
}

std::string CheckpointCodec::Decode(std::span<const int32_t> ids, bool skip_special) const {
  return tokenizer_->Decode(ids, skip_special);
}

RenderOptions CheckpointCodec::Options(bool add_generation_prompt) const {
  RenderOptions options;
  options.add_generation_prompt = add_generation_prompt;
  options.variables = variables_;
  options.now = kTemplateDate;
  return options;
}

absl::StatusOr<std::vector<int32_t>> CheckpointCodec::EncodePrompt(const Prompt& prompt) const {
  if (prompt.messages.empty()) return tokenizer_->Encode(prompt.text, /*add_special_tokens=*/true);
  if (!template_) {
    return InvalidInput(
        "{}: the prompt has messages, the checkpoint no chat template: set data.chat: "
        "false, or add chat_template.jinja to the model's folder",
        prompt.id);
  }
  absl::StatusOr<std::string> text = template_->Render(prompt.messages, Options(true));
  if (!text.ok()) return Annotate(text.status(), prompt.id);
  // The template writes special tokens itself.
  return tokenizer_->Encode(*text);
}

absl::StatusOr<std::vector<int32_t>> CheckpointCodec::EncodeNextTurn(
    std::span<const Message> previous, std::span<const Message> added, int32_t stop_token) const {
  if (!template_) return InvalidInput("several turns need a checkpoint with a chat template");
  ASSIGN_OR_RETURN(
      const std::string text,
      template_->RenderNextTurn(previous, added, tokenizer_->TokenText(stop_token), Options(true)));
  return tokenizer_->Encode(text);
}

std::vector<std::string> CheckpointCodec::Pieces(std::span<const int32_t> ids) const {
  IncrementalDecoder decoder(*tokenizer_);
  std::vector<std::string> pieces;
  pieces.reserve(ids.size());
  for (const int32_t id : ids) pieces.push_back(decoder.Push(id));
  if (!pieces.empty()) pieces.back() += decoder.Finish();
  return pieces;
}

}  // namespace orrery::rollout
