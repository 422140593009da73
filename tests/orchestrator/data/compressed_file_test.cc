#include "orchestrator/data/compressed_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include "orchestrator/base/hash.h"

namespace orrery::data {
namespace {

using testing::HasSubstr;

std::string Gzip(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string Zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::string LongText() {
  std::string text;
  RandomStream random(5);
  while (text.size() < 1000000) text += std::to_string(random.Next());
  return text;
}

std::string ErrorOf(const std::string& bytes, const std::string& name, size_t max = 1 << 30) {
  const auto text = Unpack(bytes, name, max);
  return text.ok() ? "no error" : std::string(text.status().message());
}

TEST(UnpackTest, PlainGzipAndZstandard) {
  for (const std::string& text : {std::string(), std::string("a\n"), LongText()}) {
    EXPECT_EQ(*Unpack(text, "x.jsonl"), text);
    EXPECT_EQ(*Unpack(Gzip(text), "x.jsonl.gz"), text);
    EXPECT_EQ(*Unpack(Zstd(text), "x.jsonl.zst"), text);
    EXPECT_EQ(*Unpack(Gzip(text), "no-ending"), text);
  }
}

TEST(UnpackTest, SeveralMembersAndFramesFollowOneAnother) {
  EXPECT_EQ(*Unpack(Gzip("a") + Gzip("") + Gzip("b"), "x.gz"), "ab");
  EXPECT_EQ(*Unpack(Zstd("a") + Zstd("b"), "x.zst"), "ab");
}

// Cut after every length: never a text, never a crash.
TEST(UnpackTest, EveryTruncationIsAnError) {
  const std::string gzip = Gzip("some text, some text"), zstd = Zstd("some text, some text");
  for (size_t size = 2; size < gzip.size(); ++size) {
    EXPECT_THAT(ErrorOf(gzip.substr(0, size), "x.gz"), HasSubstr("x.gz: ")) << size;
    EXPECT_NE(ErrorOf(gzip.substr(0, size), "x.gz"), "no error") << size;
  }
  for (size_t size = 4; size < zstd.size(); ++size) {
    EXPECT_NE(ErrorOf(zstd.substr(0, size), "x.zst"), "no error") << size;
  }
  const std::string half = Gzip(LongText());
  EXPECT_THAT(ErrorOf(half.substr(0, half.size() / 2), "x.gz"),
              HasSubstr("ends too early, after " + std::to_string(half.size() / 2) + " bytes"));
  EXPECT_NE(ErrorOf(Gzip("a") + Gzip("b").substr(0, 5), "x.gz"), "no error");
}

TEST(UnpackTest, BrokenBytesAreAnError) {
  std::string gzip = Gzip(LongText()), zstd = Zstd(LongText());
  gzip[gzip.size() / 2] ^= 1;
  zstd[5] ^= 0x7f;
  EXPECT_THAT(ErrorOf(gzip, "x.gz"), HasSubstr("broken gzip data"));
  EXPECT_NE(ErrorOf(zstd, "x.zst"), "no error");
  EXPECT_THAT(ErrorOf(Gzip("a") + "trailing", "x.gz"), HasSubstr("broken gzip data"));
}

TEST(UnpackTest, NameAndContentMustAgree) {
  EXPECT_THAT(ErrorOf("{}", "x.jsonl.gz"), HasSubstr("not compressed as its name says"));
  EXPECT_THAT(ErrorOf("{}", "x.jsonl.zst"), HasSubstr("not compressed as its name says"));
}

TEST(UnpackTest, BombsStopAtTheLimit) {
  const std::string zeros(10 << 20, '\0');
  EXPECT_THAT(ErrorOf(Gzip(zeros), "x.gz", 1 << 20), HasSubstr("more than 1048576 bytes"));
  EXPECT_THAT(ErrorOf(Zstd(zeros), "x.zst", 1 << 20), HasSubstr("more than 1048576 bytes"));
}

TEST(ReadDataFileTest, MissingFilesAreNamed) {
  EXPECT_THAT(std::string(ReadDataFile("/nonexistent.jsonl").status().message()),
              HasSubstr("/nonexistent.jsonl"));
}

}  // namespace
}  // namespace orrery::data
