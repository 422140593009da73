#include "trainer/model/import_gguf_vocab.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "orchestrator/base/status.h"
#include "trainer/model/file_dtype.h"
#include "trainer/model/utf8.h"

namespace orrery::model {
namespace {

constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
constexpr std::string_view kTypes = "tokenizer.ggml.token_type";
constexpr std::string_view kMerges = "tokenizer.ggml.merges";
constexpr std::string_view kScores = "tokenizer.ggml.scores";

absl::StatusOr<std::vector<TokenKind>> ReadKinds(const GgufFile& file, size_t num_pieces) {
  std::vector<TokenKind> kinds(num_pieces, TokenKind::kNormal);
  if (!file.Has(kTypes)) return kinds;
  ASSIGN_OR_RETURN(const std::vector<int64_t> numbers, file.GetInts(kTypes));
  if (numbers.size() != num_pieces) {
    return InvalidInput("{}: {} has {} elements, {} has {}", file.path(), kTypes, numbers.size(),
                        kTokens, num_pieces);
  }
  for (size_t i = 0; i < num_pieces; ++i) {
    if (numbers[i] < 1 || numbers[i] > 6) {
      return InvalidInput("{}: {}: type {} of token {} is unknown (1 to 6 are known)", file.path(),
                          kTypes, numbers[i], i);
    }
    kinds[i] = static_cast<TokenKind>(numbers[i]);
  }
  return kinds;
}

void DropPadding(std::vector<std::string_view>& pieces) {
  while (!pieces.empty() && pieces.back() == fmt::format("[PAD{}]", pieces.size() - 1)) {
    pieces.pop_back();
  }
}

absl::StatusOr<Merge> SplitMerge(const GgufFile& file, const GgufVocab& vocab,
                                 std::string_view text) {
  const size_t space = text.find(' ', 1);
  if (space == std::string_view::npos) {
    return InvalidInput("{}: {}: '{}' is not two pieces with a space between", file.path(), kMerges,
                        Printable(text));
  }
  const Merge merge(text.substr(0, space), text.substr(space + 1));
  std::string whole(merge.first);
  whole += merge.second;
  for (const std::string_view piece : {merge.first, merge.second, std::string_view(whole)}) {
    if (vocab.ids.contains(piece)) continue;
    return InvalidInput("{}: {}: '{}': the vocabulary has no '{}'", file.path(), kMerges,
                        Printable(text), Printable(piece));
  }
  return merge;
}

// A merge with what decides its place. Of equal scores the longer left part goes first, then the
// longer right part, then the lower ids: the order that transformers' converter gives.
struct ScoredMerge {
  Merge merge;
  float score;
  int64_t piece;
  int64_t left;
  int64_t right;
  size_t left_chars;
  size_t right_chars;

  friend bool operator<(const ScoredMerge& a, const ScoredMerge& b) {
    return std::tie(b.score, b.left_chars, b.right_chars, a.piece, a.left, a.right) <
           std::tie(a.score, a.left_chars, a.right_chars, b.piece, b.left, b.right);
  }
};

size_t NumChars(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

void SplitPiece(const GgufVocab& vocab, int64_t id, float score, std::vector<ScoredMerge>& merges) {
  const std::string_view piece = vocab.pieces[static_cast<size_t>(id)];
  for (size_t at = Utf8Length(piece); at < piece.size(); at += Utf8Length(piece.substr(at))) {
    const auto left = vocab.ids.find(piece.substr(0, at));
    const auto right = vocab.ids.find(piece.substr(at));
    if (left == vocab.ids.end() || right == vocab.ids.end()) continue;
    const bool normal = vocab.kinds[static_cast<size_t>(left->second)] == TokenKind::kNormal &&
                        vocab.kinds[static_cast<size_t>(right->second)] == TokenKind::kNormal;
    if (!normal) continue;
    merges.push_back({{left->first, right->first},
                      score,
                      id,
                      left->second,
                      right->second,
                      NumChars(left->first),
                      NumChars(right->first)});
  }
}

}  // namespace

absl::StatusOr<GgufVocab> ReadVocab(const GgufFile& file) {
  GgufVocab vocab;
  ASSIGN_OR_RETURN(vocab.pieces, file.GetStrings(kTokens));
  ASSIGN_OR_RETURN(vocab.kinds, ReadKinds(file, vocab.pieces.size()));
  DropPadding(vocab.pieces);
  vocab.kinds.resize(vocab.pieces.size());
  for (size_t i = 0; i < vocab.pieces.size(); ++i) {
    const std::string_view piece = vocab.pieces[i];
    if (piece.empty() || !IsUtf8(piece)) {
      return InvalidInput("{}: {}: token {} '{}' is empty or not UTF-8", file.path(), kTokens, i,
                          Printable(piece));
    }
    const auto [found, is_new] = vocab.ids.emplace(piece, static_cast<int64_t>(i));
    if (!is_new) {
      return InvalidInput("{}: {}: '{}' stands there twice, as {} and {}", file.path(), kTokens,
                          Printable(piece), found->second, i);
    }
  }
  if (vocab.pieces.empty()) return InvalidInput("{}: {} is empty", file.path(), kTokens);
  return vocab;
}

absl::StatusOr<std::vector<Merge>> ReadMerges(const GgufFile& file, const GgufVocab& vocab) {
  if (!file.Has(kMerges)) {
    return InvalidInput(
        "{}: has no {}: a byte-level BPE tokenizer cannot work without merges (the "
        "file is too old or damaged: convert it again)",
        file.path(), kMerges);
  }
  ASSIGN_OR_RETURN(const std::vector<std::string_view> texts, file.GetStrings(kMerges));
  std::vector<Merge> merges;
  merges.reserve(texts.size());
  for (const std::string_view text : texts) {
    ASSIGN_OR_RETURN(const Merge merge, SplitMerge(file, vocab, text));
    merges.push_back(merge);
  }
  return merges;
}

absl::StatusOr<std::vector<Merge>> MergesFromScores(const GgufFile& file, const GgufVocab& vocab) {
  ASSIGN_OR_RETURN(const std::vector<float> scores, file.GetFloats(kScores));
  if (scores.size() < vocab.pieces.size()) {
    return InvalidInput("{}: {} has {} elements for {} tokens", file.path(), kScores, scores.size(),
                        vocab.pieces.size());
  }
  std::vector<ScoredMerge> scored;
  for (size_t i = 0; i < vocab.pieces.size(); ++i) {
    if (vocab.kinds[i] != TokenKind::kNormal) continue;
    if (std::isnan(scores[i])) {
      return InvalidInput("{}: {}: the score of token {} is not a number", file.path(), kScores, i);
    }
    SplitPiece(vocab, static_cast<int64_t>(i), scores[i], scored);
  }
  std::sort(scored.begin(), scored.end());
  std::vector<Merge> merges;
  merges.reserve(scored.size());
  for (const ScoredMerge& one : scored) merges.push_back(one.merge);
  return merges;
}

}  // namespace orrery::model
