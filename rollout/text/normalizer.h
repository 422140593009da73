// The normalizer of a tokenizer.json: what happens to a text before added tokens marked
// `normalized` and the pre-tokenizer see it. NFC, NFD, NFKC, NFKD (utf8proc), Prepend, Replace,
// Lowercase, Strip and sequences of them.
//
// Immutable; any thread may call, each with its own scratch.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "rollout/text/json_cursor.h"
#include "rollout/text/regex.h"

namespace orrery::rollout {

class Normalizer {
 public:
  // A null gives a normalizer that changes nothing.
  static absl::StatusOr<Normalizer> FromJson(const JsonCursor& node);

  bool is_identity() const { return steps_.empty(); }

  // The normalized text: `text` itself where nothing changes, else *buffer.
  // REQUIRES: text is valid UTF-8 and not inside *buffer.
  std::string_view Apply(std::string_view text, std::string* buffer, RegexScratch* scratch) const;

 private:
  enum class Form { kNfc, kNfd, kNfkc, kNfkd };
  struct Prepend {
    std::string prefix;
  };
  struct Replace {
    Regex pattern;
    std::string content;
  };
  struct Lowercase {};
  struct Strip {
    bool left, right;
  };
  using Step = std::variant<Form, Prepend, Replace, Lowercase, Strip>;

  absl::Status Add(const JsonCursor& node, int depth);
  absl::Status AddReplace(const JsonCursor& node);

  static bool ApplyStep(const Form& form, std::string_view text, std::string* out, RegexScratch*);
  static bool ApplyStep(const Prepend& step, std::string_view text, std::string* out,
                        RegexScratch*);
  static bool ApplyStep(const Replace& step, std::string_view text, std::string* out,
                        RegexScratch* scratch);
  static bool ApplyStep(const Lowercase&, std::string_view text, std::string* out, RegexScratch*);
  static bool ApplyStep(const Strip& step, std::string_view text, std::string* out, RegexScratch*);

  std::vector<Step> steps_;
};

// The pattern of Replace and Split: {"String": "a"} or {"Regex": "a+"}.
absl::StatusOr<Regex> RegexFromJson(const JsonCursor& node);

}  // namespace orrery::rollout
