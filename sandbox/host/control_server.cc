#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "sandbox/host/control.h"
#include "sandbox/host/control_messages.h"

namespace orrery::sandbox {
namespace {

void Send(int connection, ControlType type, const std::string& body) {
  SendFrame(connection, static_cast<uint16_t>(type), body, {});
}

void WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno != EINTR) return;
    if (n > 0) bytes.remove_prefix(static_cast<size_t>(n));
  }
}

std::string EncodeRows(const std::vector<SandboxRow>& rows) {
  ControlRows encoded;
  for (const SandboxRow& row : rows) {
    encoded.rows.push_back(
        Encode(ControlRow{row.id, row.image, row.owner_pid, row.age_ms, row.commands}));
  }
  return Encode(encoded);
}

std::string EncodeResult(const ExecResult& result) {
  const int flags =
      (result.out_of_memory ? 1 : 0) | (result.disk_full ? 2 : 0) | (result.process_limit ? 4 : 0);
  return Encode(ControlResult{static_cast<uint8_t>(result.ending), result.code, result.why,
                              static_cast<uint8_t>(flags)});
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(const std::string& path,
                                                                    Handlers handlers) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return InvalidInput("{}: too long for a socket; take a shorter state folder", path);
  }
  path.copy(address.sun_path, path.size());
  Descriptor listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.valid() ||
      ::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(listener.get(), 16) != 0) {
    return ErrnoStatus("cannot listen on", path, errno);
  }
  Descriptor wake(::eventfd(0, EFD_CLOEXEC));
  auto server = std::unique_ptr<ControlServer>(
      new ControlServer(std::move(listener), std::move(wake), std::move(handlers)));
  server->thread_ = std::thread(&ControlServer::Serve, server.get());
  return server;
}

ControlServer::~ControlServer() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_.get(), &one, sizeof(one));
  thread_.join();
  for (std::thread& connection : connections_) connection.join();
}

void ControlServer::Serve() {
  while (true) {
    pollfd wait[] = {{listener_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    if (::poll(wait, 2, -1) < 0 && errno != EINTR) return;
    if (wait[1].revents != 0) return;
    if (wait[0].revents == 0) continue;
    Descriptor connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!connection.valid()) continue;
    connections_.emplace_back(&ControlServer::Answer, this, std::move(connection));
  }
}

void ControlServer::Answer(Descriptor connection) {
  FrameReceiver receiver;
  Frame frame;
  if (ReceiveFrame(connection.get(), receiver, frame) == 0) AnswerFrame(connection.get(), frame);
}

void ControlServer::AnswerFrame(int connection, Frame& frame) {
  const auto type = static_cast<ControlType>(frame.type);
  if (type == ControlType::kList) {
    return Send(connection, ControlType::kRows, EncodeRows(handlers_.list()));
  }
  const auto request = Decode<ControlRequest>(frame.body);
  if (!request) return Send(connection, ControlType::kError, "a broken request");
  if (type == ControlType::kKill) {
    const absl::Status status = handlers_.kill(request->id);
    return Send(connection, status.ok() ? ControlType::kOk : ControlType::kError,
                StatusText(status));
  }
  if (type != ControlType::kExec || frame.descriptors.size() != 3) {
    return Send(connection, ControlType::kError, "an unknown request");
  }
  ExecRequest exec;
  exec.argv = request->argv;
  exec.env = request->env;
  exec.folder = request->folder;
  exec.user = request->user;
  exec.terminal = request->terminal;
  exec.separate = request->separate;
  exec.timeout_ms = request->timeout_ms;
  exec.keep_bytes = 0;
  exec.output_cap_bytes = 0;
  exec.input_fd = frame.descriptors[0].get();
  exec.on_output = [&](std::string_view bytes, bool error_stream) {
    WriteAll(frame.descriptors[error_stream ? 2 : 1].get(), bytes);
  };
  Send(connection, ControlType::kResult, EncodeResult(handlers_.exec(request->id, exec)));
}

}  // namespace orrery::sandbox
