// The client's side of one Exec call. Input and output are called on the caller's thread, as a
// local sandbox does it; with descriptors (input_fd, stop_fd) a thread watches those.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "sandbox/protocol/descriptor.h"
#include "sandbox/remote/convert.h"
#include "sandbox/sandbox.h"

namespace orrery::sandbox::remote {

class ExecClient {
 public:
  using Stream = grpc::ClientReaderWriter<wire::ExecInput, wire::ExecOutput>;

  ExecClient(const ExecRequest& request, std::unique_ptr<Stream> stream)
      : request_(request), stream_(std::move(stream)), input_(request.input) {}
  // True where the command's result came; otherwise `status` says what became of the call.
  bool Run(const wire::SandboxRef& sandbox, ExecResult* result, grpc::Status* status);

 private:
  bool Start(const wire::SandboxRef& sandbox);
  bool Handle(wire::ExecOutput& output, ExecResult* result);
  void AnswerWithInput();
  void Watch();
  bool PushInput();
  bool Write(const wire::ExecInput& input);

  const ExecRequest& request_;
  std::unique_ptr<Stream> stream_;
  std::string input_;  // not sent yet
  size_t input_offset_ = 0;
  std::mutex write_mutex_;
  Descriptor end_;  // wakes the watcher
  std::thread watcher_;
};

}  // namespace orrery::sandbox::remote
