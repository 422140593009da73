#include "sandbox/image/history.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <set>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "sandbox/image/trusted_git.h"
#include "sandbox/image/view.h"

namespace orrery::sandbox::image {
namespace {

namespace fs = std::filesystem;

constexpr uid_t kNobody = 65534;
constexpr int64_t kMaxSmallFile = 16 << 20;
constexpr size_t kSha1Digits = 40, kSha256Digits = 64;

bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsObjectId(std::string_view text) {
  return (text.size() == kSha1Digits || text.size() == kSha256Digits) && IsHex(text);
}

std::string Trim(std::string text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) {
    text.pop_back();
  }
  return text;
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// Narrower than git's rules: what goes into a file name and into HEAD.
bool IsBranch(std::string_view name) {
  if (name.empty() || name.size() > 200 || name.front() == '.' || name.front() == '/' ||
      name.front() == '-' || name.back() == '/' || name.find("..") != std::string_view::npos ||
      name.find("//") != std::string_view::npos || name.find("/.") != std::string_view::npos ||
      name.ends_with(".lock") || name.find(".lock/") != std::string_view::npos) {
    return false;
  }
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == '/';
  });
}

absl::Status MakePublicFolder(const std::string& path) {
  if (::mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) {
    return ErrnoStatus("cannot make", path, errno);
  }
  return absl::OkStatus();
}

absl::Status GiveToNobody(const std::string& path) {
  if (::lchown(path.c_str(), kNobody, kNobody) == 0) return absl::OkStatus();
  return ErrnoStatus("cannot give to nobody", path, errno);
}

Components Below(Components folder, std::initializer_list<const char*> names) {
  folder.insert(folder.end(), names.begin(), names.end());
  return folder;
}

// The repository as the image shows it: reads of a few text files, and its objects.
class HostileRepository {
 public:
  static absl::StatusOr<HostileRepository> Find(const LayerView& view, const std::string& path) {
    ASSIGN_OR_RETURN(const Components tree, SplitPath(path));
    Components folder = Below(tree, {".git"});
    auto found = view.Find(folder);
    if (found.has_value() && S_ISREG(found->status.st_mode)) {
      ASSIGN_OR_RETURN(folder, FollowGitFile(view, tree, path));
      found = view.Find(folder);
    }
    if (!found.has_value()) {
      folder = tree;  // a bare one
      found = view.Find(folder);
    }
    if (!found.has_value() || !S_ISDIR(found->status.st_mode) ||
        !view.Find(Below(folder, {"objects"})).has_value()) {
      return NotFound("{}: there is no git repository in the image (links are not followed)", path);
    }
    if (view.Find(Below(folder, {"commondir"})).has_value()) {
      return InvalidInput("{}: a linked working tree; name the repository it belongs to", path);
    }
    return HostileRepository(view, std::move(folder), found->status, path);
  }

  const Components& folder() const { return folder_; }
  const struct stat& status() const { return status_; }
  bool is_bare() const { return folder_.empty() || folder_.back() != ".git"; }

  // "" where absent.
  std::string Text(std::initializer_list<const char*> names) const {
    absl::StatusOr<std::string> text = view_.Read(Below(folder_, names), kMaxSmallFile);
    if (!text.ok()) return "";
    return *std::move(text);
  }

  // "main" for "ref: refs/heads/main"; "" where HEAD is detached or odd.
  std::string Branch() const {
    constexpr std::string_view kPrefix = "ref: refs/heads/";
    const std::string head = Trim(Text({"HEAD"}));
    const std::string name = head.starts_with(kPrefix) ? head.substr(kPrefix.size()) : "";
    return IsBranch(name) ? name : "";
  }

  absl::StatusOr<std::string> HeadCommit() const {
    const std::string head = Trim(Text({"HEAD"}));
    if (IsObjectId(head)) return head;
    const std::string branch = Branch();
    if (!branch.empty()) {
      ASSIGN_OR_RETURN(const Components ref, SplitPath("refs/heads/" + branch));
      Components path = folder_;
      path.insert(path.end(), ref.begin(), ref.end());
      const auto loose = view_.Read(path, kMaxSmallFile);
      if (loose.ok() && IsObjectId(Trim(*loose))) return Trim(*loose);
      const std::string wanted = " refs/heads/" + branch;
      for (const std::string& line : Lines(Text({"packed-refs"}))) {
        if (line.ends_with(wanted)) return line.substr(0, line.size() - wanted.size());
      }
    }
    return NotFound("{}: HEAD names no commit; name the base commit", path_);
  }

  // Copies loose objects and packs, by the names that git gives them, into a git folder's objects.
  absl::Status CopyObjects(const std::string& objects) const {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, view_.List(Below(folder_, {"objects"})));
    for (const std::string& name : names) {
      if (name.size() == 2 && IsHex(name)) RETURN_IF_ERROR(CopyLoose(name, objects));
    }
    ASSIGN_OR_RETURN(const std::vector<std::string> packs,
                     view_.List(Below(folder_, {"objects", "pack"})));
    for (const std::string& name : packs) {
      const std::string hash = name.starts_with("pack-") && name.ends_with(".pack")
                                   ? name.substr(5, name.size() - 10)
                                   : "";
      if (!IsObjectId(hash)) continue;
      RETURN_IF_ERROR(
          Copy(Below(folder_, {"objects", "pack", name.c_str()}), objects + "/pack/" + name));
    }
    return absl::OkStatus();
  }

 private:
  HostileRepository(const LayerView& view, Components folder, const struct stat& status,
                    std::string path)
      : view_(view), folder_(std::move(folder)), status_(status), path_(std::move(path)) {}

  // A submodule's "gitdir: ../.git/modules/x".
  static absl::StatusOr<Components> FollowGitFile(const LayerView& view, const Components& tree,
                                                  const std::string& path) {
    constexpr std::string_view kPrefix = "gitdir: ";
    const absl::StatusOr<std::string> text = view.Read(Below(tree, {".git"}), 4096);
    if (!text.ok()) return text.status();
    if (!text->starts_with(kPrefix)) return InvalidInput("{}: its .git is no git file", path);
    const std::string target = Trim(text->substr(kPrefix.size()));
    const fs::path base = "/" + JoinPath(tree, tree.size());
    const std::string joined = (base / target).lexically_normal().string();
    return SplitPath(joined);
  }

  absl::Status CopyLoose(const std::string& name, const std::string& objects) const {
    const Components folder = Below(folder_, {"objects", name.c_str()});
    ASSIGN_OR_RETURN(const std::vector<std::string> files, view_.List(folder));
    RETURN_IF_ERROR(MakePublicFolder(objects + "/" + name));
    for (const std::string& file : files) {
      if (!IsObjectId(name + file)) continue;
      RETURN_IF_ERROR(Copy(Below(folder, {file.c_str()}), objects + "/" + name + "/" + file));
    }
    return absl::OkStatus();
  }

  absl::Status Copy(const Components& from, const std::string& to) const {
    const auto found = view_.Find(from);
    if (!found.has_value() || !S_ISREG(found->status.st_mode)) return absl::OkStatus();
    std::error_code error;
    fs::copy_file(found->host_path, to, error);
    if (error) return ErrnoStatus("cannot copy to", to, error.value());
    if (::chmod(to.c_str(), 0644) != 0) return ErrnoStatus("cannot open", to, errno);
    return GiveToNobody(to);
  }

  const LayerView& view_;
  Components folder_;
  struct stat status_;
  std::string path_;
};

// Makes the new git folder out of a quarantined copy of the old one's objects.
class Cutter {
 public:
  Cutter(const HostileRepository& old, std::string base, const std::string& scratch)
      : old_(old), base_(std::move(base)), git_(scratch + "/work"), result_(scratch + "/new") {}

  absl::Status Run() {
    for (const std::string& folder : {git_.folder(), git_.folder() + "/out"}) {
      RETURN_IF_ERROR(MakePublicFolder(folder));
      RETURN_IF_ERROR(GiveToNobody(folder));
    }
    RETURN_IF_ERROR(Quarantine());
    RETURN_IF_ERROR(CheckBase());
    RETURN_IF_ERROR(Pack());
    RETURN_IF_ERROR(
        Git({.arguments = {"read-tree", base_}, .environment = {"GIT_INDEX_FILE=/tmp/out/index"}})
            .status());
    return Assemble();
  }

 private:
  absl::StatusOr<std::string> Git(const GitCommand& command) const { return git_.Run(command); }

  std::string Branch() const { return old_.Branch().empty() ? "main" : old_.Branch(); }
  std::string objects() const { return git_.folder() + "/git/objects"; }

  absl::Status Quarantine() {
    const char* format = base_.size() == kSha256Digits ? "sha256" : "sha1";
    RETURN_IF_ERROR(Git({.arguments = {"init", "-q", "--bare",
                                       "--template=", fmt::format("--object-format={}", format),
                                       "-b", Branch(), "/tmp/git"}})
                        .status());
    RETURN_IF_ERROR(old_.CopyObjects(objects()));
    ASSIGN_OR_RETURN(const Fd folder, OpenFolder(objects() + "/pack"));
    ASSIGN_OR_RETURN(const std::vector<std::string> packs, ListFolder(folder.get()));
    for (const std::string& pack : packs) {
      // The old indexes are not believed.
      RETURN_IF_ERROR(Git({.arguments = {"index-pack", "/tmp/git/objects/pack/" + pack}}).status());
    }
    std::string shallow;
    for (const std::string& line : Lines(old_.Text({"shallow"}))) {
      if (IsObjectId(line)) shallow += line + "\n";
    }
    if (shallow.empty()) return absl::OkStatus();
    return WriteFileAtomically(git_.folder() + "/git/shallow", shallow);
  }

  absl::Status CheckBase() const {
    const auto type = Git({.arguments = {"cat-file", "-t", base_}});
    if (type.ok() && Trim(*type) == "commit") return absl::OkStatus();
    return NotFound("the repository has no commit {}{}", base_,
                    type.ok() ? " (it is a " + Trim(*type) + ")" : "");
  }

  absl::Status Pack() {
    ASSIGN_OR_RETURN(const std::string commits, Git({.arguments = {"rev-list", base_}}));
    for (const std::string& line : Lines(commits)) commits_.insert(line);
    return Git({.arguments = {"pack-objects", "--revs", "--threads=1", "-q", "--delta-base-offset",
                              "/tmp/out/pack"},
                .input = base_ + "\n"})
        .status();
  }

  absl::Status Write(const std::string& name, const std::string& text) const {
    const std::string path = result_ + "/" + name;
    std::error_code error;
    fs::create_directories(fs::path(path).parent_path(), error);
    if (error) return ErrnoStatus("cannot make the folder of", path, error.value());
    return WriteFileAtomically(path, text);
  }

  absl::Status Assemble() const {
    for (const char* folder : {"", "/objects", "/objects/pack", "/objects/info", "/refs",
                               "/refs/heads", "/refs/tags", "/info"}) {
      RETURN_IF_ERROR(MakePublicFolder(result_ + folder));
    }
    const bool detached = old_.Branch().empty();
    RETURN_IF_ERROR(
        Write("HEAD", detached ? base_ + "\n" : fmt::format("ref: refs/heads/{}\n", Branch())));
    if (!detached) RETURN_IF_ERROR(Write("refs/heads/" + Branch(), base_ + "\n"));
    RETURN_IF_ERROR(Write("config", Config()));
    RETURN_IF_ERROR(Write("info/exclude", old_.Text({"info", "exclude"})));
    std::string shallow;
    for (const std::string& line : Lines(old_.Text({"shallow"}))) {
      if (commits_.contains(line)) shallow += line + "\n";
    }
    if (!shallow.empty()) RETURN_IF_ERROR(Write("shallow", shallow));
    return MoveOutputs();
  }

  std::string Config() const {
    const bool sha256 = base_.size() == kSha256Digits;
    return fmt::format(
        "[core]\n\trepositoryformatversion = {}\n\tfilemode = true\n\tbare = {}\n"
        "\tlogallrefupdates = true\n{}",
        sha256 ? 1 : 0, old_.is_bare(), sha256 ? "[extensions]\n\tobjectformat = sha256\n" : "");
  }

  // The pack, its index and the tree's index, written by git as nobody.
  absl::Status MoveOutputs() const {
    const std::string out = git_.folder() + "/out";
    ASSIGN_OR_RETURN(const Fd folder, OpenFolder(out));
    ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(folder.get()));
    for (const std::string& name : names) {
      if (name == "index" && old_.is_bare()) continue;
      const std::string to = result_ + (name == "index" ? "/" : "/objects/pack/") + name;
      if (::rename((out + "/" + name).c_str(), to.c_str()) != 0) {
        return ErrnoStatus("cannot move to", to, errno);
      }
    }
    return Dress(result_);
  }

  // Owner and time of the old folder for all, so that git finds itself at home and the layer's
  // digest depends on the history alone.
  absl::Status Dress(const std::string& path) const {
    std::vector<std::string> paths = {path};
    std::error_code error;
    for (const auto& entry : fs::recursive_directory_iterator(path, error)) {
      paths.push_back(entry.path().string());
    }
    const timespec times[2] = {old_.status().st_mtim, old_.status().st_mtim};
    for (const std::string& each : paths) {
      const bool folder = fs::is_directory(fs::symlink_status(each));
      const bool object = each.find("/objects/pack/") != std::string::npos;
      if (::lchown(each.c_str(), old_.status().st_uid, old_.status().st_gid) != 0 ||
          ::chmod(each.c_str(), folder   ? 0755
                                : object ? 0444
                                         : 0644) != 0 ||
          ::utimensat(AT_FDCWD, each.c_str(), times, AT_SYMLINK_NOFOLLOW) != 0) {
        return ErrnoStatus("cannot set owner, mode and time of", each, errno);
      }
    }
    return absl::OkStatus();
  }

  const HostileRepository& old_;
  const std::string base_;
  const TrustedGit git_;
  const std::string result_;
  std::set<std::string> commits_;
};

}  // namespace

absl::StatusOr<CutRepository> CutHistory(const std::vector<std::string>& layers,
                                         const HistoryCut& cut, const std::string& scratch) {
  const LayerView view(layers);
  ASSIGN_OR_RETURN(const HostileRepository old, HostileRepository::Find(view, cut.path));
  std::string base = cut.base_commit;
  if (base.empty()) {
    ASSIGN_OR_RETURN(base, old.HeadCommit());
  }
  if (!IsObjectId(base)) {
    return InvalidInput("{}: base commit '{}' is not 40 (or 64) lower-case hexadecimal digits",
                        cut.path, base);
  }
  const absl::Status status = Cutter(old, base, scratch).Run();
  if (!status.ok()) return Annotate(status, cut.path);
  return CutRepository{.folder = scratch + "/new",
                       .prefix = JoinPath(old.folder(), old.folder().size()),
                       .note = fmt::format("{}: history ends at {}", cut.path, base)};
}

}  // namespace orrery::sandbox::image
