#include "sandbox/remote/convert.h"

#include <algorithm>

#include "orchestrator/base/status.h"

namespace orrery::sandbox::remote {
namespace {

constexpr size_t kMaxText = 4000;  // a status travels in a header, which has a bound

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.raw_code()),
          std::string(status.message()).substr(0, kMaxText)};
}

absl::Status FromGrpc(const grpc::Status& status, const std::string& place) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  return absl::Status(code, fmt::format("sandbox host {}: {}", place, status.error_message()));
}

wire::Limits ToWire(const Limits& limits) {
  wire::Limits message;
  message.set_memory_bytes(limits.memory_bytes);
  message.set_processes(limits.processes);
  message.set_cpus(limits.cpus);
  message.set_disk_bytes(limits.disk_bytes);
  message.set_inodes(limits.inodes);
  message.set_shm_bytes(limits.shm_bytes);
  message.set_open_files(limits.open_files);
  message.set_file_bytes(limits.file_bytes);
  message.set_terminals(limits.terminals);
  message.set_user_objects(limits.user_objects);
  message.set_memory_request_bytes(limits.memory_request_bytes);
  message.set_cpu_request(limits.cpu_request);
  message.set_disk_request_bytes(limits.disk_request_bytes);
  return message;
}

Limits FromWire(const wire::Limits& message) {
  Limits limits;
  limits.memory_bytes = message.memory_bytes();
  limits.processes = message.processes();
  limits.cpus = message.cpus();
  limits.disk_bytes = message.disk_bytes();
  limits.inodes = message.inodes();
  limits.shm_bytes = message.shm_bytes();
  limits.open_files = message.open_files();
  limits.file_bytes = message.file_bytes();
  limits.terminals = message.terminals();
  limits.user_objects = message.user_objects();
  limits.memory_request_bytes = message.memory_request_bytes();
  limits.cpu_request = message.cpu_request();
  limits.disk_request_bytes = message.disk_request_bytes();
  return limits;
}

wire::Load ToWire(const HostLoad& load) {
  wire::Load message;
  message.set_sandboxes(load.sandboxes);
  message.set_max_sandboxes(load.max_sandboxes);
  message.set_memory_bytes(load.memory_bytes);
  message.set_max_memory_bytes(load.max_memory_bytes);
  message.set_cpus(load.cpus);
  message.set_max_cpus(load.max_cpus);
  message.set_waiting(load.waiting);
  message.set_warm(load.warm);
  return message;
}

HostLoad FromWire(const wire::Load& message) {
  HostLoad load;
  load.sandboxes = message.sandboxes();
  load.max_sandboxes = message.max_sandboxes();
  load.memory_bytes = message.memory_bytes();
  load.max_memory_bytes = message.max_memory_bytes();
  load.cpus = message.cpus();
  load.max_cpus = message.max_cpus();
  load.waiting = message.waiting();
  load.warm = message.warm();
  return load;
}

wire::ExecStart ToWire(const ExecRequest& request) {
  wire::ExecStart start;
  for (const std::string& word : request.argv) start.add_argv(word);
  for (const std::string& entry : request.env) start.add_env(entry);
  start.set_folder(request.folder);
  start.set_user(request.user);
  start.set_separate(request.separate);
  start.set_terminal(request.terminal);
  start.set_timeout_ms(request.timeout_ms);
  start.set_keep_bytes(request.keep_bytes);
  start.set_output_cap_bytes(request.output_cap_bytes);
  start.set_stream_output(request.on_output != nullptr);
  return start;
}

ExecRequest FromWire(const wire::ExecStart& start) {
  ExecRequest request;
  request.argv.assign(start.argv().begin(), start.argv().end());
  request.env.assign(start.env().begin(), start.env().end());
  request.folder = start.folder();
  request.user = start.user();
  request.separate = start.separate();
  request.terminal = start.terminal();
  request.timeout_ms = start.timeout_ms();
  request.keep_bytes = start.keep_bytes();
  request.output_cap_bytes = start.output_cap_bytes();
  return request;
}

wire::ExecResult ToWire(const ExecResult& result) {
  wire::ExecResult message;
  message.set_ending(static_cast<uint32_t>(result.ending));
  message.set_code(result.code);
  message.set_why(result.why);
  message.set_retryable(result.retryable);
  message.set_out_of_memory(result.out_of_memory);
  message.set_disk_full(result.disk_full);
  message.set_process_limit(result.process_limit);
  message.set_output_bytes(result.output.total_bytes);
  message.set_error_bytes(result.error_output.total_bytes);
  message.set_wall_us(result.wall_us);
  message.set_user_us(result.user_us);
  message.set_system_us(result.system_us);
  message.set_max_resident_kb(result.max_resident_kb);
  return message;
}

void FromWire(const wire::ExecResult& message, ExecResult* result) {
  if (message.ending() > static_cast<uint32_t>(Ending::kExited)) {
    result->ending = Ending::kInfrastructure;
    result->why = "the sandbox host talks nonsense";
    return;
  }
  result->ending = static_cast<Ending>(message.ending());
  result->code = message.code();
  result->why = message.why();
  result->retryable = message.retryable();
  result->out_of_memory = message.out_of_memory();
  result->disk_full = message.disk_full();
  result->process_limit = message.process_limit();
  result->output.total_bytes = std::max<int64_t>(0, message.output_bytes());
  result->error_output.total_bytes = std::max<int64_t>(0, message.error_bytes());
  result->wall_us = message.wall_us();
  result->user_us = message.user_us();
  result->system_us = message.system_us();
  result->max_resident_kb = message.max_resident_kb();
}

wire::EventCounts ToWire(const SandboxEvents& events) {
  wire::EventCounts message;
  message.set_oom_kills(events.oom_kills);
  message.set_process_limit_hits(events.process_limit_hits);
  message.set_disk_full(events.disk_full);
  return message;
}

SandboxEvents FromWire(const wire::EventCounts& message) {
  return {message.oom_kills(), message.process_limit_hits(), message.disk_full()};
}

wire::File ToWire(const FileInfo& info) {
  wire::File file;
  file.set_name(info.name);
  file.set_mode(info.mode);
  file.set_uid(info.uid);
  file.set_gid(info.gid);
  file.set_size(info.size);
  file.set_modified_ns(info.modified_ns);
  file.set_target(info.target);
  return file;
}

FileInfo FromWire(const wire::File& file) {
  return {file.name(), file.mode(),        file.uid(),   file.gid(),
          file.size(), file.modified_ns(), file.target()};
}

wire::ChangedPath ToWire(const Change& change) {
  wire::ChangedPath changed;
  changed.set_kind(static_cast<uint32_t>(change.kind));
  changed.set_path(change.path);
  *changed.mutable_file() = ToWire(change.info);
  changed.set_content(change.content);
  for (const auto& [name, value] : change.xattrs) {
    wire::Attribute* attribute = changed.add_xattrs();
    attribute->set_name(name);
    attribute->set_value(value);
  }
  return changed;
}

Change FromWire(const wire::ChangedPath& changed) {
  Change change;
  change.kind = static_cast<Change::Kind>(std::min<uint32_t>(changed.kind(), 2));
  change.path = changed.path();
  change.info = FromWire(changed.file());
  change.content = changed.content();
  for (const wire::Attribute& attribute : changed.xattrs()) {
    change.xattrs.emplace_back(attribute.name(), attribute.value());
  }
  return change;
}

}  // namespace orrery::sandbox::remote
