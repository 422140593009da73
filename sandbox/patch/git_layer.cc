#include "sandbox/patch/git_layer.h"

#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <sstream>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"

namespace orrery::sandbox {
namespace {

namespace fs = std::filesystem;
constexpr char kGit[] = "/usr/bin/git";
constexpr char kInside[] = "/.orrery/git";

absl::StatusOr<std::string> OutputOf(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "re"), &::pclose);
  if (pipe == nullptr) return Failed("cannot run {}", command);
  std::string text;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), pipe.get())) text.append(buffer, n);
  return text;
}

// Every file that a line of ldd names: "NAME => PATH (ADDRESS)" and, of the loader, "PATH
// (ADDRESS)".
std::vector<std::string> Libraries(const std::string& text) {
  std::vector<std::string> paths;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (word.starts_with("/")) paths.push_back(word);
  }
  return paths;
}

}  // namespace

absl::Status MakeGitLayer(const std::string& folder) {
  if (!fs::exists(kGit)) return NotFound("patches need git on this host: apt-get install git");
  ASSIGN_OR_RETURN(const std::string listing, OutputOf(std::string("ldd ") + kGit));
  const std::string place = folder + kInside;
  RETURN_IF_ERROR(MakeFolders(place));
  std::error_code error;
  fs::copy_file(kGit, place + "/git", fs::copy_options::overwrite_existing, error);
  bool loader = false;
  for (const std::string& path : Libraries(listing)) {
    const std::string name = fs::path(path).filename().string();
    const bool is_loader = name.starts_with("ld-");
    loader = loader || is_loader;
    if (error) break;
    fs::copy_file(path, place + "/" + (is_loader ? "ld.so" : name),
                  fs::copy_options::overwrite_existing, error);
  }
  if (error) return Failed("copying git for a sandbox: {}", error.message());
  return loader ? absl::OkStatus() : Failed("ldd does not name git's loader: {}", listing);
}

std::vector<std::string> TrustedGit() {
  const std::string place = kInside;
  return {place + "/ld.so", "--library-path", place, place + "/git"};
}

}  // namespace orrery::sandbox
