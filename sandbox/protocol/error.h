// How the static helper reports failure: what it tried, and errno. No Abseil, no exceptions.
#pragma once

#include <cerrno>
#include <string>
#include <string_view>
#include <utility>

namespace orrery::sandbox {

struct Error {
  int number = 0;  // 0: fine
  std::string what;
  explicit operator bool() const { return number != 0; }
};

// REQUIRES: errno is set by what failed.
inline Error LastError(std::string_view what) { return {errno, std::string(what)}; }

}  // namespace orrery::sandbox

// TRY(Step()); hands the error of a step to the caller.
#define ORRERY_TRY(expression)                                                 \
  do {                                                                         \
    if (::orrery::sandbox::Error error_ = (expression); error_) return error_; \
  } while (false)
