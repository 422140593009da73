// One HTTP request over libcurl. The answer's status is not judged here: any answer is a response;
// only a line that breaks (Unavailable) or a callback that refuses is an error.
//
// A token goes only to the origin (scheme, host, port) of the first URL, whatever redirects follow,
// and no redirect leads from https to http.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orrery::hub {

struct HttpResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string url;                             // that answered

  // Empty where absent.
  std::string Header(const std::string& lower_case_name) const;
};

struct HttpRequest {
  std::string url;
  bool head = false;
  // Where to stop: HEAD requests stop at a redirect to another origin, whose answer is the one
  // asked for; GET requests follow.
  std::string token;
  // In place of a token: the whole Authorization header, sent where the token would be.
  std::string authorization;
  std::string accept;  // empty: anything
  int64_t begin = 0;   // > 0: Range: bytes=begin-
  std::chrono::milliseconds connect_timeout{10'000};
  std::chrono::seconds stall_timeout{30};  // silence for so long is a broken line
  // The final response's status and headers, before its body. May be empty.
  std::function<absl::Status(const HttpResponse&)> on_headers;
  // The final response's body, in pieces. May be empty.
  std::function<absl::Status(std::string_view)> on_body;
};

absl::StatusOr<HttpResponse> Perform(const HttpRequest& request);

// %XX for all but letters, digits and -._~ and, where kept, slashes.
std::string UrlEscape(std::string_view text, bool keep_slashes);

}  // namespace orrery::hub
