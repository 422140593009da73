// A compiled regular expression in the dialect of tokenizer.json files, matched by PCRE2: just in
// time compiled where the system allows it, interpreted where not.
//
// A Regex is immutable and may be used from any thread; what a match writes to is in a
// RegexScratch, one a thread.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace orrery::rollout {

class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(RegexScratch&&) noexcept;
  RegexScratch& operator=(RegexScratch&&) noexcept;

 private:
  friend class Regex;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A piece of the text between or at matches.
struct MatchRange {
  size_t begin = 0;
  size_t end = 0;
  bool is_match = false;
};

class Regex {
 public:
  // Oniguruma syntax; see regex_syntax.h for what is taken.
  static absl::StatusOr<Regex> Compile(std::string_view pattern);
  // Matches exactly `text`.
  static absl::StatusOr<Regex> Literal(std::string_view text);

  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Goes through the matches of one text from left to right, as Oniguruma's scan does: an empty
  // match right behind the last match does not count.
  class Scan {
   public:
    // REQUIRES: text is valid UTF-8 and outlives the scan.
    Scan(const Regex& regex, std::string_view text, RegexScratch* scratch)
        : regex_(regex), text_(text), scratch_(scratch) {}
    // False at the end. A pattern that exceeds PCRE2's limits on a text counts as no match there.
    bool Next(size_t* begin, size_t* end);

   private:
    const Regex& regex_;
    std::string_view text_;
    RegexScratch* scratch_;
    size_t position_ = 0;
    std::optional<size_t> last_match_end_;
  };

  // All of `text` in order, matches and what is between them.
  std::vector<MatchRange> Ranges(std::string_view text, RegexScratch* scratch) const;

 private:
  struct Impl;
  explicit Regex(std::unique_ptr<Impl> impl);
  static absl::StatusOr<Regex> CompilePcre2(std::string_view pattern, unsigned options);
  bool Find(std::string_view text, size_t from, RegexScratch* scratch, size_t* begin,
            size_t* end) const;

  std::unique_ptr<Impl> impl_;
};

}  // namespace orrery::rollout
