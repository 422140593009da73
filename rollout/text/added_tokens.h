// Tokens that are cut out of a text before anything else happens to it (<|im_start|> and the like),
// leftmost first, the longest of those that begin at one place; with the options of tokenizer.json:
// single_word, lstrip, rstrip.
//
// Filled once, then immutable; any thread may call.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"

namespace orrery::rollout {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;      // left out by Decode when asked
  bool single_word = false;  // not beside a letter or digit
  bool lstrip = false;       // takes the white space to its left with it
  bool rstrip = false;
  bool normalized = false;  // looked for in the normalized text
};

// A trie over the patterns. Texts seldom hold a first byte of one, so that most bytes cost one look
// into a table of 256.
class AddedTokenMatcher {
 public:
  // REQUIRES: pattern is not empty. False where the same pattern is there already.
  bool Add(std::string_view pattern, const AddedToken& token);
  bool empty() const { return tokens_.empty(); }

  // Calls on_text for each stretch without tokens (never empty) and on_token for each token, in
  // order. REQUIRES: text is valid UTF-8.
  void Split(std::string_view text, absl::FunctionRef<void(std::string_view)> on_text,
             absl::FunctionRef<void(int32_t)> on_token) const;

 private:
  struct Options {
    int32_t id;
    bool single_word, lstrip, rstrip;
  };
  struct Node {
    std::vector<std::pair<uint8_t, int32_t>> children;  // sorted by byte
    int32_t token = -1;                                 // index into tokens_
  };
  struct Match {
    size_t begin, end;
    const Options* token;
  };

  static int32_t Child(const Node& node, uint8_t byte);
  bool FindFrom(std::string_view text, size_t from, Match* match) const;
  static bool IsAllowed(std::string_view text, const Match& match);

  std::vector<Node> nodes_{1};
  std::vector<Options> tokens_;
  std::array<bool, 256> is_first_byte_{};
};

}  // namespace orrery::rollout
