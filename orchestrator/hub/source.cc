#include "orchestrator/hub/source.h"

#include <algorithm>

#include "orchestrator/base/status.h"

namespace orrery::hub {
namespace {

constexpr std::string_view kPrefix = "hf:";

bool IsRepoName(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  return !name.empty() && name.front() != '-' && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), allowed) &&
         name.find("..") == std::string_view::npos && name.find("--") == std::string_view::npos;
}

std::string WithSlashes(std::string_view text) {
  std::string plain;
  while (!text.empty()) {
    const bool slash = text.starts_with("%2F") || text.starts_with("%2f");
    plain += slash ? '/' : text.front();
    text.remove_prefix(slash ? 3 : 1);
  }
  return plain;
}

}  // namespace

bool IsHubSource(std::string_view source) { return source.starts_with(kPrefix); }

bool IsSafePath(std::string_view path) {
  if (path.find('\0') != std::string_view::npos) return false;
  while (true) {
    const size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

absl::StatusOr<HubSource> ParseHubSource(std::string_view source) {
  const auto error = [&](std::string_view why) {
    return InvalidInput("'{}': {}; write hf:ORG/NAME[@REVISION][/PATH]", source, why);
  };
  std::string_view rest = source.substr(std::min(kPrefix.size(), source.size()));
  const size_t slash = rest.find('/');
  if (slash == std::string_view::npos) return error("the organisation is missing");
  const std::string_view organisation = rest.substr(0, slash);
  rest.remove_prefix(slash + 1);
  const std::string_view name = rest.substr(0, rest.find_first_of("@/"));
  rest.remove_prefix(name.size());
  if (!IsRepoName(organisation) || !IsRepoName(name)) {
    return error("that is not the name of a repository");
  }
  HubSource parsed;
  parsed.repo = fmt::format("{}/{}", organisation, name);
  if (rest.starts_with('@')) {
    const std::string_view revision = rest.substr(1, rest.find('/') - 1);
    rest.remove_prefix(1 + revision.size());
    parsed.revision = WithSlashes(revision);
    if (!IsSafePath(parsed.revision)) return error("the revision after @ is not one");
  }
  while (rest.ends_with('/')) rest.remove_suffix(1);
  if (!rest.empty()) {
    parsed.path = std::string(rest.substr(1));
    if (!IsSafePath(parsed.path)) return error("the path inside the repository is not one");
  }
  return parsed;
}

}  // namespace orrery::hub
