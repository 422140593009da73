#include "orchestrator/run/trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "orchestrator/run/json_text.h"

namespace orrery::run {
namespace {

constexpr size_t kBufferBytes = 1 << 16;

// Cuts a torn last event (events end in "}" and stand one a line) and says whether any is there.
absl::StatusOr<bool> CutTornEnd(const std::string& path) {
  if (::access(path.c_str(), F_OK) != 0) return true;
  ASSIGN_OR_RETURN(std::string content, ReadFile(path));
  const size_t end = content.rfind('}');
  if (end == std::string::npos || content.front() != '[') {
    RETURN_IF_ERROR(WriteFileAtomically(path, ""));
    return true;
  }
  if (::truncate(path.c_str(), static_cast<off_t>(end + 1)) != 0) {
    return ErrnoStatus("cannot shorten", path, errno);
  }
  return false;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TraceWriter>> TraceWriter::Open(const std::string& path) {
  ASSIGN_OR_RETURN(const bool empty, CutTornEnd(path));
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus("cannot open", path, errno);
  return std::unique_ptr<TraceWriter>(new TraceWriter(path, fd, empty));
}

TraceWriter::~TraceWriter() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!empty_) buffer_ += "\n]";
  }
  const absl::Status last_words = Flush();
  static_cast<void>(last_words);  // whoever wants to know calls Flush() before
  ::close(fd_);
}

int64_t TraceWriter::NowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void TraceWriter::Complete(std::string_view name, std::string_view category, int64_t begin_us,
                           int64_t duration_us, int32_t track, int64_t step) {
  std::string event = "{\"ph\":\"X\",\"name\":";
  AppendJsonString(&event, name);
  event += ",\"cat\":";
  AppendJsonString(&event, category);
  event += fmt::format(",\"ts\":{},\"dur\":{},\"pid\":{},\"tid\":{}", begin_us, duration_us,
                       ::getpid(), track);
  if (step >= 0) event += fmt::format(",\"args\":{{\"step\":{}}}", step);
  Append(event + "}");
}

void TraceWriter::NameTrack(int32_t track, std::string_view name) {
  std::string event = fmt::format(
      "{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":",
      ::getpid(), track);
  AppendJsonString(&event, name);
  Append(event + "}}");
  Append(
      fmt::format("{{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":{0},\"tid\":{1},"
                  "\"args\":{{\"sort_index\":{1}}}}}",
                  ::getpid(), track));
}

void TraceWriter::NameProcess(std::string_view name) {
  std::string event = fmt::format(
      "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{},\"tid\":0,\"args\":{{\"name\":",
      ::getpid());
  AppendJsonString(&event, name);
  Append(event + "}}");
}

void TraceWriter::Append(std::string event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  buffer_ += empty_ ? "[\n" : ",\n";
  buffer_ += event;
  empty_ = false;
  if (buffer_.size() < kBufferBytes || !status_.ok()) return;
  status_ = FlushLocked();
}

absl::Status TraceWriter::Flush() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (status_.ok()) status_ = FlushLocked();
  return status_;
}

absl::Status TraceWriter::FlushLocked() {
  size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t n = ::write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    done += static_cast<size_t>(n);
  }
  const bool all = done == buffer_.size();
  buffer_.clear();
  return all ? absl::OkStatus() : ErrnoStatus("cannot write", path_, errno);
}

}  // namespace orrery::run
