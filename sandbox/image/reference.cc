#include "sandbox/image/reference.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string_view>

#include "orchestrator/base/status.h"
#include "sandbox/image/digest.h"

namespace orrery::sandbox::image {
namespace {

constexpr size_t kMaxTag = 128, kMaxName = 255;

bool IsTag(std::string_view tag) {
  if (tag.empty() || tag.size() > kMaxTag || tag[0] == '.' || tag[0] == '-') return false;
  return std::all_of(tag.begin(), tag.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '-';
  });
}

// Lower-case letters and digits with single separators between them.
bool IsPathComponent(std::string_view name) {
  const auto alphanumeric = [](unsigned char c) { return std::islower(c) || std::isdigit(c); };
  if (name.empty() || !alphanumeric(name.front()) || !alphanumeric(name.back())) return false;
  return std::all_of(name.begin(), name.end(), [&](unsigned char c) {
    return alphanumeric(c) || c == '.' || c == '_' || c == '-';
  });
}

bool IsPath(std::string_view path) {
  if (path.size() > kMaxName) return false;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    if (!IsPathComponent(path.substr(begin, end - begin))) return false;
    begin = end + 1;
  }
  return true;
}

bool IsHost(std::string_view host) {
  if (host.empty() || (std::isalnum(static_cast<unsigned char>(host[0])) == 0 && host[0] != '[')) {
    return false;
  }
  return std::all_of(host.begin(), host.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == ':' || c == '[' || c == ']';
  });
}

// "localhost", a dot or a port make a first component a host.
bool LooksLikeHost(std::string_view name) {
  return name == "localhost" || name.find_first_of(".:[") != std::string_view::npos;
}

}  // namespace

absl::StatusOr<Reference> ParseReference(const std::string& text) {
  const auto wrong = [&] {
    return InvalidInput(
        "'{}' is no image reference of the form [HOST[:PORT]/]NAME[:TAG]"
        "[@sha256:DIGEST] (names are lower case)",
        text);
  };
  Reference reference;
  std::string rest = text;
  if (const size_t at = rest.find('@'); at != std::string::npos) {
    reference.digest = rest.substr(at + 1);
    rest.resize(at);
    if (!IsDigest(reference.digest)) return wrong();
  }
  if (const size_t slash = rest.find('/');
      slash != std::string::npos && LooksLikeHost(std::string_view(rest).substr(0, slash))) {
    reference.host = rest.substr(0, slash);
    rest.erase(0, slash + 1);
    if (!IsHost(reference.host)) return wrong();
  }
  if (const size_t colon = rest.rfind(':'); colon != std::string::npos) {
    reference.tag = rest.substr(colon + 1);
    rest.resize(colon);
    if (!IsTag(reference.tag)) return wrong();
  }
  if (reference.host.empty()) reference.host = "docker.io";
  const bool official = reference.host == "docker.io" && rest.find('/') == std::string::npos;
  reference.path = official ? "library/" + rest : rest;
  if (!IsPath(reference.path)) return wrong();
  if (reference.tag.empty() && reference.digest.empty()) reference.tag = "latest";
  return reference;
}

std::string LocalName(const std::string& text) {
  const absl::StatusOr<Reference> reference = ParseReference(text);
  if (!reference.ok()) return text;
  std::string name = reference->path;
  if (reference->host != "docker.io") name = reference->host + "/" + name;
  if (reference->host == "docker.io" && name.starts_with("library/")) {
    name.erase(0, std::string_view("library/").size());
  }
  if (!reference->tag.empty()) name += ":" + reference->tag;
  if (!reference->digest.empty()) name += "@" + reference->digest;
  return name;
}

std::string NameOfFile(const std::string& path) {
  std::string name = std::filesystem::absolute(path).lexically_normal().filename().string();
  if (name.empty()) {
    name = std::filesystem::absolute(path).lexically_normal().parent_path().filename().string();
  }
  for (const std::string_view suffix : {".gz", ".tgz", ".zst", ".tzst", ".tar"}) {
    if (name.ends_with(suffix)) name.resize(name.size() - suffix.size());
  }
  std::string clean;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && std::isalnum(byte) != 0) {
      clean += static_cast<char>(std::tolower(byte));
    } else if (!clean.empty() && clean.back() != '-') {
      clean += '-';
    }
  }
  while (clean.ends_with('-')) clean.pop_back();
  return clean.empty() ? "image" : clean;
}

}  // namespace orrery::sandbox::image
