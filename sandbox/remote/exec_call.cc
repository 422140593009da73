#include "sandbox/remote/exec_call.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>

namespace orrery::sandbox::remote {
namespace {

// How long a client may take to close its half after the result.
constexpr std::chrono::seconds kClosePatience(10);

}  // namespace

grpc::Status ExecCall::Prepare(const wire::ExecStart& start) {
  request_ = FromWire(start);
  stop_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_.valid()) return {grpc::StatusCode::UNAVAILABLE, "too many open files"};
  request_.stop_fd = stop_.get();
  if (start.pull_input()) request_.next_input = [this] { return PullInput(); };
  if (start.push_input()) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      return {grpc::StatusCode::UNAVAILABLE, "too many open files"};
    }
    pushed_.Reset(ends[0]);
    push_.Reset(ends[1]);
    request_.input_fd = pushed_.get();
  }
  if (start.stream_output()) {
    request_.keep_bytes = 0;
    request_.on_output = [this](std::string_view bytes, bool error_stream) {
      if (!WriteOutput(bytes, error_stream)) Stop();
    };
  }
  return grpc::Status::OK;
}

grpc::Status ExecCall::Run(Sandbox* sandbox, const wire::ExecStart& start) {
  if (grpc::Status status = Prepare(start); !status.ok()) return status;
  reader_ = std::thread(&ExecCall::ReadAll, this);
  const ExecResult result = sandbox->Exec(request_);
  pushed_.Reset();  // a reader that still pushes is told so
  wire::ExecOutput last;
  *last.mutable_result() = ToWire(result);
  const bool sent = WriteKept(result.output, false) && WriteKept(result.error_output, true) &&
                    stream_->Write(last);
  WaitForReader();
  return sent ? grpc::Status::OK : grpc::Status::CANCELLED;
}

// Until the client closes its half, or is gone.
void ExecCall::ReadAll() {
  wire::ExecInput input;
  while (stream_->Read(&input)) {
    if (input.kind_case() == wire::ExecInput::kStop) Stop();
    if (input.kind_case() == wire::ExecInput::kData) {
      TakeData(std::move(*input.mutable_data()));
    }
  }
  Stop();
  const std::lock_guard lock(mutex_);
  reader_done_ = true;
  changed_.notify_all();
}

void ExecCall::TakeData(std::string data) {
  if (request_.next_input != nullptr) {
    const std::lock_guard lock(mutex_);
    // One for each that was asked for: more would fill the host's memory.
    if (pulled_.empty()) pulled_.push_back(std::move(data));
    changed_.notify_all();
    return;
  }
  std::string_view rest = data;
  if (rest.empty()) push_.Reset();
  while (!rest.empty() && push_.valid()) {
    const ssize_t n = ::send(push_.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return push_.Reset();  // the command has ended
    rest.remove_prefix(static_cast<size_t>(n));
  }
}

std::string ExecCall::PullInput() {
  wire::ExecOutput want;
  want.mutable_want_input();
  if (!stream_->Write(want)) return "";
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return reader_done_ || !pulled_.empty(); });
  if (pulled_.empty()) return "";  // the client is gone: the command is being stopped
  std::string data = std::move(pulled_.front());
  pulled_.pop_front();
  return data;
}

bool ExecCall::WriteOutput(std::string_view bytes, bool error_stream) {
  return InPieces(bytes, [&](std::string_view piece) {
    wire::ExecOutput output;
    output.mutable_output()->set_data(piece.data(), piece.size());
    output.mutable_output()->set_error_stream(error_stream);
    return stream_->Write(output);
  });
}

bool ExecCall::WriteKept(const Output& output, bool error_stream) {
  for (const bool tail : {false, true}) {
    const bool sent = InPieces(tail ? output.tail : output.head, [&](std::string_view piece) {
      wire::ExecOutput kept;
      kept.mutable_kept()->set_data(piece.data(), piece.size());
      kept.mutable_kept()->set_error_stream(error_stream);
      kept.mutable_kept()->set_tail(tail);
      return stream_->Write(kept);
    });
    if (!sent) return false;
  }
  return true;
}

void ExecCall::Stop() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(stop_.get(), &one, sizeof(one));
}

void ExecCall::WaitForReader() {
  {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kClosePatience, [&] { return reader_done_; })) {
      context_->TryCancel();
    }
  }
  reader_.join();
}

}  // namespace orrery::sandbox::remote
