// The host's side of one Exec call. A thread reads what the client sends, the caller's runs the
// command and writes; the command is stopped when the client is gone.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "sandbox/protocol/descriptor.h"
#include "sandbox/remote/convert.h"
#include "sandbox/sandbox.h"

namespace orrery::sandbox::remote {

class ExecCall {
 public:
  using Stream = grpc::ServerReaderWriter<wire::ExecOutput, wire::ExecInput>;

  ExecCall(grpc::ServerContext* context, Stream* stream) : context_(context), stream_(stream) {}
  grpc::Status Run(Sandbox* sandbox, const wire::ExecStart& start);

 private:
  grpc::Status Prepare(const wire::ExecStart& start);
  void ReadAll();
  void TakeData(std::string data);
  std::string PullInput();
  bool WriteOutput(std::string_view bytes, bool error_stream);
  bool WriteKept(const Output& output, bool error_stream);
  void Stop();
  void WaitForReader();

  grpc::ServerContext* context_;
  Stream* stream_;
  ExecRequest request_;
  Descriptor stop_, push_, pushed_;  // pushed_: the command's end
  std::thread reader_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> pulled_;
  bool reader_done_ = false;
};

}  // namespace orrery::sandbox::remote
