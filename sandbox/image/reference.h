// Names of images: "[HOST[:PORT]/]PATH[:TAG][@sha256:...]", as Docker's reference grammar has them.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace orrery::sandbox::image {

struct Reference {
  std::string host;    // "docker.io" where none is written
  std::string path;    // "library/debian"
  std::string tag;     // "latest" where neither tag nor digest is written
  std::string digest;  // "sha256:..." or empty

  // What a registry is asked for.
  const std::string& version() const { return digest.empty() ? tag : digest; }
};

absl::StatusOr<Reference> ParseReference(const std::string& text);

// How the store calls it: without "docker.io/" and "library/", with ":latest" where no tag or
// digest is written. Text that is no reference comes back as it is.
std::string LocalName(const std::string& text);

// A name made of a file's: lower case, other characters as '-', without its suffixes.
std::string NameOfFile(const std::string& path);

}  // namespace orrery::sandbox::image
