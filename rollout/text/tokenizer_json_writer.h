// Writing the parts of a tokenizer.json. Not thread-safe; one writer a text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace orrery::rollout {

struct TokenizerJson {
  std::vector<std::string> vocabulary;  // by id
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<std::pair<int32_t, std::string>> special_tokens;  // ids and texts, ascending
  bool byte_fallback = false;
  std::string unk_token;  // empty: null
  // The components as JSON text; "null" where there is none.
  std::string normalizer = "null";
  std::string pre_tokenizer = "null";
  std::string post_processor = "null";
  std::string decoder = "null";
};

// A tokenizer.json that Hugging Face's tokenizers and this project read alike.
std::string WriteTokenizerJson(const TokenizerJson& tokenizer);

}  // namespace orrery::rollout
