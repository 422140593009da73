#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "sandbox/host/control.h"
#include "sandbox/host/control_messages.h"
#include "sandbox/host/ownership.h"

namespace orrery::sandbox {
namespace {

absl::StatusOr<Frame> Ask(const std::string& path, ControlType type, const std::string& body,
                          const std::vector<int>& descriptors) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoStatus("cannot reach the sandbox host at", path, errno);
  }
  FrameReceiver receiver;
  Frame frame;
  if (SendFrame(socket.get(), static_cast<uint16_t>(type), body, descriptors) != 0 ||
      ReceiveFrame(socket.get(), receiver, frame) != 0) {
    return Unavailable("the sandbox host at {} has ended", path);
  }
  if (frame.type == static_cast<uint16_t>(ControlType::kError)) return NotFound("{}", frame.body);
  return frame;
}

struct Host {
  std::string name, socket;
};

std::vector<Host> LiveHosts(const HostOptions& options) {
  std::vector<Host> hosts;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(options.state_folder + "/hosts", error)) {
    const std::string folder = entry.path().string();
    if (OwnerLives(folder)) hosts.push_back({entry.path().filename(), folder + "/control"});
  }
  return hosts;
}

// "HOST/s3" or, where no other host has it, "s3".
absl::StatusOr<Host> FindHost(const HostOptions& options, const std::string& id,
                              std::string& in_host) {
  ASSIGN_OR_RETURN(const std::vector<SandboxRow> rows, ListSandboxes(options));
  std::vector<std::string> matching;
  for (const SandboxRow& row : rows) {
    if (row.id == id || row.id.ends_with("/" + id)) matching.push_back(row.id);
  }
  if (matching.size() != 1) {
    return NotFound("{} sandboxes are called {}: `orrery sandbox ps` names them", matching.size(),
                    id);
  }
  const size_t slash = matching[0].find('/');
  in_host = matching[0].substr(slash + 1);
  const std::string name = matching[0].substr(0, slash);
  return Host{name, options.state_folder + "/hosts/" + name + "/control"};
}

}  // namespace

absl::StatusOr<std::vector<SandboxRow>> ListSandboxes(const HostOptions& options) {
  std::vector<SandboxRow> all;
  for (const Host& host : LiveHosts(options)) {
    const absl::StatusOr<Frame> frame = Ask(host.socket, ControlType::kList, "", {});
    if (!frame.ok()) continue;  // it ended meanwhile
    const auto rows = Decode<ControlRows>(frame->body);
    if (!rows) return Failed("the sandbox host at {} talks nonsense", host.socket);
    for (const std::string& bytes : rows->rows) {
      const auto row = Decode<ControlRow>(bytes);
      if (!row) return Failed("the sandbox host at {} talks nonsense", host.socket);
      all.push_back(
          {host.name + "/" + row->id, row->image, row->owner_pid, row->age_ms, row->commands});
    }
  }
  return all;
}

absl::Status KillSandbox(const HostOptions& options, const std::string& id) {
  ControlRequest request;
  ASSIGN_OR_RETURN(const Host host, FindHost(options, id, request.id));
  return Ask(host.socket, ControlType::kKill, Encode(request), {}).status();
}

absl::StatusOr<ExecResult> ExecInSandbox(const HostOptions& options, const std::string& id,
                                         const ExecRequest& exec) {
  ControlRequest request;
  ASSIGN_OR_RETURN(const Host host, FindHost(options, id, request.id));
  request.argv = exec.argv;
  request.env = exec.env;
  request.folder = exec.folder;
  request.user = exec.user;
  request.terminal = exec.terminal;
  request.separate = exec.separate;
  request.timeout_ms = exec.timeout_ms;
  const std::vector<int> streams = {exec.input_fd, STDOUT_FILENO, STDERR_FILENO};
  ASSIGN_OR_RETURN(const Frame frame,
                   Ask(host.socket, ControlType::kExec, Encode(request), streams));
  const auto answer = Decode<ControlResult>(frame.body);
  if (!answer || answer->ending > static_cast<uint8_t>(Ending::kExited)) {
    return Failed("the sandbox host at {} talks nonsense", host.socket);
  }
  ExecResult result;
  result.ending = static_cast<Ending>(answer->ending);
  result.code = answer->code;
  result.why = answer->why;
  result.out_of_memory = (answer->flags & 1) != 0;
  result.disk_full = (answer->flags & 2) != 0;
  result.process_limit = (answer->flags & 4) != 0;
  return result;
}

}  // namespace orrery::sandbox
