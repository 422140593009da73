// CHECK(cond) << details: for mistakes of the programmer, always on, ends the process with the
// place and the values. What the world can get wrong (files, YAML, RPC, model text) is an
// absl::Status.
#pragma once

#include <cstdlib>
#include <iostream>
#include <sstream>

namespace orrery::internal {

// Collects the message and ends the process when it goes out of scope.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition) {
    stream_ << file << ':' << line << ": CHECK failed: " << condition << ' ';
  }
  [[noreturn]] ~CheckFailure() {
    std::cerr << stream_.str() << std::endl;
    std::abort();
  }
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

}  // namespace orrery::internal

#define CHECK(condition)      \
  if (condition) [[likely]] { \
  } else                      \
    ::orrery::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()

#define ORRERY_CHECK_OP(a, op, b)                                                    \
  if ((a)op(b)) [[likely]] {                                                         \
  } else                                                                             \
    ::orrery::internal::CheckFailure(__FILE__, __LINE__, #a " " #op " " #b).stream() \
        << "(" << (a) << " against " << (b) << ") "

#define CHECK_EQ(a, b) ORRERY_CHECK_OP(a, ==, b)
#define CHECK_NE(a, b) ORRERY_CHECK_OP(a, !=, b)
#define CHECK_LT(a, b) ORRERY_CHECK_OP(a, <, b)
#define CHECK_LE(a, b) ORRERY_CHECK_OP(a, <=, b)
#define CHECK_GT(a, b) ORRERY_CHECK_OP(a, >, b)
#define CHECK_GE(a, b) ORRERY_CHECK_OP(a, >=, b)
