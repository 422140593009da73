// The file operations of LocalSandbox: each is a process inside (init/file_commands.h).
#include <cerrno>
#include <utility>

#include "orchestrator/base/status.h"
#include "sandbox/host/local_sandbox.h"

namespace orrery::sandbox {
namespace {

constexpr int64_t kFileTimeoutMs = 600'000;
constexpr int64_t kMaxListing = 256 << 20;

FileInfo ToFileInfo(FileEntry entry) {
  return {std::move(entry.name),
          entry.mode,
          entry.uid,
          entry.gid,
          static_cast<int64_t>(entry.size),
          entry.modified_ns,
          std::move(entry.target)};
}

StartRequest FileRequest(CommandKind kind, const std::string& path) {
  StartRequest start;
  start.kind = kind;
  start.path = path;
  start.user = "0:0";
  start.folder = "/";
  start.output = OutputMode::kMerged;
  return start;
}

absl::Status ToStatusOf(const ExecResult& result) {
  if (result.ok()) return absl::OkStatus();
  if (result.ending == Ending::kRefused) {
    return result.code == ENOENT ? NotFound("{}", result.why) : InvalidInput("{}", result.why);
  }
  return Unavailable("a file operation in the sandbox: {}", Describe(result));
}

}  // namespace

absl::StatusOr<ExecResult> LocalSandbox::RunFileCommand(StartRequest start, RunOptions options) {
  options.timeout_ms = kFileTimeoutMs;
  ExecResult result = Run(std::move(start), std::move(options));
  RETURN_IF_ERROR(ToStatusOf(result));
  return result;
}

absl::StatusOr<std::string> LocalSandbox::Get(const std::string& path, int64_t max_bytes) {
  std::string content;
  bool too_long = false;
  RETURN_IF_ERROR(GetStream(path, [&](std::string_view bytes) {
    too_long = too_long || static_cast<int64_t>(content.size() + bytes.size()) > max_bytes;
    if (!too_long) content.append(bytes);
  }));
  if (too_long) return Exhausted("{} is longer than the {} bytes asked for", path, max_bytes);
  return content;
}

absl::Status LocalSandbox::GetStream(const std::string& path,
                                     const std::function<void(std::string_view)>& sink) {
  RunOptions options;
  options.on_output = [&](std::string_view bytes, bool) { sink(bytes); };
  return RunFileCommand(FileRequest(CommandKind::kGet, path), std::move(options)).status();
}

absl::Status LocalSandbox::Put(const std::string& path, std::string_view content, uint32_t mode) {
  std::string rest(content);
  return PutStream(
      path, [&] { return std::exchange(rest, {}); }, mode);
}

absl::Status LocalSandbox::PutStream(const std::string& path,
                                     const std::function<std::string()>& source, uint32_t mode) {
  StartRequest start = FileRequest(CommandKind::kPut, path);
  start.input = true;
  start.mode = mode;
  RunOptions options;
  options.next_input = source;
  return RunFileCommand(std::move(start), std::move(options)).status();
}

absl::Status LocalSandbox::Link(const std::string& path, const std::string& target) {
  StartRequest start = FileRequest(CommandKind::kLink, path);
  start.target = target;
  return RunFileCommand(std::move(start), {}).status();
}

absl::Status LocalSandbox::Remove(const std::string& path) {
  return RunFileCommand(FileRequest(CommandKind::kRemove, path), {}).status();
}

absl::StatusOr<std::vector<FileInfo>> LocalSandbox::ReadEntries(StartRequest start) {
  RunOptions options;
  options.keep_bytes = 2 * kMaxListing;  // all of it in the head
  options.output_cap_bytes = kMaxListing;
  ASSIGN_OR_RETURN(const ExecResult result, RunFileCommand(std::move(start), std::move(options)));
  std::vector<FileInfo> entries;
  std::string_view rest = result.output.head;
  while (!rest.empty()) {
    Reader reader(rest);
    std::string bytes;
    reader.Get(bytes);
    auto entry = reader.ok() ? Decode<FileEntry>(bytes) : std::nullopt;
    if (!entry) return Failed("a broken listing from the sandbox");
    rest.remove_prefix(sizeof(uint32_t) + bytes.size());
    entries.push_back(ToFileInfo(*std::move(entry)));
  }
  return entries;
}

absl::StatusOr<FileInfo> LocalSandbox::Stat(const std::string& path) {
  ASSIGN_OR_RETURN(std::vector<FileInfo> entries,
                   ReadEntries(FileRequest(CommandKind::kStat, path)));
  if (entries.size() != 1) return Failed("a broken answer from the sandbox");
  return std::move(entries[0]);
}

absl::StatusOr<std::vector<FileInfo>> LocalSandbox::List(const std::string& path, bool any_type) {
  StartRequest start = FileRequest(CommandKind::kList, path);
  start.any_type = any_type;
  return ReadEntries(std::move(start));
}

}  // namespace orrery::sandbox
