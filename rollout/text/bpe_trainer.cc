#include "rollout/text/bpe_trainer.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "orchestrator/base/status.h"
#include "rollout/text/added_tokens.h"
#include "rollout/text/byte_level.h"
#include "rollout/text/json_cursor.h"
#include "rollout/text/normalizer.h"
#include "rollout/text/pre_tokenizer.h"
#include "rollout/text/tokenizer_json_writer.h"
#include "rollout/text/utf8.h"

namespace orrery::rollout {
namespace {

constexpr int32_t kNumBytes = 256;
constexpr int64_t kLeastCount = 2;  // a pair seen once teaches nothing

constexpr const char* kNormalizer = R"({"type": "NFC"})";
constexpr const char* kPreTokenizer =
    R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": )"
    R"("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|)"
    R"( ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}, )"
    R"("behavior": "Isolated", "invert": false}, {"type": "ByteLevel", )"
    R"("add_prefix_space": false, "trim_offsets": false, "use_regex": false}]})";
constexpr const char* kByteLevel =
    R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false})";

struct Word {
  std::vector<int32_t> ids;
  int64_t count = 0;
};

struct Pair {
  int32_t left, right;
  bool operator==(const Pair&) const = default;
  auto operator<=>(const Pair&) const = default;
};

struct PairHash {
  size_t operator()(const Pair& pair) const {
    return (static_cast<uint64_t>(static_cast<uint32_t>(pair.left)) << 32 |
            static_cast<uint32_t>(pair.right)) *
           0x9e3779b97f4a7c15u;
  }
};

// The different words of the texts with their counts, in byte order.
absl::StatusOr<std::vector<Word>> CountWords(std::span<const std::string> texts,
                                             const AddedTokenMatcher& special_tokens) {
  rapidjson::Document normalizer_json, pre_tokenizer_json;
  RETURN_IF_ERROR(ParseJson(kNormalizer, &normalizer_json));
  RETURN_IF_ERROR(ParseJson(kPreTokenizer, &pre_tokenizer_json));
  ASSIGN_OR_RETURN(const Normalizer normalizer,
                   Normalizer::FromJson(JsonCursor(normalizer_json, "normalizer")));
  ASSIGN_OR_RETURN(const PreTokenizer pre_tokenizer,
                   PreTokenizer::FromJson(JsonCursor(pre_tokenizer_json, "pre_tokenizer")));
  std::map<std::string, int64_t, std::less<>> counts;
  RegexScratch scratch;
  std::string buffer;
  const auto count_word = [&](std::string_view word) {
    const auto known = counts.find(word);
    known != counts.end() ? ++known->second : counts[std::string(word)] = 1;
  };
  for (const std::string& text : texts) {
    special_tokens.Split(
        ReplaceInvalidUtf8(text),
        [&](std::string_view segment) {
          pre_tokenizer.Split(normalizer.Apply(segment, &buffer, &scratch), false, &scratch,
                              count_word);
        },
        [](int32_t) {});
  }
  std::vector<Word> words;
  for (const auto& [text, count] : counts) {
    Word word{.count = count};
    for (const char byte : text) word.ids.push_back(static_cast<uint8_t>(byte));
    words.push_back(std::move(word));
  }
  return words;
}

// The most frequent pair, the smallest of those; its count is 0 where no word has a pair left.
std::pair<Pair, int64_t> MostFrequentPair(const std::vector<Word>& words) {
  std::unordered_map<Pair, int64_t, PairHash> counts;
  for (const Word& word : words) {
    for (size_t i = 0; i + 1 < word.ids.size(); ++i) {
      counts[{word.ids[i], word.ids[i + 1]}] += word.count;
    }
  }
  std::pair<Pair, int64_t> best{{0, 0}, 0};
  for (const auto& [pair, count] : counts) {
    if (count > best.second || (count == best.second && pair < best.first)) best = {pair, count};
  }
  return best;
}

void MergePair(Pair pair, int32_t new_id, std::vector<Word>* words) {
  for (Word& word : *words) {
    size_t kept = 0;
    for (size_t i = 0; i < word.ids.size(); ++i, ++kept) {
      const bool joins =
          i + 1 < word.ids.size() && word.ids[i] == pair.left && word.ids[i + 1] == pair.right;
      word.ids[kept] = joins ? new_id : word.ids[i];
      if (joins) ++i;
    }
    word.ids.resize(kept);
  }
}

absl::StatusOr<AddedTokenMatcher> MatchSpecialTokens(std::span<const std::string> special_tokens) {
  AddedTokenMatcher matcher;
  for (const std::string& token : special_tokens) {
    if (token.empty() || !IsValidUtf8(token)) {
      return InvalidInput("special token '{}' must be UTF-8 and not empty",
                          ReplaceInvalidUtf8(token));
    }
    if (!matcher.Add(token, {})) return InvalidInput("special token '{}' is given twice", token);
  }
  return matcher;
}

// Merges until the vocabulary has `size` tokens or no pair is frequent enough. Two pairs may make
// the same token (a+bc, ab+c); it is then one token with two merges.
void LearnMerges(int64_t size, std::vector<Word>* words, TokenizerJson* json) {
  std::unordered_map<std::string, int32_t> ids;
  while (static_cast<int64_t>(json->vocabulary.size()) < size) {
    const auto [pair, count] = MostFrequentPair(*words);
    if (count < kLeastCount) return;
    const std::string left = json->vocabulary[pair.left], right = json->vocabulary[pair.right];
    const auto next_id = static_cast<int32_t>(json->vocabulary.size());
    const auto [known, is_new] = ids.emplace(left + right, next_id);
    if (is_new) json->vocabulary.push_back(left + right);
    MergePair(pair, known->second, words);
    json->merges.emplace_back(left, right);
  }
}

}  // namespace

absl::StatusOr<std::string> TrainByteLevelBpe(std::span<const std::string> texts,
                                              int32_t vocab_size,
                                              std::span<const std::string> special_tokens) {
  const auto num_special = static_cast<int64_t>(special_tokens.size());
  if (vocab_size < kNumBytes + num_special) {
    return InvalidInput("vocab_size {} is too small: 256 bytes and {} special tokens need {}",
                        vocab_size, num_special, kNumBytes + num_special);
  }
  ASSIGN_OR_RETURN(const AddedTokenMatcher matcher, MatchSpecialTokens(special_tokens));
  ASSIGN_OR_RETURN(std::vector<Word> words, CountWords(texts, matcher));
  TokenizerJson json;
  for (int byte = 0; byte < kNumBytes; ++byte) {
    json.vocabulary.emplace_back(ByteLevelChar(static_cast<uint8_t>(byte)));
  }
  LearnMerges(vocab_size - num_special, &words, &json);
  for (const std::string& token : special_tokens) {
    if (std::ranges::count(json.vocabulary, token) > 0) {
      return InvalidInput("special token '{}' is an ordinary token too", token);
    }
    const auto id = static_cast<int32_t>(json.vocabulary.size() + json.special_tokens.size());
    json.special_tokens.emplace_back(id, token);
  }
  json.normalizer = kNormalizer;
  json.pre_tokenizer = kPreTokenizer;
  json.post_processor = kByteLevel;
  json.decoder = kByteLevel;
  return WriteTokenizerJson(json);
}

}  // namespace orrery::rollout
