#include "sandbox/init/privileges.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <optional>
#include <string_view>

#include "sandbox/protocol/descriptor.h"
#include "sandbox/protocol/messages.h"

namespace orrery::sandbox {
namespace {

constexpr size_t kMaxDatabase = 1 << 20;  // of /etc/passwd that is looked at

// A regular file's first bytes; empty where there is none.
std::string ReadDatabase(const char* path) {
  Descriptor file(::open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  std::string text;
  char buffer[16384];
  while (file.valid() && text.size() < kMaxDatabase) {
    const ssize_t n = ::read(file.get(), buffer, sizeof(buffer));
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// An id that the sandbox has.
std::optional<uint32_t> ToId(std::string_view text) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size() && !text.empty();
  return whole && value < kIdCount ? std::optional(value) : std::nullopt;
}

// Fills the user from its line; false where there is none. passwd(5):
// name:x:uid:gid:text:home:shell
bool FindInPasswd(std::string_view passwd, std::string_view name, User& user) {
  const std::optional<uint32_t> number = ToId(name);
  for (const std::string_view line : Split(passwd, '\n')) {
    const auto fields = Split(line, ':');
    if (fields.size() < 6) continue;
    const auto uid = ToId(fields[2]), gid = ToId(fields[3]);
    if (!uid || !gid) continue;
    if (fields[0] != name && (!number || *uid != *number)) continue;
    user.uid = *uid;
    user.gid = *gid;
    if (!fields[5].empty()) user.home = fields[5];
    return true;
  }
  return false;
}

// group(5): name:x:gid:member,member
std::optional<uint32_t> FindGroup(std::string_view groups, std::string_view name) {
  if (const auto number = ToId(name)) return number;
  for (const std::string_view line : Split(groups, '\n')) {
    const auto fields = Split(line, ':');
    if (fields.size() >= 3 && fields[0] == name) return ToId(fields[2]);
  }
  return std::nullopt;
}

}  // namespace

Error FindUser(const std::string& wanted, User& user) {
  const size_t colon = wanted.find(':');
  const std::string name = wanted.empty() ? "0" : wanted.substr(0, colon);
  const std::optional<uint32_t> number = ToId(name);
  if (!FindInPasswd(ReadDatabase("/etc/passwd"), name, user)) {
    if (!number) return {ENOENT, "there is no user " + name + " in the image's /etc/passwd"};
    user.uid = *number;
    user.gid = 0;
  }
  if (user.uid == 0 && user.home == "/") user.home = "/root";
  if (colon != std::string::npos) {
    const auto group = FindGroup(ReadDatabase("/etc/group"), wanted.substr(colon + 1));
    if (!group) return {ENOENT, "there is no group " + wanted.substr(colon + 1)};
    user.gid = *group;
  }
  return {};
}

Error DropPrivileges(const User& user, uint64_t capabilities) {
  for (int capability = 0; capability < 64; ++capability) {
    if ((capabilities >> capability & 1) != 0) continue;
    if (::prctl(PR_CAPBSET_DROP, capability) == 0) continue;
    if (errno == EINVAL) break;  // beyond the kernel's last
    return LastError("dropping a capability");
  }
  if (::setgroups(user.groups.size(), user.groups.data()) != 0 ||
      ::setresgid(user.gid, user.gid, user.gid) != 0 ||
      ::setresuid(user.uid, user.uid, user.uid) != 0) {
    return LastError("becoming user " + std::to_string(user.uid));
  }
  if (user.uid != 0) return {};  // the kernel took them all
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  for (int half = 0; half < 2; ++half) {
    data[half].permitted = data[half].effective =
        static_cast<uint32_t>(capabilities >> (32 * half));
  }
  return ::syscall(SYS_capset, &header, data) == 0 ? Error{} : LastError("capset");
}

}  // namespace orrery::sandbox
