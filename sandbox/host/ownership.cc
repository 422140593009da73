#include "sandbox/host/ownership.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <sstream>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"

namespace orrery::sandbox {
namespace {

struct Record {
  std::string boot;
  int64_t pid = 0;
  std::string start;
};

std::string BootId() {
  const auto text = ReadFile("/proc/sys/kernel/random/boot_id");
  return text.ok() ? text->substr(0, 36) : "unknown";
}

// Field 22 of proc(5)'s stat, counted behind the name, which may hold anything. Empty where there
// is no such process.
std::string StartTime(int64_t pid) {
  const auto stat = ReadFile("/proc/" + std::to_string(pid) + "/stat");
  if (!stat.ok()) return "";
  std::istringstream words(stat->substr(stat->rfind(')') + 1));
  std::string word;
  for (int field = 3; field <= 22; ++field) words >> word;
  return word;
}

Record OwnRecord() { return {BootId(), ::getpid(), StartTime(::getpid())}; }

bool IsLocked(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  return file.valid() && ::flock(file.get(), LOCK_EX | LOCK_NB) != 0;
}

}  // namespace

absl::StatusOr<Descriptor> TakeOwnership(const std::string& folder) {
  RETURN_IF_ERROR(MakeFolders(folder));
  const std::string path = folder + "/owner";
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file.valid() || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    return ErrnoStatus("cannot lock", path, errno);
  }
  const Record record = OwnRecord();
  const std::string text = fmt::format("{} {} {}\n", record.boot, record.pid, record.start);
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::fsync(file.get()) != 0) {
    return ErrnoStatus("cannot write", path, errno);
  }
  RETURN_IF_ERROR(SyncPath(folder));
  return file;
}

bool OwnerLives(const std::string& folder) {
  const std::string path = folder + "/owner";
  if (!IsLocked(path)) return false;
  const auto text = ReadFile(path);
  Record record;
  if (!text.ok()) return true;
  std::istringstream words(*text);
  if (!(words >> record.boot >> record.pid >> record.start)) return true;
  return record.boot == BootId() && StartTime(record.pid) == record.start;
}

}  // namespace orrery::sandbox
