#include "orchestrator/run/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "orchestrator/run/json_text.h"

namespace orrery::run {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFilePrefix = "events.out.tfevents.";
constexpr size_t kFrameBytes = 16;  // length, its CRC, the CRC of the data

constexpr std::array<uint32_t, 256> MakeCrcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = MakeCrcTable();

template <typename T>
void AppendLittleEndian(std::string* out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) *out += static_cast<char>(value >> (8 * i) & 255);
}

template <typename T>
T ReadLittleEndian(std::string_view bytes) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return value;
}

// Protobuf wire format: a key is field number * 8 + wire type.
enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

void AppendVarint(std::string* out, uint64_t value) {
  for (; value >= 128; value >>= 7) *out += static_cast<char>((value & 127) | 128);
  *out += static_cast<char>(value);
}

void AppendKey(std::string* out, uint32_t field, WireType type) {
  AppendVarint(out, field << 3 | type);
}

void AppendMessage(std::string* out, uint32_t field, std::string_view content) {
  AppendKey(out, field, kLengthDelimited);
  AppendVarint(out, content.size());
  *out += content;
}

void AppendWallTime(std::string* out, double wall_time) {
  AppendKey(out, 1, kFixed64);
  AppendLittleEndian(out, std::bit_cast<uint64_t>(wall_time));
}

absl::StatusOr<uint64_t> TakeVarint(std::string_view* bytes) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !bytes->empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes->front());
    bytes->remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 127) << shift;
    if (byte < 128) return value;
  }
  return InvalidInput("event: a number is cut off");
}

// Data of the next whole, undamaged record; empty optional at the end or at a torn one.
std::optional<std::string_view> TakeRecord(std::string_view* content) {
  if (content->size() < kFrameBytes) return std::nullopt;
  const uint64_t length = ReadLittleEndian<uint64_t>(*content);
  if (ReadLittleEndian<uint32_t>(content->substr(8)) != MaskedCrc32c(content->substr(0, 8)) ||
      length > content->size() - kFrameBytes) {
    return std::nullopt;
  }
  const std::string_view data = content->substr(12, length);
  if (ReadLittleEndian<uint32_t>(content->substr(12 + length)) != MaskedCrc32c(data)) {
    return std::nullopt;
  }
  content->remove_prefix(kFrameBytes + length);
  return data;
}

double WallTime() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

absl::StatusOr<std::vector<std::string>> EventFiles(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with(kFilePrefix)) names.push_back(name);
  }
  if (error) return ErrnoStatus("cannot list", folder, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

// Seconds of now, or one more than any file's name has: two runs within a second must sort too.
int64_t NextStamp(const std::vector<std::string>& names) {
  int64_t stamp = static_cast<int64_t>(::time(nullptr));
  for (const std::string& name : names) {
    int64_t taken = 0;
    const char* begin = name.data() + kFilePrefix.size();
    std::from_chars(begin, name.data() + name.size(), taken);
    stamp = std::max(stamp, taken + 1);
  }
  return stamp;
}

std::string HostName() {
  char name[256] = "";
  if (::gethostname(name, sizeof name - 1) != 0) return "localhost";
  return name;
}

absl::Status KeepRecordsUpTo(const std::string& path, int64_t step) {
  ASSIGN_OR_RETURN(const std::string content, ReadFile(path));
  std::string_view rest = content;
  std::string kept;
  while (const std::optional<std::string_view> event = TakeRecord(&rest)) {
    const absl::StatusOr<int64_t> event_step = StepOfEvent(*event);
    if (!event_step.ok()) return Annotate(event_step.status(), path);
    if (*event_step <= step) kept += ToTfRecord(*event);
  }
  if (kept == content) return absl::OkStatus();
  if (!kept.empty()) return WriteFileAtomically(path, kept);
  return ::unlink(path.c_str()) == 0 ? absl::OkStatus() : ErrnoStatus("cannot remove", path, errno);
}

}  // namespace

uint32_t Crc32c(std::string_view data) {
  uint32_t crc = ~0u;
  for (const char c : data) crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 255];
  return ~crc;
}

uint32_t MaskedCrc32c(std::string_view data) { return std::rotr(Crc32c(data), 15) + 0xa282ead8u; }

std::string ToTfRecord(std::string_view data) {
  std::string record;
  AppendLittleEndian(&record, static_cast<uint64_t>(data.size()));
  AppendLittleEndian(&record, MaskedCrc32c(record));
  record += data;
  AppendLittleEndian(&record, MaskedCrc32c(data));
  return record;
}

std::string FileVersionEvent(double wall_time) {
  std::string event;
  AppendWallTime(&event, wall_time);
  AppendMessage(&event, 3, "brain.Event:2");
  return event;
}

std::string ScalarsEvent(double wall_time, const StepMetrics& metrics) {
  std::string summary;
  for (const auto& [name, value] : metrics.values()) {
    std::string entry;
    AppendMessage(&entry, 1, ToValidUtf8(name));
    AppendKey(&entry, 2, kFixed32);
    AppendLittleEndian(&entry, std::bit_cast<uint32_t>(static_cast<float>(value)));
    AppendMessage(&summary, 1, entry);
  }
  std::string event;
  AppendWallTime(&event, wall_time);
  if (metrics.step() != 0) {
    AppendKey(&event, 2, kVarint);
    AppendVarint(&event, static_cast<uint64_t>(metrics.step()));
  }
  AppendMessage(&event, 5, summary);
  return event;
}

absl::StatusOr<int64_t> StepOfEvent(std::string_view event) {
  int64_t step = 0;
  while (!event.empty()) {
    ASSIGN_OR_RETURN(const uint64_t key, TakeVarint(&event));
    uint64_t skip = 0;
    switch (key & 7) {
      case kVarint: {
        ASSIGN_OR_RETURN(const uint64_t value, TakeVarint(&event));
        if (key >> 3 == 2) step = static_cast<int64_t>(value);
        break;
      }
      case kFixed64:
        skip = 8;
        break;
      case kFixed32:
        skip = 4;
        break;
      case kLengthDelimited: {
        ASSIGN_OR_RETURN(skip, TakeVarint(&event));
        break;
      }
      default:
        return InvalidInput("event: wire type {} is unknown", key & 7);
    }
    if (skip > event.size()) return InvalidInput("event: a field of {} bytes is cut off", skip);
    event.remove_prefix(skip);
  }
  return step;
}

absl::StatusOr<std::unique_ptr<TensorBoardSink>> TensorBoardSink::Open(const std::string& folder) {
  RETURN_IF_ERROR(MakeFolders(folder));
  ASSIGN_OR_RETURN(const std::vector<std::string> names, EventFiles(folder));
  const std::string path = fmt::format("{}/{}{:010}.{}.{}", folder, kFilePrefix, NextStamp(names),
                                       HostName(), ::getpid());
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus("cannot create", path, errno);
  std::unique_ptr<TensorBoardSink> sink(new TensorBoardSink(path, fd));
  RETURN_IF_ERROR(sink->Append(ToTfRecord(FileVersionEvent(WallTime()))));
  return sink;
}

TensorBoardSink::~TensorBoardSink() { ::close(fd_); }

absl::Status TensorBoardSink::Write(const StepMetrics& metrics) {
  return Append(ToTfRecord(ScalarsEvent(WallTime(), metrics)));
}

absl::Status TensorBoardSink::Append(std::string_view record) {
  for (size_t done = 0; done < record.size();) {
    const ssize_t n = ::pwrite(fd_, record.data() + done, record.size() - done,
                               size_ + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus("cannot write", path_, errno);
    done += static_cast<size_t>(n);
  }
  size_ += static_cast<int64_t>(record.size());
  return absl::OkStatus();
}

absl::Status TensorBoardSink::Flush() {
  if (::fdatasync(fd_) != 0) return ErrnoStatus("cannot sync", path_, errno);
  return absl::OkStatus();
}

absl::Status KeepTensorBoardUpTo(const std::string& folder, int64_t step) {
  if (::access(folder.c_str(), F_OK) != 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<std::string> names, EventFiles(folder));
  for (const std::string& name : names) {
    RETURN_IF_ERROR(KeepRecordsUpTo(folder + "/" + name, step));
  }
  return absl::OkStatus();
}

}  // namespace orrery::run
