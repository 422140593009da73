#include "sandbox/image/view.h"

#include <fcntl.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <set>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"

namespace orrery::sandbox::image {
namespace {

constexpr int kMaxLinks = 40;

bool IsOpaque(const std::string& folder) {
  char value = 0;
  return ::lgetxattr(folder.c_str(), kOpaqueXattr, &value, 1) == 1 && value == 'y';
}

std::string ReadLink(const std::string& path) {
  std::string target(4096, '\0');
  const ssize_t size = ::readlink(path.c_str(), target.data(), target.size());
  target.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return target;
}

// Components as written, ".." kept.
std::vector<std::string> RawComponents(const std::string& path) {
  std::vector<std::string> components;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string name = path.substr(begin, end - begin);
    begin = end + 1;
    if (!name.empty() && name != ".") components.push_back(name);
  }
  return components;
}

}  // namespace

LayerView::Answer LayerView::Ask(size_t layer, const Components& path, Found* found) const {
  found->host_path = layers_[layer];
  if (::lstat(found->host_path.c_str(), &found->status) != 0) return Answer::kNothing;
  bool opaque = IsOpaque(found->host_path);
  for (const std::string& name : path) {
    if (!S_ISDIR(found->status.st_mode)) return Answer::kHidden;
    found->host_path += "/" + name;
    if (::lstat(found->host_path.c_str(), &found->status) != 0) {
      return opaque ? Answer::kHidden : Answer::kNothing;
    }
    if (IsWhiteout(found->status)) return Answer::kHidden;
    if (S_ISDIR(found->status.st_mode)) opaque = opaque || IsOpaque(found->host_path);
  }
  return Answer::kHere;
}

std::optional<LayerView::Found> LayerView::Find(const Components& path) const {
  for (size_t layer = layers_.size(); layer-- > 0;) {
    Found found;
    const Answer answer = Ask(layer, path, &found);
    if (answer == Answer::kHere) return found;
    if (answer == Answer::kHidden) return std::nullopt;
  }
  return std::nullopt;
}

std::optional<LayerView::Found> LayerView::Follow(const std::string& path) const {
  std::vector<std::string> left = RawComponents(path);
  Components done;
  int links = 0;
  std::optional<Found> found = Find(done);
  while (!left.empty()) {
    const std::string name = left.front();
    left.erase(left.begin());
    if (name == "..") {
      if (!done.empty()) done.pop_back();
      found = Find(done);
      continue;
    }
    done.push_back(name);
    found = Find(done);
    if (!found.has_value()) return std::nullopt;
    if (!S_ISLNK(found->status.st_mode)) continue;
    if (++links > kMaxLinks) return std::nullopt;
    const std::string target = ReadLink(found->host_path);
    if (target.starts_with('/')) {
      done.clear();
    } else {
      done.pop_back();
    }
    const std::vector<std::string> more = RawComponents(target);
    left.insert(left.begin(), more.begin(), more.end());
    found = Find(done);
  }
  return found;
}

absl::StatusOr<std::vector<std::string>> LayerView::List(const Components& path) const {
  std::set<std::string> names, hidden;
  for (size_t layer = layers_.size(); layer-- > 0;) {
    Found found;
    const Answer answer = Ask(layer, path, &found);
    if (answer == Answer::kHidden) break;
    if (answer == Answer::kNothing) continue;
    if (!S_ISDIR(found.status.st_mode)) break;
    ASSIGN_OR_RETURN(const Fd folder, OpenFolder(found.host_path));
    ASSIGN_OR_RETURN(const std::vector<std::string> here, ListFolder(folder.get()));
    for (const std::string& name : here) {
      struct stat status;
      if (::fstatat(folder.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
      if (hidden.contains(name)) continue;
      if (IsWhiteout(status)) {
        hidden.insert(name);
      } else {
        names.insert(name);
      }
    }
    // A name seen above hides nothing of a lower folder's other names, an opaque folder all.
    hidden.insert(names.begin(), names.end());
    bool opaque = IsOpaque(layers_[layer]);
    std::string host = layers_[layer];
    for (const std::string& name : path) {
      host += "/" + name;
      opaque = opaque || IsOpaque(host);
    }
    if (opaque) break;
  }
  return std::vector<std::string>(names.begin(), names.end());
}

absl::StatusOr<std::string> LayerView::Read(const Components& path, int64_t max_bytes) const {
  const std::optional<Found> found = Find(path);
  const std::string joined = JoinPath(path, path.size());
  if (!found.has_value() || !S_ISREG(found->status.st_mode)) {
    return NotFound("the image has no file /{}", joined);
  }
  if (found->status.st_size > max_bytes) {
    return InvalidInput("/{} in the image has {} bytes, more than {}", joined,
                        found->status.st_size, max_bytes);
  }
  return ReadFile(found->host_path);
}

}  // namespace orrery::sandbox::image
