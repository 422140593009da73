// Any bytes as a message of sandbox/remote, from a client or from a host: the first byte says
// which. Nothing may crash, and what a message means is the same once it was taken over and sent
// on.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "sandbox/host/admission.h"
#include "sandbox/remote/convert.h"

namespace {

using namespace orrery::sandbox;
using namespace orrery::sandbox::remote;

template <typename Message, typename Take>
void SendOn(const Message& message, const Take& take) {
  const std::string once = take(message).SerializeAsString();
  Message again;
  if (!again.ParseFromString(once) || take(again).SerializeAsString() != once) std::abort();
}

template <typename Message>
void TryBothWays(std::string_view bytes) {
  Message message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  SendOn(message, [](const Message& m) { return ToWire(FromWire(m)); });
}

void TryResult(std::string_view bytes) {
  wire::ExecResult message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  SendOn(message, [](const wire::ExecResult& m) {
    ExecResult result;
    result.output.head = "kept before the result came";
    FromWire(m, &result);
    // What a caller does with it; the counts may contradict what was kept.
    if (Describe(result).empty() || result.output.Text().empty()) std::abort();
    return ToWire(result);
  });
}

void TryCreate(std::string_view bytes) {
  wire::CreateRequest message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const Limits limits = FromWire(message.limits());
  if (!CheckLimits(limits).ok()) return;
  // What was let in has no share that takes from others.
  const Share share = ShareOf(limits);
  if (share.memory_bytes < 0 || !(share.cpus >= 0) || share.disk_bytes < 0) std::abort();
  SendOn(message.limits(), [](const wire::Limits& m) { return ToWire(FromWire(m)); });
}

void TryExecInput(std::string_view bytes) {
  wire::ExecInput message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  SendOn(message.start(), [](const wire::ExecStart& m) { return ToWire(FromWire(m)); });
  size_t total = 0;
  InPieces(message.data(), [&](std::string_view piece) {
    if (piece.empty() || piece.size() > kPieceBytes) std::abort();
    total += piece.size();
    return true;
  });
  if (total != message.data().size()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 7) {
    case 0:
      TryCreate(bytes);
      break;
    case 1:
      TryExecInput(bytes);
      break;
    case 2:
      TryResult(bytes);
      break;
    case 3:
      TryBothWays<wire::Load>(bytes);
      break;
    case 4:
      TryBothWays<wire::File>(bytes);
      break;
    case 5:
      TryBothWays<wire::ChangedPath>(bytes);
      break;
    case 6:
      TryBothWays<wire::EventCounts>(bytes);
      break;
  }
  return 0;
}
