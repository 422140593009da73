#include "sandbox/remote/exec_client.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

namespace orrery::sandbox::remote {

bool ExecClient::Write(const wire::ExecInput& input) {
  const std::lock_guard lock(write_mutex_);
  return stream_->Write(input);
}

bool ExecClient::Start(const wire::SandboxRef& sandbox) {
  wire::ExecInput input;
  wire::ExecStart& start = *input.mutable_start();
  start = ToWire(request_);
  *start.mutable_sandbox() = sandbox;
  start.set_push_input(request_.input_fd >= 0);
  start.set_pull_input(request_.input_fd < 0 &&
                       (!request_.input.empty() || request_.next_input != nullptr));
  return Write(input);
}

bool ExecClient::Run(const wire::SandboxRef& sandbox, ExecResult* result, grpc::Status* status) {
  bool has_result = false;
  if (Start(sandbox)) {
    if (request_.input_fd >= 0 || request_.stop_fd >= 0) {
      end_.Reset(::eventfd(0, EFD_CLOEXEC));
      watcher_ = std::thread(&ExecClient::Watch, this);
    }
    wire::ExecOutput output;
    while (!has_result && stream_->Read(&output)) has_result = Handle(output, result);
  }
  if (watcher_.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(end_.get(), &one, sizeof(one));
    watcher_.join();
  }
  stream_->WritesDone();
  *status = stream_->Finish();
  return has_result;
}

// True with the result.
bool ExecClient::Handle(wire::ExecOutput& output, ExecResult* result) {
  switch (output.kind_case()) {
    case wire::ExecOutput::kOutput:
      if (request_.on_output) {
        request_.on_output(output.output().data(), output.output().error_stream());
      }
      return false;
    case wire::ExecOutput::kKept: {
      Output& kept = output.kept().error_stream() ? result->error_output : result->output;
      (output.kept().tail() ? kept.tail : kept.head) += output.kept().data();
      return false;
    }
    case wire::ExecOutput::kWantInput:
      AnswerWithInput();
      return false;
    case wire::ExecOutput::kResult:
      FromWire(output.result(), result);
      return true;
    default:
      return false;
  }
}

void ExecClient::AnswerWithInput() {
  if (input_offset_ >= input_.size()) {
    input_ = request_.next_input ? request_.next_input() : std::string();
    input_offset_ = 0;
  }
  wire::ExecInput answer;
  answer.set_data(input_.substr(input_offset_, kPieceBytes));
  input_offset_ += answer.data().size();
  Write(answer);
}

void ExecClient::Watch() {
  bool reading = request_.input_fd >= 0, stopping = request_.stop_fd >= 0;
  while (true) {
    pollfd wait[] = {{end_.get(), POLLIN, 0},
                     {reading ? request_.input_fd : -1, POLLIN, 0},
                     {stopping ? request_.stop_fd : -1, POLLIN, 0}};
    if (::poll(wait, 3, -1) < 0 && errno != EINTR) return;
    if (wait[0].revents != 0) return;
    if (wait[1].revents != 0) reading = PushInput();
    if (wait[2].revents != 0) {
      stopping = false;
      wire::ExecInput stop;
      stop.mutable_stop();
      Write(stop);
    }
  }
}

// False at the end of it.
bool ExecClient::PushInput() {
  std::string bytes(kPieceBytes, '\0');
  const ssize_t n = ::read(request_.input_fd, bytes.data(), bytes.size());
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  bytes.resize(n > 0 ? static_cast<size_t>(n) : 0);
  const bool more = !bytes.empty();
  wire::ExecInput input;
  input.set_data(std::move(bytes));
  return Write(input) && more;
}

}  // namespace orrery::sandbox::remote
