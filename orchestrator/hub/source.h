// "hf:ORG/NAME[@REVISION][/PATH]" taken apart and checked. A revision with slashes writes them as
// %2F: hf:ORG/NAME@refs%2Fpr%2F1.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace orrery::hub {

struct HubSource {
  std::string repo;      // "ORG/NAME"
  std::string revision;  // empty where not given
  std::string path;      // inside the repository; empty: all of it
};

bool IsHubSource(std::string_view source);  // begins with "hf:"

absl::StatusOr<HubSource> ParseHubSource(std::string_view source);

// A relative path whose parts are real names: no "", ".", "..", no NUL. What a server sends is
// checked by this before it becomes a file name.
bool IsSafePath(std::string_view path);

}  // namespace orrery::hub
