#include "orchestrator/hub/retry.h"

#include <curl/curl.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <thread>

#include "orchestrator/base/status.h"

namespace orrery::hub {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxBodyBytes = 256 << 20;  // the list of a repository's files is far smaller

// Seconds, or a date as HTTP writes it; nothing sensible: zero.
milliseconds ParseRetryAfter(const std::string& text) {
  int64_t seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size()) {
    const std::time_t date = curl_getdate(text.c_str(), nullptr);
    if (date < 0) return milliseconds(0);
    seconds = static_cast<int64_t>(date - std::time(nullptr));
  }
  return milliseconds(std::clamp<int64_t>(seconds, 0, 1'000'000) * 1000);
}

}  // namespace

milliseconds Retrier::Delay(const std::string& retry_after) const {
  const int doublings = std::min(failures_ - 1, 20);
  const milliseconds own = std::min(policy_.first_delay * (1 << doublings), policy_.longest_delay);
  if (retry_after.empty()) return own;
  return std::max(own, std::min(ParseRetryAfter(retry_after), policy_.longest_retry_after));
}

bool Retrier::WaitForNext(const std::string& retry_after) {
  if (++failures_ >= policy_.attempts) return false;
  const milliseconds delay = Delay(retry_after);
  if (policy_.sleep) {
    policy_.sleep(delay);
  } else {
    std::this_thread::sleep_for(delay);
  }
  return true;
}

bool IsPassing(int http_status) {
  return http_status == 408 || http_status == 425 || http_status == 429 || http_status >= 500;
}

absl::Status HttpError(const HttpResponse& response, const std::string& what, bool has_token,
                       const std::string& page) {
  const std::string code = response.Header("x-error-code");
  if (code == "GatedRepo") {
    return absl::PermissionDeniedError(fmt::format(
        "{}: is gated (HTTP {}): accept its conditions at {} and set HF_TOKEN to a token of "
        "that account",
        what, response.status, page));
  }
  switch (response.status) {
    case 401:
      return absl::UnauthenticatedError(
          has_token
              ? fmt::format("{}: the hub does not accept the token (HTTP 401), or the repository "
                            "does not exist: check the name and HF_TOKEN",
                            what)
              : fmt::format("{}: does not exist, or is private or gated (HTTP 401): check the "
                            "name, or set HF_TOKEN",
                            what));
    case 403:
      return absl::PermissionDeniedError(fmt::format(
          "{}: the hub refuses access (HTTP 403): accept the conditions at {} if there are "
          "any, and check that the token may read it",
          what, page));
    case 404: {
      const char* missing = code == "RevisionNotFound" ? "no such revision"
                            : code == "EntryNotFound"  ? "no such file in it"
                            : code == "RepoNotFound"   ? "no such repository"
                                                       : "no such repository, revision or file";
      return NotFound("{}: {} (HTTP 404 from {})", what, missing, response.url);
    }
    default:
      break;
  }
  if (IsPassing(response.status)) {
    return Unavailable("{}: the hub answered HTTP {} each time: try again later", what,
                       response.status);
  }
  return Failed("{}: unexpected answer HTTP {} from {}", what, response.status, response.url);
}

absl::StatusOr<HttpResponse> PerformPatiently(HttpRequest request, const RetryPolicy& policy,
                                              std::string* body) {
  request.connect_timeout = policy.connect_timeout;
  request.stall_timeout = policy.stall_timeout;
  request.on_body = [&](std::string_view data) -> absl::Status {
    if (body == nullptr) return absl::OkStatus();
    if (body->size() + data.size() > kMaxBodyBytes) {
      return Failed("{}: the answer has more than {} bytes", request.url, kMaxBodyBytes);
    }
    body->append(data);
    return absl::OkStatus();
  };
  Retrier retrier(policy);
  while (true) {
    if (body != nullptr) body->clear();
    const absl::StatusOr<HttpResponse> response = Perform(request);
    const bool passing =
        response.ok() ? IsPassing(response->status) : absl::IsUnavailable(response.status());
    if (!passing) return response;
    if (!retrier.WaitForNext(response.ok() ? response->Header("retry-after") : "")) return response;
  }
}

}  // namespace orrery::hub
