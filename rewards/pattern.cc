#include "rewards/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"

namespace orrery::rewards {
namespace {

// Steps of the matcher in one call: some 10 ms on a slow core. Backtracking memory in KiB.
constexpr uint32_t kMatchLimit = 1'000'000;
constexpr uint32_t kDepthLimit = 100'000;
constexpr uint32_t kHeapLimitKib = 32 * 1024;

struct FreeContext {
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
};
using MatchContext = std::unique_ptr<pcre2_match_context, FreeContext>;
using CompileContext = std::unique_ptr<pcre2_compile_context, FreeContext>;
using MatchData = std::unique_ptr<pcre2_match_data, FreeContext>;

PCRE2_SPTR Bytes(std::string_view text) {
  static const char kEmpty[] = "";  // PCRE2 refuses a null subject
  return reinterpret_cast<PCRE2_SPTR>(text.data() ? text.data() : kEmpty);
}

MatchContext NewMatchContext() {
  MatchContext context(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_depth_limit(context.get(), kDepthLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  return context;
}

std::string ErrorText(int code) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof(buffer)) < 0) return "unknown error";
  return reinterpret_cast<const char*>(buffer);
}

void FillMatch(std::string_view text, pcre2_match_data* data, int num_groups,
               Pattern::Match* match) {
  const PCRE2_SIZE* spans = pcre2_get_ovector_pointer(data);
  match->begin = spans[0];
  match->end = spans[1];
  match->groups.clear();
  for (int i = 0; i < num_groups; ++i) {
    const bool took_part = spans[2 * i] != PCRE2_UNSET && spans[2 * i] <= spans[2 * i + 1];
    match->groups.push_back(took_part ? text.substr(spans[2 * i], spans[2 * i + 1] - spans[2 * i])
                                      : std::string_view());
  }
}

}  // namespace

void Pattern::Free::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

absl::StatusOr<Pattern> Pattern::Compile(std::string_view pattern, Options options) {
  uint32_t flags = PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C;
  if (options.ignore_case) flags |= PCRE2_CASELESS;
  if (options.dot_matches_newline) flags |= PCRE2_DOTALL;
  if (options.anchored_whole) flags |= PCRE2_ANCHORED | PCRE2_ENDANCHORED;
  CompileContext context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(Bytes(pattern), pattern.size(), flags, &error, &offset, context.get());
  if (!code) {
    return InvalidInput("regular expression '{}': {} at offset {}", pattern, ErrorText(error),
                        offset);
  }
  return Pattern(code);
}

Pattern Pattern::Fixed(std::string_view pattern) {
  absl::StatusOr<Pattern> compiled = Compile(pattern, {});
  CHECK(compiled.ok()) << compiled.status().message();
  return *std::move(compiled);
}

absl::StatusOr<bool> Pattern::Search(std::string_view text, Match* match, size_t from) const {
  const MatchContext context = NewMatchContext();
  const MatchData data(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  const int result =
      pcre2_match(code_.get(), Bytes(text), text.size(), from, 0, data.get(), context.get());
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) {
    return Exhausted("matching a text of {} bytes: {}", text.size(), ErrorText(result));
  }
  FillMatch(text, data.get(), result, match);
  return true;
}

absl::StatusOr<bool> Pattern::SearchLast(std::string_view text, Match* match) const {
  bool found = false;
  size_t from = 0;
  while (from <= text.size()) {
    Match next;
    ASSIGN_OR_RETURN(const bool more, Search(text, &next, from));
    if (!more) break;
    found = true;
    from = next.end > next.begin ? next.end : next.end + 1;
    *match = std::move(next);
  }
  return found;
}

size_t Pattern::num_groups() const {
  uint32_t count = 0;
  pcre2_pattern_info(code_.get(), PCRE2_INFO_CAPTURECOUNT, &count);
  return count;
}

std::string Pattern::ReplaceAll(std::string_view text, std::string_view replacement) const {
  const MatchContext context = NewMatchContext();
  constexpr uint32_t kFlags = PCRE2_SUBSTITUTE_GLOBAL | PCRE2_SUBSTITUTE_EXTENDED |
                              PCRE2_SUBSTITUTE_UNSET_EMPTY | PCRE2_SUBSTITUTE_OVERFLOW_LENGTH;
  PCRE2_SIZE size = 2 * text.size() + 64;
  for (int attempt = 0; attempt < 2; ++attempt) {
    std::string out(size, '\0');
    const int result = pcre2_substitute(code_.get(), Bytes(text), text.size(), 0, kFlags, nullptr,
                                        context.get(), Bytes(replacement), replacement.size(),
                                        reinterpret_cast<PCRE2_UCHAR*>(out.data()), &size);
    if (result >= 0) {
      out.resize(size);
      return out;
    }
    if (result != PCRE2_ERROR_NOMEMORY) break;
  }
  return std::string(text);
}

}  // namespace orrery::rewards
