#include "trainer/model/gguf.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "orchestrator/base/status.h"
#include "tests/trainer/model/gguf_builder.h"
#include "tests/trainer/model/temp_folder.h"
#include "trainer/model/file_dtype.h"

namespace orrery::model {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kData = std::string(ORRERY_SOURCE_DIR) + "/tests/trainer/model/data/";

std::string ParseError(const std::string& file) {
  const auto parsed = ParseGguf(file, "x.gguf");
  return parsed.ok() ? "no error" : StatusText(parsed.status());
}

std::vector<float> AllRows(const GgufTensor& tensor) {
  const size_t row = static_cast<size_t>(tensor.row_size());
  std::vector<float> values(static_cast<size_t>(tensor.num_rows()) * row);
  for (int64_t i = 0; i < tensor.num_rows(); ++i) {
    DequantizeRow(tensor, i, std::span(values).subspan(static_cast<size_t>(i) * row, row));
  }
  return values;
}

TEST(Gguf, EveryTypeReadsAsTheGgufLibraryReadsIt) {
  const auto file = GgufFile::Open(kData + "quants.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string golden = Slurp(kData + "quants.f32");
  ASSERT_EQ((*file)->tensors().size(), 6u);
  ASSERT_EQ(golden.size(), 6u * 3 * 64 * sizeof(float));
  size_t at = 0;
  for (const GgufTensor& tensor : (*file)->tensors()) {
    EXPECT_EQ(tensor.name, GgmlTypeName(tensor.type));
    EXPECT_THAT(tensor.shape, ElementsAre(3, 64));
    for (const float value : AllRows(tensor)) {
      // Bit for bit: every step of these formats is exact but one rounding.
      EXPECT_EQ(value, LoadLittle<float>(golden.data() + at)) << tensor.name;
      at += sizeof(float);
    }
  }
  EXPECT_EQ(at, golden.size());
}

TEST(Gguf, EveryKindOfValueIsRead) {
  const auto opened = GgufFile::Open(kData + "quants.gguf");
  ASSERT_TRUE(opened.ok()) << opened.status();
  const GgufFile& file = **opened;
  EXPECT_EQ(*file.GetString("general.architecture"), "llama");
  EXPECT_EQ(*file.GetInt("a.u8"), 200);
  EXPECT_EQ(*file.GetInt("a.i8"), -3);
  EXPECT_EQ(*file.GetInt("a.u16"), 60000);
  EXPECT_EQ(*file.GetInt("a.i16"), -300);
  EXPECT_EQ(*file.GetInt("a.u32"), 4000000000);
  EXPECT_EQ(*file.GetInt("a.i32"), -5);
  EXPECT_EQ(*file.GetInt("a.u64"), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(*file.GetInt("a.i64"), -(int64_t{1} << 40));
  EXPECT_EQ(*file.GetFloat("a.f32"), 0.5f);
  EXPECT_EQ(*file.GetFloat("a.f64"), 0.25f);
  EXPECT_EQ(*file.GetBool("a.bool"), true);
  EXPECT_EQ(*file.GetString("a.string"), "größer");
  EXPECT_THAT(*file.GetInts("a.ints"), ElementsAre(1, 2, 3));
  EXPECT_THAT(*file.GetFloats("a.floats"), ElementsAre(1.5f, 2.5f));
  EXPECT_THAT(*file.GetStrings("a.strings"), ElementsAre("x", "", "yz"));
  EXPECT_EQ(file.values().at("a.nested").arrays.size(), 2u);
  EXPECT_EQ(file.values().at("a.nested").arrays[0].count, 2u);

  EXPECT_EQ(file.GetInt("a.none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(
      StatusText(file.GetInt("a.string").status()),
      AllOf(HasSubstr("'a.string'"), HasSubstr("its type is string"), HasSubstr("integer")));
  EXPECT_THAT(StatusText(file.GetFloat("a.u8").status()), HasSubstr("u8"));
  EXPECT_THAT(StatusText(file.GetBool("a.u8").status()), HasSubstr("u8"));
  EXPECT_THAT(StatusText(file.GetString("a.ints").status()), HasSubstr("array of i32"));
  EXPECT_THAT(StatusText(file.GetInts("a.strings").status()), HasSubstr("array of string"));
  EXPECT_FALSE(file.GetInts("a.floats").ok());
  EXPECT_FALSE(file.GetFloats("a.nested").ok());
  EXPECT_FALSE(file.GetStrings("a.ints").ok());
  EXPECT_EQ(file.FindTensor("none"), nullptr);
  EXPECT_NE(file.FindTensor("Q4_1"), nullptr);
}

TEST(Gguf, VersionTwoIsReadAndOthersAreNot) {
  GgufBuilder builder;
  builder.U32("k", 7);
  builder.version = 2;
  EXPECT_EQ(ParseError(builder.Build()), "no error");
  for (const uint32_t version : {0u, 1u, 4u}) {
    builder.version = version;
    EXPECT_THAT(ParseError(builder.Build()), HasSubstr(fmt::format("version {}", version)));
  }
  builder.version = 0x03000000;
  EXPECT_THAT(ParseError(builder.Build()), HasSubstr("big-endian"));
  EXPECT_THAT(ParseError("GGML" + builder.Build().substr(4)), HasSubstr("not a GGUF file"));
}

TEST(Gguf, AFileCutAnywhereIsAnError) {
  GgufBuilder builder;
  builder.Str("general.name", "n").Strings("s", {"a", "bc"}).Ints("i", {1, 2});
  builder.Tensor("t", {32, 2}, 8, std::string(68, 'x'));
  const std::string file = builder.Build();
  ASSERT_EQ(ParseError(file), "no error");
  // The last bytes are padding after the tensor.
  const size_t end = file.size() - (96 - 68);
  for (size_t size = 0; size < end; ++size) {
    EXPECT_NE(ParseError(file.substr(0, size)), "no error") << size;
  }
  EXPECT_THAT(ParseError(file.substr(0, end - 1)), HasSubstr("not within the 67 bytes of data"));
}

TEST(Gguf, LyingCountsAndLengthsAreErrorsAndTakeNoMemory) {
  GgufBuilder builder;
  builder.U32("k", 7);
  builder.extra_keys = -2;  // 2^64 - 1
  EXPECT_THAT(ParseError(builder.Build()), HasSubstr("x.gguf"));
  builder.extra_keys = 0;
  builder.extra_tensors = -1;
  EXPECT_THAT(ParseError(builder.Build()), HasSubstr("x.gguf"));

  const auto error = [](uint32_t type, const std::string& value) {
    return ParseError(GgufBuilder().Key("key", type, value).Build());
  };
  const auto raw32 = GgufBuilder::Raw<uint32_t>;
  const auto raw64 = GgufBuilder::Raw<uint64_t>;
  EXPECT_THAT(error(8, raw64(~0ull)), AllOf(HasSubstr("key 'key'"), HasSubstr("the file ends")));
  EXPECT_THAT(error(13, "x"), HasSubstr("value type 13 is unknown"));
  EXPECT_THAT(error(9, raw32(4) + raw64(1ull << 62)), HasSubstr("4611686018427387904 elements"));
  EXPECT_THAT(error(9, raw32(8) + raw64(~0ull)), HasSubstr("the file ends"));
  EXPECT_THAT(error(9, raw32(99) + raw64(0)), HasSubstr("value type 99"));
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += raw32(9) + raw64(1);
  EXPECT_THAT(error(9, nested), HasSubstr("nested too deeply"));
  EXPECT_THAT(ParseError(GgufBuilder().U32("k", 1).U32("k", 2).Build()),
              AllOf(HasSubstr("'k'"), HasSubstr("twice")));
}

TEST(Gguf, WrongTensorsAreErrors) {
  const auto error = [](const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset = 0) {
    return ParseError(
        GgufBuilder().Fill("a", {2, 32}, 0).TensorAt("t", dims, type, offset).Build());
  };
  EXPECT_THAT(error({}, 0), HasSubstr("0 dimensions"));
  EXPECT_THAT(error({1, 1, 1, 1, 1}, 0), HasSubstr("5 dimensions"));
  EXPECT_THAT(error({0}, 0), AllOf(HasSubstr("'t'"), HasSubstr("dimension 0")));
  EXPECT_THAT(error({1ull << 40, 1ull << 40}, 0), HasSubstr("overflows"));
  EXPECT_THAT(error({~0ull}, 0), HasSubstr("overflows"));
  EXPECT_THAT(error({32}, 12), AllOf(HasSubstr("stored as Q4_K"), HasSubstr("Q4_1")));
  EXPECT_THAT(error({32}, 77), HasSubstr("number 77"));
  EXPECT_THAT(error({33}, 8), HasSubstr("33 elements"));
  EXPECT_THAT(error({32}, 0, 7), HasSubstr("no multiple of the alignment 32"));
  EXPECT_THAT(error({32}, 0, 256), HasSubstr("not within"));
  EXPECT_THAT(error({32}, 0, 1ull << 63), HasSubstr("not within"));
  EXPECT_THAT(error({32}, 0, 32), AllOf(HasSubstr("overlap those of 'a' at 0 to 256")));
  EXPECT_THAT(ParseError(GgufBuilder().Fill("t", {2}, 0).Fill("t", {2}, 0).Build()),
              HasSubstr("twice"));
  EXPECT_THAT(ParseError(GgufBuilder().U32("general.alignment", 0).Build()), HasSubstr("power"));
  EXPECT_THAT(ParseError(GgufBuilder().U32("general.alignment", 48).Build()), HasSubstr("power"));
  EXPECT_THAT(ParseError(GgufBuilder().F32("general.alignment", 32).Build()), HasSubstr("u32"));
}

TEST(Gguf, AlignmentMovesTheData) {
  for (const uint32_t alignment : {1, 8, 256}) {
    GgufBuilder builder;
    builder.alignment = alignment;
    builder.U32("general.alignment", alignment).Str("x", "odd").Fill("a", {3}, 5).Fill("b", {1}, 6);
    const std::string file = builder.Build();
    const auto parsed = ParseGguf(file, "x.gguf");
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_THAT(AllRows(parsed->tensors[0]), ElementsAre(5, 5, 5));
    EXPECT_THAT(AllRows(parsed->tensors[1]), ElementsAre(6));
  }
}

TEST(Gguf, MissingFilesAreErrors) {
  EXPECT_EQ(GgufFile::Open("/no/such.gguf").status().code(), absl::StatusCode::kNotFound);
  const TempFolder folder;
  EXPECT_FALSE(GgufFile::Open(folder.path()).ok());
  EXPECT_THAT(StatusText(GgufFile::Open(folder.Write("empty.gguf", "")).status()),
              HasSubstr("the file ends"));
}

}  // namespace
}  // namespace orrery::model
