// Repeats what fails for a passing reason, with growing pauses, and turns the hub's answers into
// errors that say what to do.
#pragma once

#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "orchestrator/hub/http.h"
#include "orchestrator/hub/hub.h"

namespace orrery::hub {

// Counts failures in a row and waits before the next try.
class Retrier {
 public:
  explicit Retrier(const RetryPolicy& policy) : policy_(policy) {}

  // After a failure: waits and returns true, or returns false when the tries are used up.
  // `retry_after` is the answer's header, empty where there was none: seconds or a date.
  bool WaitForNext(const std::string& retry_after);
  // Something new arrived: failures before it no longer count.
  void Reset() { failures_ = 0; }
  int failures() const { return failures_; }

 private:
  std::chrono::milliseconds Delay(const std::string& retry_after) const;

  const RetryPolicy& policy_;
  int failures_ = 0;
};

// 408, 425, 429 and 5xx: may work when tried again.
bool IsPassing(int http_status);

// What a final answer other than success means. `what` is "hf:ORG/NAME@main" or a file of it; the
// token's presence decides what a 401 advises.
absl::Status HttpError(const HttpResponse& response, const std::string& what, bool has_token,
                       const std::string& page);

// Perform() until an answer that is not passing. The body of the last answer is in `body`, if given
// (at most `max_body` bytes of it, more is an error).
absl::StatusOr<HttpResponse> PerformPatiently(HttpRequest request, const RetryPolicy& policy,
                                              std::string* body = nullptr);

}  // namespace orrery::hub
