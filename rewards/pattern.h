// A compiled regular expression (PCRE2) with limits under which no subject can make it hang:
// matching that exceeds them is an error, not a wait. Immutable after Compile; any thread may
// match.
//
// Text is UTF-8; bytes that are not match nothing but do no harm. Newline is LF alone, as in
// Python's re, with which the graders of other projects were measured.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

struct pcre2_real_code_8;

namespace orrery::rewards {

class Pattern {
 public:
  struct Options {
    bool ignore_case = false;
    bool dot_matches_newline = false;
    bool anchored_whole = false;  // the pattern must match the whole text
  };
  // A match: text of each group, empty for one that took no part; [0] is the whole match.
  struct Match {
    size_t begin = 0;
    size_t end = 0;
    std::vector<std::string_view> groups;
  };

  static absl::StatusOr<Pattern> Compile(std::string_view pattern, Options options);
  // For patterns in the source: a mistake in one is the programmer's.
  static Pattern Fixed(std::string_view pattern);

  // The first match at or after `from`; found() false if none. ResourceExhausted past the limits.
  absl::StatusOr<bool> Search(std::string_view text, Match* match, size_t from = 0) const;
  // The last of the non-overlapping matches read from the left (Python's findall()[-1]).
  absl::StatusOr<bool> SearchLast(std::string_view text, Match* match) const;
  size_t num_groups() const;

  // Every match replaced; `replacement` is PCRE2's: $1, ${1}x, $$. Past the limits the text stays.
  std::string ReplaceAll(std::string_view text, std::string_view replacement) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  explicit Pattern(pcre2_real_code_8* code) : code_(code, Free()) {}
  std::shared_ptr<pcre2_real_code_8> code_;
};

}  // namespace orrery::rewards
