// Frames over a stream socket pair: a header of 12 bytes, a body, and descriptors that travel with
// the header.
//
//   offset 0  uint32 magic 0x31584253 ("SBX1")
//   offset 4  uint32 size of the body, at most kMaxBody
//   offset 8  uint16 type (messages.h)
//   offset 10 uint16 number of descriptors, at most kMaxDescriptors
//
// Shared with the static helper: no Abseil, no exceptions; errors are errno values (EPROTO for
// bytes that are no frame, ENODATA for a peer that hung up between frames).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sandbox/protocol/descriptor.h"

namespace orrery::sandbox {

inline constexpr uint32_t kFrameMagic = 0x31584253;
inline constexpr uint32_t kMaxBody = 8u << 20;
inline constexpr uint16_t kMaxDescriptors = 32;
inline constexpr size_t kHeaderSize = 12;

struct FrameHeader {
  uint32_t body_size = 0;
  uint16_t type = 0;
  uint16_t descriptors = 0;
};

struct Frame {
  uint16_t type = 0;
  std::string body;
  std::vector<Descriptor> descriptors;
};

std::string EncodeHeader(const FrameHeader& header);
// Nothing where the bytes are no header that this program would have written.
std::optional<FrameHeader> DecodeHeader(std::string_view bytes);

// Sends all of it, waiting where the socket is full. Borrowed descriptors stay the caller's. 0, or
// an errno value.
int SendFrame(int socket, uint16_t type, std::string_view body,
              const std::vector<int>& descriptors);

// Takes bytes as they come from a socket and gives frames. Not thread-safe.
class FrameReceiver {
 public:
  // Reads what is there (waits for something where the socket blocks). 0, ENODATA at the end of the
  // stream, EAGAIN, or an error.
  int Read(int socket);
  // The next whole frame; nothing where bytes are missing. After EPROTO the stream is of no use.
  int Next(std::optional<Frame>& frame);
  // For the fuzz target: bytes without a socket.
  void Append(std::string_view bytes) { bytes_.append(bytes); }

 private:
  std::string bytes_;
  std::vector<Descriptor> descriptors_;
};

// Waits for one whole frame on a blocking socket.
int ReceiveFrame(int socket, FrameReceiver& receiver, Frame& frame);

}  // namespace orrery::sandbox
