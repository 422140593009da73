#include "orchestrator/run/line_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "orchestrator/base/check.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/shell_quote.h"
#include "orchestrator/base/status.h"

namespace orrery::run {
namespace {

// For a shell, as one word; in quotes where it needs them.
std::string ShellWord(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:,@%";
  if (text.find_first_not_of(kPlain) == std::string::npos && !text.starts_with('-')) return text;
  return ShellQuote(text);
}

// A name beside `path` that nothing has yet.
std::string FreeName(const std::string& path) {
  std::string name = path + ".damaged";
  for (int i = 2; ::access(name.c_str(), F_OK) == 0; ++i) {
    name = fmt::format("{}.damaged-{}", path, i);
  }
  return name;
}

// "3d;7,9d": sed's words for leaving lines out. REQUIRES: ascending, from 1, none twice.
std::string SedDeletes(const std::vector<size_t>& lines) {
  std::string script;
  for (size_t i = 0; i < lines.size();) {
    size_t last = i;
    while (last + 1 < lines.size() && lines[last + 1] == lines[last] + 1) ++last;
    script += fmt::format("{}{}", script.empty() ? "" : ";", lines[i]);
    if (last > i) script += fmt::format(",{}", lines[last]);
    script += 'd';
    i = last + 1;
  }
  return script;
}

// How to go on without the damaged lines, which stay in a file of their own.
std::string WayOut(const std::string& path, const std::vector<size_t>& damaged) {
  const std::string file = ShellWord(path), aside = ShellWord(FreeName(path));
  return fmt::format(
      "to go on without {} and lose nothing, keep the file under another name: mv {} {} && "
      "sed '{}' {} > {}",
      damaged.size() == 1 ? "that line" : fmt::format("the {} damaged lines", damaged.size()), file,
      aside, SedDeletes(damaged), aside, file);
}

// Bytes up to and with the last '\n', looked for from the end.
absl::StatusOr<int64_t> SizeOfWholeLines(int fd, const std::string& path) {
  int64_t end = ::lseek(fd, 0, SEEK_END);
  if (end < 0) return ErrnoStatus("cannot seek", path, errno);
  char buffer[1 << 14];
  while (end > 0) {
    const int64_t begin = std::max<int64_t>(0, end - static_cast<int64_t>(sizeof buffer));
    const ssize_t n = ::pread(fd, buffer, static_cast<size_t>(end - begin), begin);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus("cannot read", path, errno);
    if (n != end - begin) return Failed("{} changes while it is opened", path);
    for (int64_t i = n; i > 0; --i) {
      if (buffer[i - 1] == '\n') return begin + i;
    }
    end = begin;
  }
  return 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LineFile>> LineFile::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus("cannot open", path, errno);
  const absl::StatusOr<int64_t> size = SizeOfWholeLines(fd, path);
  absl::Status status = size.status();
  if (status.ok() && ::ftruncate(fd, *size) != 0) {
    status = ErrnoStatus("cannot cut the torn last line of", path, errno);
  }
  if (!status.ok()) {
    ::close(fd);
    return status;
  }
  return std::unique_ptr<LineFile>(new LineFile(path, fd, *size));
}

LineFile::~LineFile() { ::close(fd_); }

absl::Status LineFile::Append(std::string_view line) {
  CHECK(line.find('\n') == std::string_view::npos) << "a line with a line break in it";
  std::string whole(line);
  whole += '\n';
  for (size_t done = 0; done < whole.size();) {
    const ssize_t n =
        ::pwrite(fd_, whole.data() + done, whole.size() - done, size_ + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return TakeBack(ErrnoStatus("cannot write", path_, errno));
    done += static_cast<size_t>(n);
  }
  size_ += static_cast<int64_t>(whole.size());
  return absl::OkStatus();
}

absl::Status LineFile::TakeBack(absl::Status status) {
  // Should even this fail, the torn end is cut by the next Open().
  if (::ftruncate(fd_, size_) != 0) return status;
  return status;
}

absl::Status LineFile::Sync() {
  if (::fdatasync(fd_) != 0) return ErrnoStatus("cannot sync", path_, errno);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ReadLines(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string content, ReadFile(path));
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = content.find('\n', begin);
    if (end == std::string::npos) break;
    lines.push_back(content.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

absl::Status KeepLines(const std::string& path,
                       const std::function<absl::StatusOr<bool>(std::string_view)>& keep) {
  if (::access(path.c_str(), F_OK) != 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<std::string> lines, ReadLines(path));
  std::string kept;
  bool all = true;
  absl::Status first;
  std::vector<size_t> damaged;
  for (size_t i = 0; i < lines.size(); ++i) {
    const absl::StatusOr<bool> stays = keep(lines[i]);
    if (!stays.ok()) {
      if (first.ok()) first = Annotate(stays.status(), fmt::format("{} line {}", path, i + 1));
      damaged.push_back(i + 1);
      continue;
    }
    all = all && *stays;
    if (*stays) kept += lines[i] + '\n';
  }
  if (!first.ok()) {
    return absl::Status(first.code(),
                        fmt::format("{}; {}", StatusText(first), WayOut(path, damaged)));
  }
  return all ? absl::OkStatus() : WriteFileAtomically(path, kept);
}

}  // namespace orrery::run
