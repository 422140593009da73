// The special tokens that a model folder names beside its tokenizer.json: tokenizer_config.json
// and, for what that does not say, special_tokens_map.json.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace orrery::rollout {

struct TokenizerConfig {
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::optional<std::string> pad_token;
  // Where present they overrule tokenizer.json's post-processor about that one token.
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
};

// Either text may be empty: no such file.
absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(std::string_view tokenizer_config_json,
                                                     std::string_view special_tokens_map_json);

}  // namespace orrery::rollout
