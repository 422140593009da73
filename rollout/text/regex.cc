#include "rollout/text/regex.h"

#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"
#include "rollout/text/regex_syntax.h"
#include "rollout/text/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace orrery::rollout {
namespace {

constexpr size_t kJitStackStart = 32 * 1024;
constexpr size_t kJitStackMost = 16 * 1024 * 1024;

template <auto Free>
struct Freer {
  template <typename T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};

PCRE2_SPTR AsPcre(std::string_view text) {
  // PCRE2 wants a pointer even for nothing.
  return reinterpret_cast<PCRE2_SPTR>(text.empty() ? "" : text.data());
}

std::string ErrorText(int code) {
  char buffer[256] = {};
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(buffer), sizeof(buffer));
  return buffer;
}

}  // namespace

struct RegexScratch::Impl {
  std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>> match_data{
      pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>> context{
      pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, Freer<pcre2_jit_stack_free>> jit_stack{
      pcre2_jit_stack_create(kJitStackStart, kJitStackMost, nullptr)};
};

RegexScratch::RegexScratch() : impl_(std::make_unique<Impl>()) {
  CHECK(impl_->match_data != nullptr && impl_->context != nullptr) << "out of memory";
  // Without a stack of its own (no JIT on this machine) the context keeps the default.
  if (impl_->jit_stack != nullptr) {
    pcre2_jit_stack_assign(impl_->context.get(), nullptr, impl_->jit_stack.get());
  }
}
RegexScratch::~RegexScratch() = default;
RegexScratch::RegexScratch(RegexScratch&&) noexcept = default;
RegexScratch& RegexScratch::operator=(RegexScratch&&) noexcept = default;

struct Regex::Impl {
  std::unique_ptr<pcre2_code, Freer<pcre2_code_free>> code;
  bool jit = false;
};

Regex::Regex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

absl::StatusOr<Regex> Regex::CompilePcre2(std::string_view pattern, unsigned options) {
  const std::unique_ptr<pcre2_compile_context, Freer<pcre2_compile_context_free>> context{
      pcre2_compile_context_create(nullptr)};
  CHECK(context != nullptr) << "out of memory";
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);  // whatever the system's default is
  int error = 0;
  size_t where = 0;
  auto impl = std::make_unique<Impl>();
  impl->code.reset(
      pcre2_compile(AsPcre(pattern), pattern.size(), options, &error, &where, context.get()));
  if (impl->code == nullptr) {
    return InvalidInput("{} at byte {} of {}", ErrorText(error), where, pattern);
  }
  impl->jit = pcre2_jit_compile(impl->code.get(), PCRE2_JIT_COMPLETE) == 0;
  return Regex(std::move(impl));
}

absl::StatusOr<Regex> Regex::Compile(std::string_view pattern) {
  ASSIGN_OR_RETURN(const std::string translated, OnigurumaToPcre2(pattern));
  return CompilePcre2(translated,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
}

absl::StatusOr<Regex> Regex::Literal(std::string_view text) {
  return CompilePcre2(text, PCRE2_UTF | PCRE2_LITERAL);
}

bool Regex::Find(std::string_view text, size_t from, RegexScratch* scratch, size_t* begin,
                 size_t* end) const {
  RegexScratch::Impl& s = *scratch->impl_;
  const auto run = [&](auto match, uint32_t options) {
    return match(impl_->code.get(), AsPcre(text), text.size(), from, options, s.match_data.get(),
                 s.context.get());
  };
  int count = impl_->jit ? run(pcre2_jit_match, 0) : PCRE2_ERROR_JIT_STACKLIMIT;
  // The interpreter keeps its backtracking points on the heap and so gets further.
  if (count == PCRE2_ERROR_JIT_STACKLIMIT) {
    count = run(pcre2_match, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT);
  }
  if (count < 0) return false;
  const size_t* offsets = pcre2_get_ovector_pointer(s.match_data.get());
  // A look-behind with \K could end before it begins; \K is refused, this keeps the promise.
  if (offsets[1] < offsets[0]) return false;
  *begin = offsets[0];
  *end = offsets[1];
  return true;
}

bool Regex::Scan::Next(size_t* begin, size_t* end) {
  while (position_ <= text_.size()) {
    if (!regex_.Find(text_, position_, scratch_, begin, end)) return false;
    if (*begin == *end && last_match_end_ == *end) {
      if (position_ == text_.size()) return false;
      position_ += ReadUtf8(text_.substr(position_)).length;
      continue;
    }
    position_ = *end;
    last_match_end_ = *end;
    return true;
  }
  return false;
}

std::vector<MatchRange> Regex::Ranges(std::string_view text, RegexScratch* scratch) const {
  if (text.empty()) return {{0, 0, false}};
  std::vector<MatchRange> ranges;
  Scan scan(*this, text, scratch);
  size_t begin = 0, end = 0, done = 0;
  while (scan.Next(&begin, &end)) {
    if (done != begin) ranges.push_back({done, begin, false});
    ranges.push_back({begin, end, true});
    done = end;
  }
  if (done != text.size()) ranges.push_back({done, text.size(), false});
  return ranges;
}

}  // namespace orrery::rollout
