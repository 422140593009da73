#include "rollout/text/added_tokens.h"

#include <algorithm>

#include "rollout/text/unicode_text.h"
#include "rollout/text/utf8.h"

namespace orrery::rollout {
namespace {

size_t WhiteSpaceAtStart(std::string_view text) {
  size_t length = 0;
  while (length < text.size()) {
    const Utf8Char c = ReadUtf8(text.substr(length));
    if (!IsWhiteSpace(c.code_point)) break;
    length += c.length;
  }
  return length;
}

// Where the white space at the end of the text begins.
size_t WhiteSpaceAtEnd(std::string_view text) {
  while (!text.empty()) {
    const char32_t c = LastUtf8(text);
    if (!IsWhiteSpace(c)) break;
    text.remove_suffix(EncodeUtf8(c).size());
  }
  return text.size();
}

}  // namespace

bool AddedTokenMatcher::Add(std::string_view pattern, const AddedToken& token) {
  int32_t at = 0;
  for (const char c : pattern) {
    const auto byte = static_cast<uint8_t>(c);
    int32_t next = Child(nodes_[at], byte);
    if (next < 0) {
      next = static_cast<int32_t>(nodes_.size());
      nodes_.emplace_back();
      auto& children = nodes_[at].children;
      children.insert(std::upper_bound(children.begin(), children.end(), std::pair{byte, next}),
                      {byte, next});
    }
    at = next;
  }
  if (nodes_[at].token >= 0) return false;
  nodes_[at].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back({token.id, token.single_word, token.lstrip, token.rstrip});
  is_first_byte_[static_cast<uint8_t>(pattern[0])] = true;
  return true;
}

int32_t AddedTokenMatcher::Child(const Node& node, uint8_t byte) {
  const auto child = std::lower_bound(node.children.begin(), node.children.end(),
                                      std::pair<uint8_t, int32_t>{byte, 0});
  return child != node.children.end() && child->first == byte ? child->second : -1;
}

bool AddedTokenMatcher::FindFrom(std::string_view text, size_t from, Match* match) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!is_first_byte_[static_cast<uint8_t>(text[begin])]) continue;
    match->token = nullptr;
    int32_t at = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      at = Child(nodes_[at], static_cast<uint8_t>(text[i]));
      if (at < 0) break;
      if (nodes_[at].token >= 0) *match = {begin, i + 1, &tokens_[nodes_[at].token]};
    }
    if (match->token != nullptr) return true;
  }
  return false;
}

bool AddedTokenMatcher::IsAllowed(std::string_view text, const Match& match) {
  if (!match.token->single_word) return true;
  const bool word_before =
      match.begin > 0 && IsWordCharacter(LastUtf8(text.substr(0, match.begin)));
  const bool word_after =
      match.end < text.size() && IsWordCharacter(ReadUtf8(text.substr(match.end)).code_point);
  return !word_before && !word_after;
}

void AddedTokenMatcher::Split(std::string_view text,
                              absl::FunctionRef<void(std::string_view)> on_text,
                              absl::FunctionRef<void(int32_t)> on_token) const {
  size_t done = 0;  // end of the last token with the white space it took
  size_t from = 0;  // where matching goes on: behind the last match itself
  Match match{};
  while (!empty() && FindFrom(text, from, &match)) {
    from = match.end;
    if (!IsAllowed(text, match)) continue;
    size_t begin = match.begin, end = match.end;
    if (match.token->lstrip) begin = std::max(WhiteSpaceAtEnd(text.substr(0, begin)), done);
    if (match.token->rstrip) end += WhiteSpaceAtStart(text.substr(end));
    if (done < begin) on_text(text.substr(done, begin - done));
    on_token(match.token->id);
    done = end;
  }
  if (done < text.size()) on_text(text.substr(done));
}

}  // namespace orrery::rollout
