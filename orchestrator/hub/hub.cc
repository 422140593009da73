#include "orchestrator/hub/hub.h"

#include <fmt/ranges.h>
#include <fnmatch.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "orchestrator/hub/cache.h"
#include "orchestrator/hub/download.h"
#include "orchestrator/hub/remote.h"
#include "orchestrator/hub/source.h"

namespace orrery::hub {
namespace {

namespace fs = std::filesystem;

bool Exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);  // follows links: a link to a missing blob is not there
}

absl::StatusOr<std::string> ResolveLocal(const std::string& source) {
  if (Exists(source)) return source;
  const bool like_repo = std::count(source.begin(), source.end(), '/') == 1 &&
                         source.front() != '/' && source.front() != '.';
  return NotFound("'{}': no such file or folder{}", source,
                  like_repo ? fmt::format(" (from the hub it would be hf:{})", source) : "");
}

// One call of Resolve() for a source on the hub.
class Resolution {
 public:
  Resolution(const HubSource& source, const ResolveOptions& options,
             const HubEnvironment& environment)
      : source_(source),
        options_(options),
        environment_(environment),
        cache_(environment.cache, options.kind, source.repo),
        remote_(environment, options.retry, options.kind, source.repo) {
    revision_ = !source.revision.empty()    ? source.revision
                : !options.revision.empty() ? options.revision
                                            : "main";
  }

  absl::StatusOr<std::string> Run() {
    if (environment_.offline) return FromCache("HF_HUB_OFFLINE is set");
    // A file of a commit never changes: no need to ask.
    if (IsCommit(revision_) && IsCachedFile()) return Result(revision_);
    const absl::StatusOr<std::string> fetched = FromHub();
    if (fetched.ok()) return fetched;
    const absl::StatusOr<std::string> cached = FromCache("");
    if (!asked_ && cached.ok()) {
      spdlog::warn("{}; using what the cache holds: {}", StatusText(fetched.status()), *cached);
      return cached;
    }
    if (!asked_ && absl::IsUnavailable(fetched.status())) {
      return Unavailable("{}; without a network, give a folder or file in its place",
                         StatusText(fetched.status()));
    }
    return fetched.status();
  }

 private:
  bool IsWanted(const std::string& path) const {
    std::string_view below = path;
    if (!source_.path.empty()) {
      if (path == source_.path) return true;
      if (!path.starts_with(source_.path + "/")) return false;
      below.remove_prefix(source_.path.size() + 1);
    }
    const std::string name(below);
    return options_.patterns.empty() ||
           std::any_of(options_.patterns.begin(), options_.patterns.end(),
                       [&](const std::string& pattern) {
                         return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
                       });
  }

  std::string Result(const std::string& commit) const {
    return source_.path.empty() ? cache_.Snapshot(commit)
                                : cache_.SnapshotFile(commit, source_.path);
  }

  bool IsCachedFile() const {
    std::error_code error;
    return !source_.path.empty() && fs::is_regular_file(Result(revision_), error);
  }

  bool HasWantedFile(const std::string& commit) const {
    const fs::path snapshot = cache_.Snapshot(commit);
    std::error_code error;
    fs::recursive_directory_iterator entry(snapshot, error);
    for (const fs::recursive_directory_iterator end; !error && entry != end;
         entry.increment(error)) {
      std::error_code ignored;
      const bool is_file = entry->is_regular_file(ignored);
      if (is_file && IsWanted(entry->path().lexically_relative(snapshot).string())) return true;
    }
    return false;
  }

  absl::StatusOr<std::string> FromCache(std::string_view why) const {
    const std::optional<std::string> commit = cache_.Commit(revision_);
    if (commit && HasWantedFile(*commit)) return Result(*commit);
    return NotFound(
        "{}{}{}: is not in the cache {} and {}: unset HF_HUB_OFFLINE, or copy the repository "
        "there",
        remote_.Name(revision_), source_.path.empty() ? "" : "/", source_.path, environment_.cache,
        why);
  }

  absl::StatusOr<std::string> FromHub() {
    ASSIGN_OR_RETURN(const Listing listing, remote_.List(revision_));
    asked_ = true;
    std::vector<RemoteFile> wanted;
    for (const RemoteFile& file : listing.files) {
      if (IsWanted(file.path)) wanted.push_back(file);
    }
    if (wanted.empty()) return NothingWanted(listing);
    RETURN_IF_ERROR(FetchMissing(listing.commit, wanted));
    if (revision_ != listing.commit) {
      ASSIGN_OR_RETURN(const FileLock lock, FileLock::Acquire(cache_.Lock("refs")));
      RETURN_IF_ERROR(cache_.WriteRef(revision_, listing.commit));
    }
    return Result(listing.commit);
  }

  absl::Status NothingWanted(const Listing& listing) const {
    constexpr size_t kShown = 8;
    std::vector<std::string> there;
    for (const RemoteFile& file : listing.files) {
      if (there.size() < kShown) there.push_back(file.path);
    }
    if (listing.files.size() > kShown) there.push_back("...");
    const std::string sought = source_.path.empty()
                                   ? fmt::format("matches {}", fmt::join(options_.patterns, " or "))
                                   : fmt::format("is '{}' or below it", source_.path);
    return NotFound("{}: none of its {} files {}; it has: {}", remote_.Name(revision_),
                    listing.files.size(), sought, fmt::join(there, ", "));
  }

  absl::Status FetchMissing(const std::string& commit, const std::vector<RemoteFile>& wanted) {
    std::vector<const RemoteFile*> missing;
    bool sizes_known = true;
    for (const RemoteFile& file : wanted) {
      if (Exists(cache_.SnapshotFile(commit, file.path))) continue;
      missing.push_back(&file);
      sizes_known = sizes_known && file.size >= 0;
      progress_.total_bytes += std::max<int64_t>(file.size, 0);
    }
    if (missing.empty()) return absl::OkStatus();
    RETURN_IF_ERROR(MakeFolders(cache_.folder() + "/blobs"));
    if (sizes_known) RETURN_IF_ERROR(CheckSpace(progress_.total_bytes));
    if (!sizes_known) progress_.total_bytes = -1;
    progress_.num_files = missing.size();
    for (const RemoteFile* file : missing) RETURN_IF_ERROR(Fetch(commit, *file));
    return absl::OkStatus();
  }

  absl::Status CheckSpace(int64_t needed) const {
    std::error_code error;
    const fs::space_info space = fs::space(cache_.folder(), error);
    if (error || space.available >= static_cast<uintmax_t>(needed)) return absl::OkStatus();
    return Exhausted(
        "{}: {} bytes are to be fetched, but {} has room for {}: free some, or point "
        "HF_HUB_CACHE elsewhere",
        remote_.Name(revision_), needed, cache_.folder(), space.available);
  }

  absl::Status Fetch(const std::string& commit, const RemoteFile& file) {
    ASSIGN_OR_RETURN(const FileMetadata metadata, remote_.Metadata(commit, file.path));
    progress_.file = file.path;
    progress_.file_size = metadata.size;
    ASSIGN_OR_RETURN(const FileLock lock, FileLock::Acquire(cache_.Lock(metadata.hash)));
    // Another process may have brought it while this one waited.
    if (!Exists(cache_.Blob(metadata.hash))) {
      RETURN_IF_ERROR(FetchBlob(commit, file, metadata));
    }
    RETURN_IF_ERROR(cache_.Link(commit, file.path, metadata.hash));
    std::error_code error;
    const auto size = fs::file_size(cache_.Blob(metadata.hash), error);
    Report(error ? 0 : static_cast<int64_t>(size));
    progress_.done_bytes += error ? 0 : static_cast<int64_t>(size);
    ++progress_.files_done;
    return absl::OkStatus();
  }

  absl::Status FetchBlob(const std::string& commit, const RemoteFile& file,
                         const FileMetadata& metadata) {
    Download download;
    download.what = fmt::format("{}/{}", remote_.Name(commit), file.path);
    download.url = remote_.FileUrl(commit, file.path);
    download.page = remote_.Page();
    download.token = environment_.token;
    download.expected = metadata;
    download.path = cache_.Blob(metadata.hash);
    download.incomplete = download.path + ".incomplete";
    return DownloadFile(download, options_.retry, [&](int64_t bytes) { Report(bytes); });
  }

  void Report(int64_t file_bytes) const {
    if (!options_.progress) return;
    Progress progress = progress_;
    progress.file_bytes = file_bytes;
    progress.done_bytes += file_bytes;
    options_.progress(progress);
  }

  const HubSource& source_;
  const ResolveOptions& options_;
  const HubEnvironment& environment_;
  RepoCache cache_;
  RemoteRepo remote_;
  std::string revision_;
  Progress progress_;   // of the files before the present one
  bool asked_ = false;  // the hub told what the revision holds
};

}  // namespace

absl::StatusOr<std::string> Resolve(const std::string& source, const ResolveOptions& options) {
  if (source.empty())
    return InvalidInput("the source is empty: give a folder, a file or hf:ORG/NAME");
  if (!IsHubSource(source)) return ResolveLocal(source);
  ASSIGN_OR_RETURN(const HubSource parsed, ParseHubSource(source));
  if (!options.revision.empty() && !IsSafePath(options.revision)) {
    return InvalidInput("revision '{}' is not a branch, tag or commit", options.revision);
  }
  const HubEnvironment environment =
      options.environment ? *options.environment : ReadHubEnvironment();
  return Resolution(parsed, options, environment).Run();
}

}  // namespace orrery::hub
