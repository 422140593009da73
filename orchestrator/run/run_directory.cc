#include "orchestrator/run/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "orchestrator/run/checkpoints.h"
#include "orchestrator/run/events.h"
#include "orchestrator/run/metrics.h"
#include "orchestrator/run/tensorboard.h"

namespace orrery::run {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSamplesSuffix = ".jsonl.zst";
constexpr std::string_view kEvalInfix = ".eval-";

bool Exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

absl::StatusOr<std::vector<std::string>> FileNames(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) return ErrnoStatus("cannot list", folder, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

std::string OwnerOf(int lock_fd) {
  char buffer[32];
  const ssize_t n = ::pread(lock_fd, buffer, sizeof buffer, 0);
  std::string pid(buffer, n > 0 ? static_cast<size_t>(n) : 0);
  while (!pid.empty() && pid.back() == '\n') pid.pop_back();
  return pid.empty() ? "another process" : "process " + pid;
}

// The descriptor holds the lock until it is closed.
absl::StatusOr<int> TakeLock(const RunPaths& paths) {
  const std::string path = paths.lock();
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus("cannot open", path, errno);
  absl::Status status;
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    status =
        errno == EWOULDBLOCK
            ? Precondition("{} is in use by {}: end it first, or give this run another run.name",
                           paths.root, OwnerOf(fd))
            : ErrnoStatus("cannot lock", path, errno);
  } else {
    const std::string pid = fmt::format("{}\n", ::getpid());
    if (::ftruncate(fd, 0) != 0 ||
        ::pwrite(fd, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
      status = ErrnoStatus("cannot write", path, errno);
    }
  }
  if (status.ok()) return fd;
  ::close(fd);
  return status;
}

absl::Status MakeSubfolders(const RunPaths& paths) {
  for (const std::string& folder : {paths.tensorboard(), paths.samples(), paths.checkpoints()}) {
    RETURN_IF_ERROR(MakeFolders(folder));
  }
  return absl::OkStatus();
}

// Temporary files of atomic writes that never came to their rename.
absl::Status RemoveTemporaries(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, FileNames(folder));
  for (const std::string& name : names) {
    if (name.find(".tmp-") == std::string::npos) continue;
    const std::string path = folder + "/" + name;
    if (::unlink(path.c_str()) != 0) return ErrnoStatus("cannot remove", path, errno);
  }
  return absl::OkStatus();
}

struct SamplesFile {
  int64_t step = 0;
  std::optional<std::string> eval;  // as it stands in the name; none: of a training step
  std::string path;
};

// step-N.jsonl.zst or step-N.eval-NAME.jsonl.zst.
std::optional<SamplesFile> ParseSamplesName(std::string_view name) {
  if (const auto step = StepOfName(name, "step-", kSamplesSuffix)) {
    return SamplesFile{*step, std::nullopt, ""};
  }
  const size_t at = name.find(kEvalInfix);
  if (at == std::string_view::npos || !name.ends_with(kSamplesSuffix)) return std::nullopt;
  const auto step = StepOfName(name.substr(0, at), "step-", "");
  if (!step) return std::nullopt;
  std::string_view eval = name.substr(at + kEvalInfix.size());
  eval.remove_suffix(std::min(eval.size(), kSamplesSuffix.size()));
  return SamplesFile{*step, std::string(eval), ""};
}

// Of training and of evaluations.
absl::StatusOr<std::vector<SamplesFile>> SamplesFiles(const RunPaths& paths) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, FileNames(paths.samples()));
  std::vector<SamplesFile> files;
  for (const std::string& name : names) {
    std::optional<SamplesFile> file = ParseSamplesName(name);
    if (!file) continue;
    file->path = paths.samples() + "/" + name;
    files.push_back(*std::move(file));
  }
  return files;
}

absl::Status RemoveSamplesAfter(const RunPaths& paths, int64_t step) {
  ASSIGN_OR_RETURN(const std::vector<SamplesFile> files, SamplesFiles(paths));
  for (const SamplesFile& file : files) {
    if (file.step <= step) continue;
    if (::unlink(file.path.c_str()) != 0) return ErrnoStatus("cannot remove", file.path, errno);
  }
  return SyncPath(paths.samples());
}

}  // namespace

std::string SafeFileName(std::string_view name) {
  std::string safe;
  for (const char c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.';
    safe += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return safe;
}

std::string RunPaths::samples_of(int64_t step) const {
  return fmt::format("{}/step-{}{}", samples(), step, kSamplesSuffix);
}

std::string RunPaths::eval_samples_of(int64_t step, std::string_view eval) const {
  return fmt::format("{}/step-{}{}{}{}", samples(), step, kEvalInfix, SafeFileName(eval),
                     kSamplesSuffix);
}

bool HoldsRun(const std::string& directory) { return Exists(RunPaths(directory).experiment()); }

absl::Status CheckHoldsNoRun(const std::string& directory) {
  if (!HoldsRun(directory)) return absl::OkStatus();
  const auto latest = Checkpoints(RunPaths(directory).checkpoints()).Latest();
  const bool begun = !latest.ok() || latest->has_value();
  return Precondition(
      "{0} already holds a run: continue it with `orrery resume {0}`, {1}give this one another "
      "run.name",
      directory, begun ? "or " : "remove the folder where it is over (it has no checkpoint), or ");
}

absl::StatusOr<std::vector<int64_t>> SampleSteps(const std::string& run_directory,
                                                 std::optional<std::string_view> eval) {
  ASSIGN_OR_RETURN(const std::vector<SamplesFile> files, SamplesFiles(RunPaths(run_directory)));
  std::vector<int64_t> steps;
  for (const SamplesFile& file : files) {
    const bool wanted = eval ? file.eval == SafeFileName(*eval) : !file.eval;
    if (wanted) steps.push_back(file.step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

absl::StatusOr<std::map<std::string, EvalSamples>> NewestEvalSamples(
    const std::string& run_directory) {
  ASSIGN_OR_RETURN(const std::vector<SamplesFile> files, SamplesFiles(RunPaths(run_directory)));
  std::map<std::string, EvalSamples> newest;
  for (const SamplesFile& file : files) {
    if (!file.eval) continue;
    EvalSamples& samples = newest[*file.eval];
    if (samples.path.empty() || file.step > samples.step) samples = {file.step, file.path};
  }
  return newest;
}

absl::StatusOr<std::unique_ptr<RunDirectory>> RunDirectory::Create(
    const std::string& directory, std::string_view experiment_yaml) {
  const RunPaths paths(directory);
  RETURN_IF_ERROR(MakeFolders(directory));
  ASSIGN_OR_RETURN(const int lock_fd, TakeLock(paths));
  std::unique_ptr<RunDirectory> run(new RunDirectory(paths, lock_fd));
  RETURN_IF_ERROR(CheckHoldsNoRun(directory));
  RETURN_IF_ERROR(MakeSubfolders(paths));
  // Last, because it is what makes the folder a run.
  RETURN_IF_ERROR(WriteFileAtomically(paths.experiment(), experiment_yaml));
  return run;
}

absl::StatusOr<std::unique_ptr<RunDirectory>> RunDirectory::Resume(const std::string& directory) {
  const RunPaths paths(directory);
  if (!HoldsRun(directory)) {
    return NotFound("{} holds no run: it has no experiment.yaml", directory);
  }
  ASSIGN_OR_RETURN(const int lock_fd, TakeLock(paths));
  std::unique_ptr<RunDirectory> run(new RunDirectory(paths, lock_fd));
  RETURN_IF_ERROR(MakeSubfolders(paths));
  for (const std::string& folder : {paths.root, paths.samples(), paths.tensorboard()}) {
    RETURN_IF_ERROR(RemoveTemporaries(folder));
  }
  RETURN_IF_ERROR(run->checkpoints_.CleanUp());
  return run;
}

RunDirectory::~RunDirectory() { ::close(lock_fd_); }

absl::StatusOr<std::string> RunDirectory::ReadExperiment() const {
  return ReadFile(paths_.experiment());
}

absl::Status RunDirectory::TruncateAfter(int64_t step) {
  // Checkpoints first: were one left after its metrics are gone, a crash here would make the next
  // resume start from it, with a hole in the curve.
  RETURN_IF_ERROR(checkpoints_.RemoveAfter(step));
  RETURN_IF_ERROR(KeepMetricsUpTo(paths_.metrics(), step));
  RETURN_IF_ERROR(KeepEventsUpTo(paths_.events(), step));
  RETURN_IF_ERROR(RemoveSamplesAfter(paths_, step));
  return KeepTensorBoardUpTo(paths_.tensorboard(), step);
}

absl::Status RunDirectory::CommitCheckpoint(int64_t step) {
  for (const std::string& path : {paths_.metrics(), paths_.events()}) {
    if (Exists(path)) RETURN_IF_ERROR(SyncPath(path));
  }
  ASSIGN_OR_RETURN(const std::optional<int64_t> previous, checkpoints_.Latest());
  ASSIGN_OR_RETURN(const std::vector<SamplesFile> files, SamplesFiles(paths_));
  for (const SamplesFile& file : files) {
    if (!previous || file.step > *previous) RETURN_IF_ERROR(SyncPath(file.path));
  }
  RETURN_IF_ERROR(SyncPath(paths_.samples()));
  RETURN_IF_ERROR(SyncPath(paths_.root));
  return checkpoints_.Commit(step);
}

}  // namespace orrery::run
