// A checkpoint's own chat template: messages in, the prompt's text out, as transformers'
// apply_chat_template(tokenize=False) gives it.
//
// A ChatTemplate is immutable: any number of threads may render at once. It knows nothing of
// tokens. What a template refuses (raise_exception) and what is broken in it come back as errors
// that name file, line and column.
#pragma once

#include <ctime>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/base/status.h"
#include "orchestrator/types.h"
#include "rollout/text/jinja.h"

namespace orrery::rollout {

struct RenderOptions {
  bool add_generation_prompt = false;  // end with the opening of an assistant turn
  std::string tools_json;              // a JSON array of tool schemas; empty: no tools
  // What else the template reads, e.g. {"enable_thinking", jinja::Value::Of(false)}.
  std::map<std::string, jinja::Value> variables;
  // The date that Llama 3 templates print. A run that must repeat bit for bit sets it once and
  // keeps it; without it the clock counts.
  std::optional<std::time_t> now;
};

class ChatTemplate {
 public:
  // From a checkpoint's folder: chat_template.jinja (and additional_chat_templates/*.jinja), or
  // else chat_template of tokenizer_config.json (a text, or a list of {name, template}); special
  // tokens from tokenizer_config.json and special_tokens_map.json. Not found:
  // absl::StatusCode::kNotFound.
  static absl::StatusOr<ChatTemplate> Load(const std::string& folder);

  // From a text. `tokens` are variables such as bos_token; `name` stands in errors.
  static absl::StatusOr<ChatTemplate> Parse(std::string_view source,
                                            const std::map<std::string, std::string>& tokens = {},
                                            const std::string& name = "chat template");

  absl::StatusOr<std::string> Render(std::span<const Message> messages,
                                     const RenderOptions& options = {}) const;

  // The richer form: a JSON array of messages with whatever fields the template reads (tool_calls,
  // reasoning_content, content as a list of parts). As in transformers 5, fields that are null are
  // left out, and "reasoning" or "thinking" are also given as "reasoning_content".
  absl::StatusOr<std::string> RenderJson(std::string_view messages_json,
                                         const RenderOptions& options = {}) const;

  // What `added` appends to the rendering of `previous`: the rendering of both less the rendering
  // of `previous` (without a generation prompt). An error where the template is not prefix-stable,
  // that is where new messages change how earlier ones read: Qwen3 drops the thinking of earlier
  // turns once a user speaks again.
  absl::StatusOr<std::string> RenderDelta(std::span<const Message> previous,
                                          std::span<const Message> added,
                                          const RenderOptions& options = {}) const;

  // What to append to the tokens of a sampled assistant turn that ended with the text `stop_text`
  // (the stop token, e.g. "<|im_end|>"), so that sampled ids are never tokenised again: everything
  // that the template prints behind that stop text, `added` and the generation prompt included. The
  // last of `previous` is the sampled turn; only its place counts, not its content, so this works
  // for templates that rewrite it. REQUIRES: previous ends with an assistant message, else an
  // error.
  absl::StatusOr<std::string> RenderNextTurn(std::span<const Message> previous,
                                             std::span<const Message> added,
                                             std::string_view stop_text,
                                             const RenderOptions& options = {}) const;

 private:
  ChatTemplate() = default;

  absl::Status AddTemplate(const std::string& name, std::string_view source,
                           const std::string& place);
  absl::Status AddConfiguredTemplates(const jinja::Value& configured, const std::string& place);
  absl::Status AddSpecialTokens(const jinja::Map& config, const std::string& place);
  absl::StatusOr<std::string> RenderValues(jinja::Value messages,
                                           const RenderOptions& options) const;
  absl::StatusOr<const jinja::Template*> Choose(bool with_tools) const;

  std::map<std::string, jinja::Template> templates_;  // by name; "default" and perhaps "tool_use"
  jinja::Map tokens_;
  std::string place_;
};

}  // namespace orrery::rollout
