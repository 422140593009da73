#include "rollout/text/tokenizer_config.h"

#include "orchestrator/base/status.h"
#include "rollout/text/json_cursor.h"

namespace orrery::rollout {
namespace {

// "<s>" or {"content": "<s>", ...}; an earlier file's word stands.
absl::Status ReadToken(const JsonCursor& node, std::optional<std::string>* token) {
  if (node.is_null() || token->has_value()) return absl::OkStatus();
  const JsonCursor content = node.is_object() ? node["content"] : node;
  ASSIGN_OR_RETURN(*token, content.String());
  return absl::OkStatus();
}

absl::Status ReadBool(const JsonCursor& node, std::optional<bool>* value) {
  if (node.is_null()) return absl::OkStatus();
  ASSIGN_OR_RETURN(*value, node.Bool());
  return absl::OkStatus();
}

absl::Status ReadFile(std::string_view text, TokenizerConfig* config) {
  rapidjson::Document document;
  RETURN_IF_ERROR(ParseJson(text, &document));
  const JsonCursor root(document, "");
  RETURN_IF_ERROR(ReadToken(root["bos_token"], &config->bos_token));
  RETURN_IF_ERROR(ReadToken(root["eos_token"], &config->eos_token));
  RETURN_IF_ERROR(ReadToken(root["pad_token"], &config->pad_token));
  RETURN_IF_ERROR(ReadBool(root["add_bos_token"], &config->add_bos_token));
  return ReadBool(root["add_eos_token"], &config->add_eos_token);
}

}  // namespace

absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(std::string_view tokenizer_config_json,
                                                     std::string_view special_tokens_map_json) {
  TokenizerConfig config;
  if (!tokenizer_config_json.empty()) {
    const absl::Status status = ReadFile(tokenizer_config_json, &config);
    if (!status.ok()) return Annotate(status, "tokenizer_config.json");
  }
  if (!special_tokens_map_json.empty()) {
    const absl::Status status = ReadFile(special_tokens_map_json, &config);
    if (!status.ok()) return Annotate(status, "special_tokens_map.json");
  }
  return config;
}

}  // namespace orrery::rollout
