#include "rollout/text/llama2c_tokenizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "orchestrator/base/status.h"
#include "rollout/text/tokenizer_json_writer.h"
#include "rollout/text/utf8.h"
#include "rollout/text/vocabulary.h"

namespace orrery::rollout {
namespace {

constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581
constexpr int kNumControlTokens = 3;
constexpr int kFirstOrdinaryToken = kNumControlTokens + 256;
constexpr std::string_view kControlTokens[kNumControlTokens] = {"<unk>", "<s>", "</s>"};
constexpr uint32_t kLongestToken = 1 << 16;

// What SentencePiece models say in tokenizer.json.
constexpr const char* kNormalizer =
    R"({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, )"
    R"({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]})";
constexpr const char* kPostProcessor =
    R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, )"
    R"({"Sequence": {"id": "A", "type_id": 0}}], )"
    R"("pair": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, )"
    R"({"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<s>", "type_id": 1}}, )"
    R"({"Sequence": {"id": "B", "type_id": 1}}], )"
    R"("special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}})";
constexpr const char* kDecoder =
    R"({"type": "Sequence", "decoders": [)"
    R"({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, )"
    R"({"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})";

struct ScoredToken {
  std::string text;  // with U+2581 for spaces
  float score = 0;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  size_t remaining() const { return bytes_.size() - position_; }
  size_t position() const { return position_; }

  // REQUIRES: 4 bytes remain.
  uint32_t Word() {
    uint32_t value = 0;
    for (int i = 3; i >= 0; --i) {
      value = (value << 8) | static_cast<uint8_t>(bytes_[position_ + i]);
    }
    position_ += 4;
    return value;
  }
  std::string_view Bytes(size_t count) {
    const std::string_view taken = bytes_.substr(position_, count);
    position_ += count;
    return taken;
  }

 private:
  std::string_view bytes_;
  size_t position_ = 0;
};

std::string WithMetaspace(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == ' ') {
      out += kMetaspace;
    } else {
      out.push_back(c);
    }
  }
  return out;
}

absl::StatusOr<ScoredToken> ReadToken(Reader* reader, size_t id) {
  const size_t where = reader->position();
  if (reader->remaining() < 8) {
    return InvalidInput("llama2.c tokenizer: token {} is cut off at byte {}", id, where);
  }
  const auto score = std::bit_cast<float>(reader->Word());
  const uint32_t length = reader->Word();
  if (length == 0 || length > kLongestToken || length > reader->remaining()) {
    return InvalidInput("llama2.c tokenizer: token {} at byte {} has length {}, {} bytes are left",
                        id, where, length, reader->remaining());
  }
  const std::string_view text = reader->Bytes(length);
  if (!IsValidUtf8(text) || !std::isfinite(score)) {
    return InvalidInput("llama2.c tokenizer: token {} at byte {}: {}", id, where,
                        std::isfinite(score) ? "its text is not UTF-8" : "its score is no number");
  }
  return ScoredToken{WithMetaspace(text), score};
}

absl::StatusOr<std::vector<ScoredToken>> ReadTokens(std::string_view bytes) {
  Reader reader(bytes);
  if (reader.remaining() < 4) {
    return InvalidInput("llama2.c tokenizer: {} bytes are no tokenizer", bytes.size());
  }
  reader.Word();  // the longest token's length: only run.c's buffer needs it
  std::vector<ScoredToken> tokens;
  while (reader.remaining() > 0) {
    ASSIGN_OR_RETURN(ScoredToken token, ReadToken(&reader, tokens.size()));
    tokens.push_back(std::move(token));
  }
  if (tokens.size() < kFirstOrdinaryToken) {
    return InvalidInput(
        "llama2.c tokenizer: {} tokens, expected at least {}: three control tokens "
        "and 256 bytes",
        tokens.size(), kFirstOrdinaryToken);
  }
  for (int i = 0; i < kFirstOrdinaryToken; ++i) {
    const std::string expected = i < kNumControlTokens
                                     ? std::string(kControlTokens[i])
                                     : fmt::format("<0x{:02X}>", i - kNumControlTokens);
    const bool matches = i == 1 || i == 2 ? tokens[i].text.find(expected) != std::string::npos
                                          : tokens[i].text == expected;
    if (!matches) {
      return InvalidInput("llama2.c tokenizer: token {} is '{}', expected {}", i, tokens[i].text,
                          expected);
    }
    tokens[i].text = expected;
  }
  return tokens;
}

struct ScoredMerge {
  float score;
  size_t left_length;
  int32_t id;
};

// Every way in which an ordinary token is two other tokens, best first. Of the ways to make one
// token the one with the longest left part comes first: llama2.c merges the leftmost pair, so that
// of equal characters in a row the left ones have grown already.
std::vector<ScoredMerge> FindMerges(const std::vector<ScoredToken>& tokens,
                                    const Vocabulary& vocabulary) {
  const auto is_ordinary = [&](std::string_view text) {
    return vocabulary.Find(text) >= kFirstOrdinaryToken;
  };
  std::vector<ScoredMerge> merges;
  for (size_t id = kFirstOrdinaryToken; id < tokens.size(); ++id) {
    const std::string_view text = tokens[id].text;
    for (size_t cut = ReadUtf8(text).length; cut < text.size();
         cut += ReadUtf8(text.substr(cut)).length) {
      if (!is_ordinary(text.substr(0, cut)) || !is_ordinary(text.substr(cut))) continue;
      merges.push_back({tokens[id].score, cut, static_cast<int32_t>(id)});
    }
  }
  std::ranges::sort(merges, [](const ScoredMerge& a, const ScoredMerge& b) {
    if (a.score != b.score) return a.score > b.score;
    if (a.id != b.id) return a.id < b.id;
    return a.left_length > b.left_length;
  });
  return merges;
}

}  // namespace

absl::StatusOr<std::string> Llama2cTokenizerJson(std::string_view bytes) {
  ASSIGN_OR_RETURN(const std::vector<ScoredToken> tokens, ReadTokens(bytes));
  Vocabulary vocabulary;
  TokenizerJson json;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (vocabulary.Find(tokens[id].text) != Vocabulary::kNone) {
      return InvalidInput("llama2.c tokenizer: tokens {} and {} are both '{}'",
                          vocabulary.Find(tokens[id].text), id, tokens[id].text);
    }
    RETURN_IF_ERROR(vocabulary.Add(tokens[id].text, static_cast<int64_t>(id)));
    json.vocabulary.push_back(tokens[id].text);
  }
  for (const ScoredMerge& merge : FindMerges(tokens, vocabulary)) {
    const std::string& text = tokens[merge.id].text;
    json.merges.emplace_back(text.substr(0, merge.left_length), text.substr(merge.left_length));
  }
  for (int i = 0; i < kNumControlTokens; ++i) {
    json.special_tokens.emplace_back(i, std::string(kControlTokens[i]));
  }
  json.byte_fallback = true;
  json.unk_token = kControlTokens[0];
  json.normalizer = kNormalizer;
  json.post_processor = kPostProcessor;
  json.decoder = kDecoder;
  return WriteTokenizerJson(json);
}

}  // namespace orrery::rollout
