#include "sandbox/protocol/frame.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "sandbox/protocol/wire.h"

namespace orrery::sandbox {
namespace {

constexpr size_t kReadSize = 8 << 10;  // init should touch few pages

// Waits until a socket that does not block takes more.
int WaitWritable(int socket) {
  pollfd wait{socket, POLLOUT, 0};
  while (::poll(&wait, 1, -1) < 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

void AttachDescriptors(msghdr& message, char* buffer, const std::vector<int>& descriptors) {
  const size_t size = descriptors.size() * sizeof(int);
  message.msg_control = buffer;
  message.msg_controllen = CMSG_SPACE(size);
  cmsghdr* control = CMSG_FIRSTHDR(&message);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(size);
  std::memcpy(CMSG_DATA(control), descriptors.data(), size);
}

void TakeDescriptors(msghdr& message, std::vector<Descriptor>& descriptors) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      descriptors.emplace_back(fd);
    }
  }
}

}  // namespace

std::string EncodeHeader(const FrameHeader& header) {
  Writer writer;
  writer.Put(kFrameMagic);
  writer.Put(header.body_size);
  writer.Put(header.type);
  writer.Put(header.descriptors);
  return writer.bytes();
}

std::optional<FrameHeader> DecodeHeader(std::string_view bytes) {
  Reader reader(bytes.substr(0, kHeaderSize));
  uint32_t magic = 0;
  FrameHeader header;
  reader.Get(magic);
  reader.Get(header.body_size);
  reader.Get(header.type);
  reader.Get(header.descriptors);
  const bool known = reader.done() && magic == kFrameMagic && header.body_size <= kMaxBody &&
                     header.descriptors <= kMaxDescriptors;
  return known ? std::optional(header) : std::nullopt;
}

int SendFrame(int socket, uint16_t type, std::string_view body,
              const std::vector<int>& descriptors) {
  if (body.size() > kMaxBody || descriptors.size() > kMaxDescriptors) return EMSGSIZE;
  std::string bytes = EncodeHeader(
      {static_cast<uint32_t>(body.size()), type, static_cast<uint16_t>(descriptors.size())});
  bytes.append(body);
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  bool attach = !descriptors.empty();
  for (size_t sent = 0; sent < bytes.size();) {
    iovec part{bytes.data() + sent, bytes.size() - sent};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (attach) AttachDescriptors(message, control, descriptors);
    const ssize_t n = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    if (n >= 0) {
      sent += static_cast<size_t>(n);
      attach = false;
    } else if (errno == EAGAIN) {
      if (const int error = WaitWritable(socket); error != 0) return error;
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

int FrameReceiver::Read(int socket) {
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  const size_t before = bytes_.size();
  bytes_.resize(before + kReadSize);
  iovec part{bytes_.data() + before, kReadSize};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t n;
  do {
    n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  const int error = errno;
  bytes_.resize(before + (n > 0 ? static_cast<size_t>(n) : 0));
  if (n < 0) return error;
  TakeDescriptors(message, descriptors_);
  if ((message.msg_flags & MSG_CTRUNC) != 0) return EPROTO;
  if (n > 0) return 0;
  return bytes_.empty() ? ENODATA : EPROTO;
}

int FrameReceiver::Next(std::optional<Frame>& frame) {
  frame.reset();
  if (bytes_.size() < kHeaderSize) return 0;
  const std::optional<FrameHeader> header = DecodeHeader(bytes_);
  if (!header) return EPROTO;
  if (bytes_.size() < kHeaderSize + header->body_size) return 0;
  // Descriptors arrive with the first byte of their frame, so they are here.
  if (descriptors_.size() < header->descriptors) return EPROTO;
  frame.emplace();
  frame->type = header->type;
  frame->body = bytes_.substr(kHeaderSize, header->body_size);
  bytes_.erase(0, kHeaderSize + header->body_size);
  for (uint16_t i = 0; i < header->descriptors; ++i) {
    frame->descriptors.push_back(std::move(descriptors_[i]));
  }
  descriptors_.erase(descriptors_.begin(), descriptors_.begin() + header->descriptors);
  return 0;
}

int ReceiveFrame(int socket, FrameReceiver& receiver, Frame& frame) {
  while (true) {
    std::optional<Frame> next;
    if (const int error = receiver.Next(next); error != 0) return error;
    if (next) {
      frame = *std::move(next);
      return 0;
    }
    if (const int error = receiver.Read(socket); error != 0) return error;
  }
}

}  // namespace orrery::sandbox
