#include "sandbox/patch/patch.h"

#include <sys/stat.h>

#include "orchestrator/base/status.h"
#include "sandbox/patch/git_layer.h"

namespace orrery::sandbox {
namespace {

constexpr int64_t kGitTimeoutMs = 600'000;
constexpr uint32_t kExecutable = 0111;

// Above all .gitattributes of the tree: no conversion, no filter, no driver.
constexpr char kAttributes[] =
    "* -text -eol -filter -ident -working-tree-encoding -merge !diff -export-subst -whitespace\n";

bool IsInWorkTree(const std::string& path, const std::string& repository) {
  if (!path.starts_with(repository + "/")) return false;
  const std::string below = path.substr(repository.size()) + "/";
  return below.find("/.git/") == std::string::npos;
}

absl::Status CarryFile(Sandbox* episode, Sandbox* fresh, const Change& change) {
  // In memory: what a patch may hold is bounded by the caller, and git holds it too.
  std::string content;
  RETURN_IF_ERROR(
      episode->ReadChanged(change.path, [&](std::string_view bytes) { content.append(bytes); }));
  return fresh->Put(change.path, content, (change.info.mode & kExecutable) != 0 ? 0755 : 0644);
}

absl::Status Carry(Sandbox* episode, Sandbox* fresh, const Change& change) {
  const bool replaces = change.kind == Change::Kind::kModified && change.content;
  if (change.kind == Change::Kind::kDeleted || replaces) {
    RETURN_IF_ERROR(fresh->Remove(change.path));
  }
  if (change.kind == Change::Kind::kDeleted) return absl::OkStatus();
  if (S_ISREG(change.info.mode)) return CarryFile(episode, fresh, change);
  if (S_ISLNK(change.info.mode) && change.content) {
    return fresh->Link(change.path, change.info.target);
  }
  return absl::OkStatus();  // git knows neither empty folders nor FIFOs
}

ExecRequest GitRequest(const PatchOptions& options, const std::vector<std::string>& arguments) {
  ExecRequest request;
  request.argv = TrustedGit();
  for (const char* setting : {"safe.directory=*",
                              "core.hooksPath=/dev/null",
                              "core.fsmonitor=false",
                              "core.untrackedCache=false",
                              "core.attributesFile=/dev/null",
                              "core.excludesFile=/dev/null",
                              "core.autocrlf=false",
                              "core.safecrlf=false",
                              "core.eol=lf",
                              "core.fileMode=true",
                              "core.symlinks=true",
                              "core.ignoreCase=false",
                              "core.sparseCheckout=false",
                              "core.quotePath=true",
                              "core.bigFileThreshold=512m",
                              "diff.renames=false",
                              "diff.noprefix=false",
                              "diff.mnemonicPrefix=false",
                              "diff.external=",
                              "gc.auto=0",
                              "advice.addEmbeddedRepo=false"}) {
    request.argv.insert(request.argv.end(), {"-c", setting});
  }
  request.argv.insert(request.argv.end(), arguments.begin(), arguments.end());
  request.env = {"GIT_DIR=" + options.repository + "/.git",
                 "GIT_WORK_TREE=" + options.repository,
                 "GIT_INDEX_FILE=/.orrery/index",
                 "GIT_CONFIG_NOSYSTEM=1",
                 "GIT_CONFIG_GLOBAL=/dev/null",
                 "GIT_ATTR_NOSYSTEM=1",
                 "GIT_NO_REPLACE_OBJECTS=1",
                 "GIT_TERMINAL_PROMPT=0",
                 "GIT_PAGER=cat",
                 "LC_ALL=C",
                 "HOME=/.orrery"};
  request.folder = options.repository;
  request.user = "0:0";
  request.timeout_ms = kGitTimeoutMs;
  request.separate = true;
  request.output_cap_bytes = options.max_bytes;
  request.keep_bytes = 2 * options.max_bytes;  // all of it in the head
  return request;
}

absl::StatusOr<std::string> RunGit(Sandbox* fresh, const PatchOptions& options,
                                   const std::vector<std::string>& arguments) {
  const ExecResult result = fresh->Exec(GitRequest(options, arguments));
  if (result.ok()) return result.output.head;
  const std::string text = fmt::format("git {} in a fresh sandbox: {}: {}", arguments[0],
                                       Describe(result), result.error_output.Text().substr(0, 500));
  if (result.ending == Ending::kInfrastructure) return Unavailable("{}", text);
  if (result.ending == Ending::kOutputCap) return Exhausted("{}", text);
  return Failed("{}", text);
}

}  // namespace

absl::StatusOr<std::string> ExtractPatch(SandboxHost* host, Sandbox* episode,
                                         const PatchOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<Change> changes, episode->Diff());
  SandboxOptions fresh_options = options.fresh;
  fresh_options.image.layers.push_back(options.git_layer);
  ASSIGN_OR_RETURN(const std::unique_ptr<Sandbox> fresh, host->Create(fresh_options));
  const std::string git = options.repository + "/.git";
  const absl::StatusOr<FileInfo> info = fresh->Stat(git);
  if (!info.ok() || !S_ISDIR(info->mode)) {
    return NotFound("{}: the image has no git repository there", git);
  }
  RETURN_IF_ERROR(fresh->Put(git + "/info/attributes", kAttributes));
  RETURN_IF_ERROR(RunGit(fresh.get(), options, {"read-tree", "HEAD"}).status());
  for (const Change& change : changes) {
    if (!IsInWorkTree(change.path, options.repository)) continue;
    RETURN_IF_ERROR(Carry(episode, fresh.get(), change));
  }
  std::vector<std::string> add = {"add", "-A"};
  if (options.ignored) add.push_back("-f");
  add.insert(add.end(), {"--", "."});
  RETURN_IF_ERROR(RunGit(fresh.get(), options, add).status());
  return RunGit(fresh.get(), options,
                {"diff", "--cached", "--binary", "--full-index", "--no-color", "--no-ext-diff",
                 "--no-textconv", "--no-renames", "--src-prefix=a/", "--dst-prefix=b/", "HEAD"});
}

}  // namespace orrery::sandbox
