#include "sandbox/image/decode.h"

#include "tests/sandbox/image/image_testing.h"

namespace orrery::sandbox::image {
namespace {

absl::StatusOr<std::string> Decode(std::string_view data, const UnpackLimits& limits = {},
                                   size_t piece_bytes = 7) {
  ByteSource source = [data, piece_bytes]() mutable -> absl::StatusOr<std::string_view> {
    const std::string_view piece = data.substr(0, piece_bytes);
    data.remove_prefix(piece.size());
    return piece;
  };
  Decoder decoder(std::move(source), limits);
  std::string all, piece;
  do {
    RETURN_IF_ERROR(decoder.Next(&piece));
    all += piece;
  } while (!piece.empty());
  return all;
}

std::string Text() {
  std::string text;
  for (int64_t i = 0; i < 300'000; ++i) text += std::to_string(i * 7919 % 10007);
  return text;
}

TEST(Decode, PlainGzipAndZstdGiveTheSame) {
  const std::string text = Text();
  for (const std::string& data : {text, Gzip(text), Zstd(text)}) {
    for (const size_t piece : {size_t{4093}, size_t{1} << 20}) {
      const auto decoded = Decode(data, {}, piece);
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      EXPECT_TRUE(*decoded == text);
    }
  }
}

TEST(Decode, SeveralMembersAndFramesFollowEachOther) {
  EXPECT_EQ(*Decode(Gzip("one ") + Gzip("two")), "one two");
  EXPECT_EQ(*Decode(Zstd("one ") + Zstd("two")), "one two");
  EXPECT_EQ(*Decode(Gzip("one") + std::string(700, '\0')), "one");
}

TEST(Decode, EmptyAndShortInput) {
  EXPECT_EQ(*Decode(""), "");
  EXPECT_EQ(*Decode("ab"), "ab");
  EXPECT_EQ(*Decode(Gzip("")), "");
  EXPECT_EQ(*Decode(Zstd("")), "");
}

TEST(Decode, CutAndChangedDataIsAnError) {
  const std::string text = Text();
  for (const std::string& whole : {Gzip(text), Zstd(text)}) {
    EXPECT_EQ(Decode(whole.substr(0, whole.size() / 2), {}, 65536).status().code(),
              absl::StatusCode::kDataLoss);
    EXPECT_FALSE(Decode(whole.substr(0, whole.size() - 1), {}, 65536).ok());
    EXPECT_FALSE(Decode(whole + "garbage", {}, 65536).ok());
    std::string changed = whole;
    for (size_t i = changed.size() / 2; i < changed.size() / 2 + 40; ++i) changed[i] ^= 0x55;
    const auto decoded = Decode(changed, {}, 65536);
    EXPECT_TRUE(whole[0] != '\x1f' || !decoded.ok());  // zstd has its checksum by choice
  }
}

TEST(Decode, BombsEndByRatioAndBySize) {
  const std::string zeros(64 << 20, '\0');
  UnpackLimits limits;
  limits.ratio_free_bytes = 1 << 20;
  limits.max_ratio = 200;
  for (const std::string& bomb : {Gzip(zeros), Zstd(zeros)}) {
    const auto by_ratio = Decode(bomb, limits, 4096);
    EXPECT_EQ(by_ratio.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(StatusText(by_ratio.status()), testing::HasSubstr("max_ratio"));
    const auto by_size = Decode(bomb, {.max_bytes = 10 << 20}, 4096);
    EXPECT_EQ(by_size.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(StatusText(by_size.status()), testing::HasSubstr("max_bytes"));
  }
}

// gzip inside gzip is taken off once: what is left is no tar.
TEST(Decode, OneCompressionOnly) { EXPECT_EQ(*Decode(Gzip(Gzip("x"))), Gzip("x")); }

}  // namespace
}  // namespace orrery::sandbox::image
