#include "sandbox/cgroup/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

#include "orchestrator/base/file.h"

namespace orrery::sandbox {

absl::Status WriteGroupFile(int folder, const std::string& path, std::string_view text) {
  const Descriptor file(::openat(folder, path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.valid() && ::write(file.get(), text.data(), text.size()) >= 0) return absl::OkStatus();
  return ErrnoStatus("cannot write " + std::string(text) + " to the control group", path, errno);
}

absl::StatusOr<std::string> ReadGroupFile(int folder, const std::string& path) {
  const Descriptor file(::openat(folder, path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char buffer[4096];
  ssize_t n = -1;
  while (file.valid() && (n = ::read(file.get(), buffer, sizeof(buffer))) > 0) {
    text.append(buffer, static_cast<size_t>(n));
  }
  if (n < 0) return ErrnoStatus("cannot read the control group", path, errno);
  return text;
}

absl::StatusOr<std::string> ReadGroupFile(const Descriptor& file) {
  char buffer[4096];
  const ssize_t n = ::pread(file.get(), buffer, sizeof(buffer), 0);
  if (n < 0) return ErrnoStatus("cannot read", "a control group's events", errno);
  return std::string(buffer, static_cast<size_t>(n));
}

int64_t ValueOf(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    if (line.size() > key.size() && line.starts_with(key) && line[key.size()] == ' ') {
      int64_t value = 0;
      std::from_chars(line.data() + key.size() + 1, line.data() + line.size(), value);
      return value;
    }
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return 0;
}

}  // namespace orrery::sandbox
