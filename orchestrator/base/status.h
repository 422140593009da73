// Short forms around absl::Status, the error type of everything the outside world can get wrong.
//
//   return InvalidInput("{}: header is {} bytes, the file has {}", path, header, size);
//
// Texts are formatted by fmt, whose std::string_view arguments absl::StrCat does not take on every
// system (Debian's Abseil has a string_view of its own).
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define ORRERY_CONCAT_INNER(a, b) a##b
#define ORRERY_CONCAT(a, b) ORRERY_CONCAT_INNER(a, b)

// RETURN_IF_ERROR(DoIt()); returns the status of DoIt() to the caller unless it is OK. Its variable
// has a name that no expression has: with `status_` a member of that name would be read before it
// began.
#define RETURN_IF_ERROR(expression)                                           \
  do {                                                                        \
    if (absl::Status status_to_return = (expression); !status_to_return.ok()) \
      return status_to_return;                                                \
  } while (false)

// ASSIGN_OR_RETURN(auto value, Compute()); assigns the value, or returns the error to the caller.
#define ASSIGN_OR_RETURN(lhs, expression) \
  ASSIGN_OR_RETURN_INNER(ORRERY_CONCAT(status_or_, __LINE__), lhs, expression)
#define ASSIGN_OR_RETURN_INNER(temporary, lhs, expression) \
  auto temporary = (expression);                           \
  if (!temporary.ok()) return temporary.status();          \
  lhs = *std::move(temporary)

namespace orrery {

template <typename... Args>
absl::Status MakeStatus(absl::StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return absl::Status(code, fmt::format(format, std::forward<Args>(args)...));
}

// The user, a file or a model gave something that cannot be used: exit code 2 at the command line.
template <typename... Args>
absl::Status InvalidInput(fmt::format_string<Args...> format, Args&&... args) {
  return MakeStatus(absl::StatusCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

template <typename... Args>
absl::Status NotFound(fmt::format_string<Args...> format, Args&&... args) {
  return MakeStatus(absl::StatusCode::kNotFound, format, std::forward<Args>(args)...);
}

// Does not fit: memory, disk, a context window.
template <typename... Args>
absl::Status Exhausted(fmt::format_string<Args...> format, Args&&... args) {
  return MakeStatus(absl::StatusCode::kResourceExhausted, format, std::forward<Args>(args)...);
}

// Right in itself, but not now: a run directory in use, a resume of a finished run.
template <typename... Args>
absl::Status Precondition(fmt::format_string<Args...> format, Args&&... args) {
  return MakeStatus(absl::StatusCode::kFailedPrecondition, format, std::forward<Args>(args)...);
}

// Something outside failed and may work when tried again: network, a subprocess.
template <typename... Args>
absl::Status Unavailable(fmt::format_string<Args...> format, Args&&... args) {
  return MakeStatus(absl::StatusCode::kUnavailable, format, std::forward<Args>(args)...);
}

// The rest of what can go wrong outside.
template <typename... Args>
absl::Status Failed(fmt::format_string<Args...> format, Args&&... args) {
  return MakeStatus(absl::StatusCode::kInternal, format, std::forward<Args>(args)...);
}

// Not named Message: that is the chat message of types.h.
inline std::string StatusText(const absl::Status& status) { return std::string(status.message()); }

// The same error with the place in front: Annotate(status, "model.safetensors") gives
// "model.safetensors: header is not JSON".
inline absl::Status Annotate(const absl::Status& status, std::string_view place) {
  if (status.ok()) return status;
  return absl::Status(status.code(), fmt::format("{}: {}", place, StatusText(status)));
}

}  // namespace orrery
