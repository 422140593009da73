// What a tokenizer.json holds, parsed and checked; a Tokenizer is made of it. Any component or
// value that would change ids and is not supported is an error that names its key and value.
// truncation and padding are ignored: they are settings of a past caller.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "rollout/text/added_tokens.h"
#include "rollout/text/bpe.h"
#include "rollout/text/normalizer.h"
#include "rollout/text/pre_tokenizer.h"
#include "rollout/text/token_decoder.h"

namespace orrery::rollout {

struct TokenizerParts {
  BpeModel model;
  std::vector<AddedToken> added_tokens;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  TokenDecoder decoder;
  // What the post-processor puts around a text when special tokens are asked for.
  std::vector<int32_t> prefix_ids;
  std::vector<int32_t> suffix_ids;
};

absl::StatusOr<TokenizerParts> ParseTokenizerJson(std::string_view text);

}  // namespace orrery::rollout
