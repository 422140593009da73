#include "orchestrator/run/checkpoints.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>

#include "orchestrator/base/check.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/manifest.h"
#include "orchestrator/base/status.h"

namespace orrery::run {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWriting = ".writing-step-";
constexpr const char* kOld = ".old-step-";
constexpr const char* kRemoving = ".removing-step-";

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) return ErrnoStatus("cannot remove", path, error.value());
  return absl::OkStatus();
}

absl::Status Rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  return ErrnoStatus("cannot rename to " + to, from, errno);
}

absl::StatusOr<std::vector<std::string>> Names(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) return ErrnoStatus("cannot list", folder, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

bool Exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

}  // namespace

std::optional<int64_t> StepOfName(std::string_view name, std::string_view prefix,
                                  std::string_view suffix) {
  if (name.size() <= prefix.size() + suffix.size() || !name.starts_with(prefix) ||
      !name.ends_with(suffix)) {
    return std::nullopt;
  }
  name.remove_prefix(prefix.size());
  name.remove_suffix(suffix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

absl::Status SyncTree(const std::string& path) {
  std::error_code error;
  fs::recursive_directory_iterator it(path, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    if (it->is_symlink(error)) continue;
    RETURN_IF_ERROR(SyncPath(it->path().string()));
  }
  if (error) return ErrnoStatus("cannot list", path, error.value());
  return SyncPath(path);
}

std::string Checkpoints::Path(int64_t step) const {
  return fmt::format("{}/step-{}", folder_, step);
}

std::string Checkpoints::Hidden(const char* state, int64_t step) const {
  return fmt::format("{}/{}{}", folder_, state, step);
}

absl::StatusOr<std::string> Checkpoints::Begin(int64_t step) {
  CHECK_GE(step, 0);
  const std::string path = Hidden(kWriting, step);
  RETURN_IF_ERROR(RemoveTree(path));
  RETURN_IF_ERROR(MakeFolders(path));
  RETURN_IF_ERROR(BeginManifest(path));
  return path;
}

absl::Status Checkpoints::Commit(int64_t step) {
  const std::string writing = Hidden(kWriting, step);
  const std::string old = Hidden(kOld, step);
  absl::Status status = FinishManifest(writing);
  if (status.ok()) status = SyncTree(writing);
  const bool replaces = Exists(Path(step));
  if (status.ok() && replaces) status = Rename(Path(step), old);
  if (status.ok()) status = Rename(writing, Path(step));
  if (!status.ok()) {
    // What fails below is settled by the next CleanUp().
    if (replaces && Exists(old)) Rename(old, Path(step)).IgnoreError();
    Abort(step).IgnoreError();
    return Annotate(status, fmt::format("checkpoint of step {}", step));
  }
  RETURN_IF_ERROR(SyncPath(folder_));
  return replaces ? RemoveTree(old) : absl::OkStatus();
}

absl::Status Checkpoints::Abort(int64_t step) { return RemoveTree(Hidden(kWriting, step)); }

absl::StatusOr<std::vector<int64_t>> Checkpoints::List() const {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, Names(folder_));
  std::vector<int64_t> steps;
  for (const std::string& name : names) {
    const std::optional<int64_t> step = StepOfName(name, "step-", "");
    std::error_code error;
    if (step && fs::is_directory(folder_ + "/" + name, error)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

absl::StatusOr<std::optional<int64_t>> Checkpoints::Latest() const {
  ASSIGN_OR_RETURN(const std::vector<int64_t> steps, List());
  return steps.empty() ? std::nullopt : std::optional<int64_t>(steps.back());
}

absl::Status Checkpoints::Remove(int64_t step) {
  const std::string removing = Hidden(kRemoving, step);
  RETURN_IF_ERROR(RemoveTree(removing));
  RETURN_IF_ERROR(Rename(Path(step), removing));
  RETURN_IF_ERROR(SyncPath(folder_));
  return RemoveTree(removing);
}

absl::StatusOr<std::vector<int64_t>> Checkpoints::Prune(int64_t keep, int64_t keep_every) {
  std::vector<int64_t> removed;
  if (keep <= 0) return removed;
  ASSIGN_OR_RETURN(std::vector<int64_t> steps, List());
  steps.resize(steps.size() - std::min(steps.size(), static_cast<size_t>(keep)));
  for (const int64_t step : steps) {
    if (keep_every > 0 && step % keep_every == 0) continue;
    RETURN_IF_ERROR(Remove(step));
    removed.push_back(step);
  }
  return removed;
}

absl::Status Checkpoints::RemoveAfter(int64_t step) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> steps, List());
  for (auto it = steps.rbegin(); it != steps.rend() && *it > step; ++it) {
    RETURN_IF_ERROR(Remove(*it));
  }
  return absl::OkStatus();
}

absl::Status Checkpoints::CleanUp() {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, Names(folder_));
  for (const std::string& name : names) {
    const std::string path = folder_ + "/" + name;
    const std::optional<int64_t> old = StepOfName(name, kOld, "");
    if (old && !Exists(Path(*old))) {
      // The crash came between the two renames of a replacement: the old one is the good one.
      RETURN_IF_ERROR(Rename(path, Path(*old)));
    } else if (old || StepOfName(name, kWriting, "") || StepOfName(name, kRemoving, "")) {
      RETURN_IF_ERROR(RemoveTree(path));
    }
  }
  return SyncPath(folder_);
}

}  // namespace orrery::run
