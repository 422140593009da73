#include "sandbox/launcher/id_maps.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

#include "sandbox/launcher/system.h"
#include "sandbox/protocol/messages.h"

namespace orrery::sandbox {
namespace {

Error WriteFile(const std::string& path, const std::string& text) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file.valid() || ::write(file.get(), text.data(), text.size()) < 0) {
    return LastError("writing \"" + text + "\" to " + path);
  }
  return {};
}

// A process in a new user namespace that sleeps until it is killed.
Error StartSleeper(pid_t& pid) {
  clone_args args{};
  args.flags = CLONE_NEWUSER;
  args.exit_signal = SIGCHLD;
  pid = static_cast<pid_t>(system::Clone3(args));
  if (pid < 0) return LastError("clone3 of a user namespace");
  while (pid == 0) ::pause();
  return {};
}

}  // namespace

Error WriteIdMaps(pid_t pid, uint32_t inside, uint32_t outside) {
  const std::string folder = "/proc/" + std::to_string(pid);
  const std::string map = std::to_string(inside) + " " + std::to_string(outside) + " " +
                          std::to_string(kIdCount) + "\n";
  ORRERY_TRY(WriteFile(folder + "/uid_map", map));
  return WriteFile(folder + "/gid_map", map);
}

Error IdMaps::Get(uint32_t on_disk, uint32_t shown, int& fd) {
  Descriptor& known = namespaces_[{on_disk, shown}];
  fd = known.get();
  if (known.valid()) return {};
  pid_t pid = 0;
  ORRERY_TRY(StartSleeper(pid));
  Error error = WriteIdMaps(pid, on_disk, shown);
  if (!error) {
    const std::string path = "/proc/" + std::to_string(pid) + "/ns/user";
    known.Reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!known.valid()) error = LastError("opening " + path);
  }
  ::kill(pid, SIGKILL);
  fd = known.get();
  return error;
}

}  // namespace orrery::sandbox
