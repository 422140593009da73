#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "sandbox/protocol/frame.h"
#include "sandbox/protocol/messages.h"

namespace orrery::sandbox {
namespace {

struct Pair {
  Pair() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    a.Reset(ends[0]);
    b.Reset(ends[1]);
  }
  Descriptor a, b;
};

TEST(ProtocolTest, FramesArriveWholeInOrderAndWithTheirDescriptors) {
  const Pair pair;
  const Descriptor file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::string large(3 << 20, 'x');
  std::thread sender([&] {
    EXPECT_EQ(SendFrame(pair.a.get(), 1, "one", {file.get(), file.get()}), 0);
    EXPECT_EQ(SendFrame(pair.a.get(), 2, large, {}), 0);
    EXPECT_EQ(SendFrame(pair.a.get(), 3, "", {file.get()}), 0);
  });
  FrameReceiver receiver;
  Frame frame;
  ASSERT_EQ(ReceiveFrame(pair.b.get(), receiver, frame), 0);
  EXPECT_EQ(frame.body, "one");
  EXPECT_EQ(frame.descriptors.size(), 2u);
  ASSERT_EQ(ReceiveFrame(pair.b.get(), receiver, frame), 0);
  EXPECT_TRUE(frame.body == large);
  EXPECT_TRUE(frame.descriptors.empty());
  ASSERT_EQ(ReceiveFrame(pair.b.get(), receiver, frame), 0);
  EXPECT_EQ(frame.type, 3);
  EXPECT_EQ(frame.descriptors.size(), 1u);
  EXPECT_GE(::fcntl(frame.descriptors[0].get(), F_GETFD), 0);
  sender.join();
}

TEST(ProtocolTest, HangUpIsToldFromACutFrame) {
  Pair pair;
  FrameReceiver receiver, other;
  Frame frame;
  pair.a.Reset();
  EXPECT_EQ(ReceiveFrame(pair.b.get(), receiver, frame), ENODATA);
  Pair cut;
  const std::string header = EncodeHeader({100, 1, 0});
  EXPECT_EQ(::write(cut.a.get(), header.data(), header.size()), 12);
  cut.a.Reset();
  EXPECT_EQ(ReceiveFrame(cut.b.get(), other, frame), EPROTO);
}

TEST(ProtocolTest, WhatIsNoFrameIsRefused) {
  for (const std::string& bytes :
       {std::string(12, '\0'), std::string("GET / HTTP/1"), EncodeHeader({kMaxBody + 1, 1, 0}),
        EncodeHeader({0, 1, kMaxDescriptors + 1})}) {
    FrameReceiver receiver;
    receiver.Append(bytes);
    std::optional<Frame> frame;
    EXPECT_EQ(receiver.Next(frame), EPROTO);
  }
  // Descriptors that did not come.
  FrameReceiver receiver;
  receiver.Append(EncodeHeader({0, 1, 1}));
  std::optional<Frame> frame;
  EXPECT_EQ(receiver.Next(frame), EPROTO);
}

TEST(ProtocolTest, MessagesComeBack) {
  StartRequest request;
  request.id = 7;
  request.argv = {"a", "", std::string("b\0c", 3)};
  request.env = {"X=1"};
  request.output = OutputMode::kSeparate;
  request.input = true;
  const auto back = Decode<StartRequest>(Encode(request));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->argv, request.argv);
  EXPECT_EQ(back->output, OutputMode::kSeparate);
  EXPECT_TRUE(back->input);
}

TEST(ProtocolTest, CutAndLengthenedMessagesAreRefused) {
  CreateRequest request;
  request.layers = {"/a", "/b"};
  const std::string bytes = Encode(request);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(Decode<CreateRequest>(bytes.substr(0, size)).has_value()) << size;
  }
  EXPECT_FALSE(Decode<CreateRequest>(bytes + "x").has_value());
  // A list that says it is longer than all bytes.
  EXPECT_FALSE(Decode<StartRequest>(std::string(64, '\xff')).has_value());
}

}  // namespace
}  // namespace orrery::sandbox
