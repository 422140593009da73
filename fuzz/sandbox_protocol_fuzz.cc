// Any bytes as what comes from a sandbox's init: frames, then each message type. Nothing may crash,
// take more memory than the bytes could fill, or decode to something that encodes differently.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "sandbox/protocol/frame.h"
#include "sandbox/protocol/messages.h"

namespace {

using namespace orrery::sandbox;

template <typename Message>
void RoundTrip(std::string_view body) {
  const std::optional<Message> message = Decode<Message>(body);
  if (!message) return;
  const std::string again = Encode(*message);
  const std::optional<Message> twice = Decode<Message>(again);
  // A bool may have come as any byte but zero, so the bytes may differ; what they mean may not.
  if (!twice || Encode(*twice) != again || again.size() != body.size()) std::abort();
}

void TryAll(std::string_view body) {
  RoundTrip<CreateRequest>(body);
  RoundTrip<CreateReply>(body);
  RoundTrip<VolumeRequest>(body);
  RoundTrip<LauncherConfig>(body);
  RoundTrip<InitConfig>(body);
  RoundTrip<StartRequest>(body);
  RoundTrip<StartReply>(body);
  RoundTrip<ExitReport>(body);
  RoundTrip<SignalRequest>(body);
  RoundTrip<FileEntry>(body);
  RoundTrip<Failure>(body);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  TryAll(input);
  FrameReceiver receiver;
  // In two pieces, as a socket may give them.
  receiver.Append(input.substr(0, size / 2));
  std::optional<Frame> frame;
  while (receiver.Next(frame) == 0 && frame) TryAll(frame->body);
  receiver.Append(input.substr(size / 2));
  while (receiver.Next(frame) == 0 && frame) TryAll(frame->body);
  return 0;
}
