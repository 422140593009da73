// sandbox.h's values to messages and back, and statuses: gRPC's codes are Abseil's. For the .cc
// files of this folder alone, as are the generated headers.
#pragma once

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"
#include "sandbox/remote/sandbox.grpc.pb.h"
#include "sandbox/sandbox.h"

namespace orrery::sandbox::remote {

inline constexpr uint32_t kVersion = 1;
// A message stays well below gRPC's bound of 4 MiB, and a stream moves on by it.
inline constexpr size_t kPieceBytes = 256 << 10;
// Of one message: a command's arguments and environment may be longer than the kernel takes.
inline constexpr int kMaxMessageBytes = 16 << 20;
inline constexpr char kTokenKey[] = "x-orrery-token";

grpc::Status ToGrpc(const absl::Status& status);
// `place` is named where the connection failed and not the host's answer.
absl::Status FromGrpc(const grpc::Status& status, const std::string& place);

wire::Limits ToWire(const Limits& limits);
Limits FromWire(const wire::Limits& limits);
wire::Load ToWire(const HostLoad& load);
HostLoad FromWire(const wire::Load& load);

wire::ExecStart ToWire(const ExecRequest& request);  // without input and sandbox
ExecRequest FromWire(const wire::ExecStart& start);
wire::ExecResult ToWire(const ExecResult& result);  // without kept output
// Kept output is as it was; infrastructure where the message is none of ours.
void FromWire(const wire::ExecResult& message, ExecResult* result);

wire::EventCounts ToWire(const SandboxEvents& events);
SandboxEvents FromWire(const wire::EventCounts& message);
wire::File ToWire(const FileInfo& info);
FileInfo FromWire(const wire::File& file);
wire::ChangedPath ToWire(const Change& change);
Change FromWire(const wire::ChangedPath& changed);

// Calls `use` with each piece of the bytes until it gives false; false then. Nothing for no bytes.
template <typename Use>
bool InPieces(std::string_view bytes, const Use& use) {
  while (!bytes.empty()) {
    const std::string_view piece = bytes.substr(0, kPieceBytes);
    if (!use(piece)) return false;
    bytes.remove_prefix(piece.size());
  }
  return true;
}

}  // namespace orrery::sandbox::remote
