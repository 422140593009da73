#include "trainer/model/safetensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/hash.h"
#include "orchestrator/base/manifest.h"
#include "orchestrator/base/status.h"
#include "tests/trainer/model/temp_folder.h"
#include "trainer/model/safetensors_writer.h"

namespace orrery::model {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// A safetensors file: the length, the header and so many bytes of data.
std::string File(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof length);
  file += header;
  for (size_t i = 0; i < data_bytes; ++i) file += static_cast<char>(i);
  return file;
}

std::string ParseError(const std::string& file) {
  const auto parsed = ParseSafetensors(file, "x.safetensors");
  return parsed.ok() ? "no error" : StatusText(parsed.status());
}

std::vector<float> Floats(const FileTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
  EXPECT_TRUE(ToFloat32(tensor, values).ok());
  return values;
}

TEST(FileDtype, NamesAndSizesAgreeBothWays) {
  for (const char* name : {"BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F16", "BF16", "F32", "F64",
                           "I16", "I32", "I64", "U16", "U32", "U64", "F8_E8M0"}) {
    const auto dtype = ParseFileDtype(name);
    ASSERT_TRUE(dtype.has_value()) << name;
    EXPECT_EQ(FileDtypeName(*dtype), name);
  }
  EXPECT_FALSE(ParseFileDtype("F4").has_value());
  EXPECT_EQ(FileDtypeSize(FileDtype::kBF16), 2u);
  EXPECT_EQ(FileDtypeSize(FileDtype::kF64), 8u);
}

TEST(FileDtype, EveryHalfHasItsValue) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = (bits >> 10) & 0x1f;
    const double fraction = bits & 0x3ff;
    const double sign = (bits & 0x8000) ? -1 : 1;
    const float value = HalfToFloat(static_cast<uint16_t>(bits));
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), fraction != 0) << bits;
      EXPECT_EQ(std::isinf(value), fraction == 0) << bits;
      continue;
    }
    const double expected = exponent == 0 ? sign * std::ldexp(fraction, -24)
                                          : sign * std::ldexp(1024 + fraction, exponent - 25);
    ASSERT_EQ(value, expected) << bits;
    ASSERT_EQ(std::signbit(value), sign < 0) << bits;
  }
}

TEST(FileDtype, Bfloat16RoundsToNearestTiesToEven) {
  EXPECT_EQ(FloatToBfloat16(1.0f), 0x3f80);
  EXPECT_EQ(FloatToBfloat16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // a tie, to even: down
  EXPECT_EQ(FloatToBfloat16(std::bit_cast<float>(0x3f818000u)), 0x3f82);  // a tie, to even: up
  EXPECT_EQ(FloatToBfloat16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(FloatToBfloat16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_TRUE(std::isnan(Bfloat16ToFloat(FloatToBfloat16(std::bit_cast<float>(0x7f800001u)))));
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = Bfloat16ToFloat(static_cast<uint16_t>(bits));
    if (!std::isnan(value)) {
      ASSERT_EQ(FloatToBfloat16(value), bits);
    }
  }
}

TEST(Safetensors, ReadsWhatThePythonLibraryWrote) {
  const auto file = SafetensorsFile::Open(std::string(ORRERY_SOURCE_DIR) +
                                          "/tests/trainer/model/data/golden.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->names().size(), 14u);
  EXPECT_EQ((*file)->metadata().at("format"), "pt");
  EXPECT_EQ((*file)->metadata().at("note"), "größer");
  for (const char* name : {"f64", "f32", "f16", "bf16"}) {
    EXPECT_THAT((*file)->Find(name)->shape, ElementsAre(2, 3));
    EXPECT_THAT(Floats(*(*file)->Find(name)), ElementsAre(0, 1, 2, 3, 4, 5)) << name;
  }
  EXPECT_EQ((*file)->Find("f8_e4m3")->dtype, FileDtype::kF8E4M3);
  EXPECT_EQ((*file)->Find("f8_e5m2")->dtype, FileDtype::kF8E5M2);
  EXPECT_EQ(LoadLittle<int64_t>((*file)->Find("i64")->data.data() + 40), 5);
  EXPECT_THAT((*file)->Find("scalar")->shape, ElementsAre());
  EXPECT_THAT(Floats(*(*file)->Find("scalar")), ElementsAre(7));
  EXPECT_EQ((*file)->Find("empty")->num_elements(), 0);
  EXPECT_EQ((*file)->Find("no such"), nullptr);
  std::vector<float> six(6);
  EXPECT_THAT(StatusText(ToFloat32(*(*file)->Find("i32"), six)), HasSubstr("I32"));
  EXPECT_FALSE(ToFloat32(*(*file)->Find("f32"), std::span(six).first(5)).ok());
}

TEST(Safetensors, ShortFilesAndLyingLengthsAreErrors) {
  EXPECT_THAT(ParseError(""), HasSubstr("x.safetensors: 0 bytes"));
  EXPECT_THAT(ParseError("1234567"), HasSubstr("too short"));
  EXPECT_THAT(ParseError(File("{}", 0).substr(0, 9)), HasSubstr("header length is 2"));
  std::string huge = File("{}", 0);
  std::memset(huge.data(), 0xff, 8);
  EXPECT_THAT(ParseError(huge), HasSubstr("18446744073709551615"));
  EXPECT_THAT(ParseError(File("", 0)), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(ParseError(File(" {}", 0)), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(ParseError(File("{\"a\": ", 0)), HasSubstr("not JSON"));
  EXPECT_THAT(ParseError(File("{\"\xff\": 1}", 0)), HasSubstr("not JSON"));
  EXPECT_EQ(ParseError(File("{}", 0)), "no error");
  EXPECT_EQ(ParseError(File("{}    ", 0)), "no error");
}

TEST(Safetensors, DeepNestingDoesNotExhaustTheStack) {
  const std::string nested = "{\"a\":" + std::string(4'000'000, '[');
  EXPECT_THAT(ParseError(File(nested, 0)), HasSubstr("not JSON"));
  EXPECT_THAT(ParseError(File(nested + std::string(4'000'000, ']') + "}", 0)),
              HasSubstr("not an object"));
}

TEST(Safetensors, WrongEntriesAreErrors) {
  const auto error = [](const std::string& entry, size_t data_bytes) {
    return ParseError(File("{\"a\\n\":" + entry + "}", data_bytes));
  };
  EXPECT_THAT(error("3", 0), AllOf(HasSubstr("tensor 'a\\x0a'"), HasSubstr("not an object")));
  EXPECT_THAT(error("{\"dtype\":\"F32\"}", 0), HasSubstr("1 keys"));
  EXPECT_THAT(error(R"({"dtype":"F4","shape":[2],"data_offsets":[0,1]})", 1),
              AllOf(HasSubstr("dtype 'F4'"), HasSubstr("BF16")));
  EXPECT_THAT(error(R"({"dtype":5,"shape":[2],"data_offsets":[0,1]})", 1), HasSubstr("\"dtype\""));
  EXPECT_THAT(error(R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})", 1), HasSubstr("shape"));
  EXPECT_THAT(error(R"({"dtype":"U8","shape":[1.5],"data_offsets":[0,1]})", 1), HasSubstr("shape"));
  EXPECT_THAT(error(R"({"dtype":"U8","shape":1,"data_offsets":[0,1]})", 1), HasSubstr("shape"));
  EXPECT_THAT(error(R"({"dtype":"U8","shape":[1],"data_offsets":[0]})", 1), HasSubstr("offsets"));
  EXPECT_THAT(error(R"({"dtype":"U8","shape":[1],"data_offsets":[-1,0]})", 1),
              HasSubstr("offsets"));
  EXPECT_THAT(error(R"({"dtype":"U8","shape":[3],"data_offsets":[0,3]})", 2),
              AllOf(HasSubstr("[0, 3]"), HasSubstr("2 bytes of data")));
  EXPECT_THAT(error(R"({"dtype":"U8","shape":[1],"data_offsets":[1,0]})", 2), HasSubstr("[1, 0]"));
  EXPECT_THAT(error(R"({"dtype":"F32","shape":[2,3],"data_offsets":[0,23]})", 23),
              AllOf(HasSubstr("[2, 3] of F32 takes 24 bytes"), HasSubstr("hold 23")));
  EXPECT_THAT(error(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})", 0),
              HasSubstr("overflows"));
  EXPECT_THAT(error(R"({"shape":[1],"shape":[1],"data_offsets":[0,1]})", 1),
              HasSubstr("\"dtype\""));
}

TEST(Safetensors, OverlapsHolesAndDuplicatesAreErrors) {
  const auto entry = [](const std::string& name, int begin, int end) {
    return fmt::format(R"("{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})", name,
                       end - begin, begin, end);
  };
  const auto error = [](const std::string& a, const std::string& b, size_t bytes) {
    return ParseError(File("{" + a + "," + b + "}", bytes));
  };
  EXPECT_EQ(error(entry("b", 4, 8), entry("a", 0, 4), 8), "no error");
  const std::string empty_between = entry("a", 0, 4) + "," + entry("none", 4, 4);
  EXPECT_EQ(error(empty_between, entry("b", 4, 8), 8), "no error");
  EXPECT_THAT(error(entry("a", 0, 4), entry("b", 3, 8), 8),
              AllOf(HasSubstr("'b'"), HasSubstr("overlap those of 'a'"), HasSubstr("end at 4")));
  EXPECT_THAT(error(entry("a", 0, 4), entry("b", 0, 4), 4), HasSubstr("overlap"));
  EXPECT_THAT(error(entry("a", 0, 4), entry("b", 5, 8), 8), HasSubstr("hole from 4"));
  EXPECT_THAT(error(entry("a", 1, 4), entry("b", 4, 8), 8), HasSubstr("hole from 0"));
  EXPECT_THAT(error(entry("a", 0, 4), entry("b", 4, 8), 9), HasSubstr("there are 9 bytes"));
  EXPECT_THAT(error(entry("a", 0, 4), entry("a", 4, 8), 8), HasSubstr("twice"));
  EXPECT_THAT(ParseError(File(R"({"__metadata__":{"a":1}})", 0)), HasSubstr("not a string"));
  EXPECT_THAT(ParseError(File(R"({"__metadata__":[]})", 0)), HasSubstr("not an object"));
}

TEST(Safetensors, MissingFilesAndFoldersAreErrors) {
  EXPECT_EQ(SafetensorsFile::Open("/no/such/file").status().code(), absl::StatusCode::kNotFound);
  const TempFolder folder;
  EXPECT_FALSE(SafetensorsFile::Open(folder.path()).ok());
  const auto empty = Checkpoint::Open(folder.path());
  EXPECT_THAT(StatusText(empty.status()),
              AllOf(HasSubstr("neither model.safetensors"), HasSubstr("orrery import")));
  folder.Write("pytorch_model.bin", "x");
  EXPECT_THAT(StatusText(Checkpoint::Open(folder.path()).status()),
              HasSubstr("safe_serialization"));
  EXPECT_THAT(StatusText(Checkpoint::Open(folder / "no").status()), HasSubstr("no such file"));
}

// Three tensors of different dtypes, their bytes owned here.
struct Model {
  std::vector<float> embedding = std::vector<float>(40);
  std::vector<uint16_t> weight = std::vector<uint16_t>(15);
  std::vector<uint8_t> mask = {1, 0, 1};
  std::vector<TensorSource> sources;

  Model() {
    std::iota(embedding.begin(), embedding.end(), 0.5f);
    for (size_t i = 0; i < weight.size(); ++i) weight[i] = FloatToBfloat16(static_cast<float>(i));
    sources.push_back(FromBytes("mask", FileDtype::kBool, {3}, std::as_bytes(std::span(mask))));
    sources.push_back(
        FromBytes("weight", FileDtype::kBF16, {3, 5}, std::as_bytes(std::span(weight))));
    // In pieces, as something too large for memory would come.
    sources.push_back({"embedding", FileDtype::kF32, {10, 4}, [this](const ByteSink& sink) {
                         for (size_t row = 0; row < 10; ++row) {
                           const auto piece = std::span(embedding).subspan(row * 4, 4);
                           RETURN_IF_ERROR(sink(std::as_bytes(piece)));
                         }
                         return absl::OkStatus();
                       }});
  }
  void ExpectIn(const Checkpoint& checkpoint) const {
    EXPECT_THAT(Floats(*checkpoint.Find("embedding")), testing::ElementsAreArray(embedding));
    EXPECT_THAT(checkpoint.Find("embedding")->shape, ElementsAre(10, 4));
    const FileTensor& read = *checkpoint.Find("weight");
    ASSERT_EQ(read.data.size(), weight.size() * 2);
    EXPECT_EQ(std::memcmp(read.data.data(), weight.data(), read.data.size()), 0);
    EXPECT_EQ(checkpoint.Find("mask")->data[2], std::byte{1});
  }
};

TEST(SafetensorsWriter, WhatIsWrittenReadsBackAligned) {
  const TempFolder folder;
  const Model model;
  ASSERT_TRUE(WriteCheckpoint(folder.path(), model.sources).ok());
  EXPECT_EQ(folder.NumEntries(), 1u);
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  model.ExpectIn(**checkpoint);
  EXPECT_THAT((*checkpoint)->names(), ElementsAre("embedding", "weight", "mask"));
  for (const std::string& name : (*checkpoint)->names()) {
    const FileTensor& tensor = *(*checkpoint)->Find(name);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data.data()) % FileDtypeSize(tensor.dtype), 0u);
  }
  // Data begin at a multiple of 64 bytes of the file, and the file ends with them.
  const std::string bytes = Slurp(folder / "model.safetensors");
  EXPECT_EQ((8 + LoadLittle<uint64_t>(bytes.data())) % 64, 0u);
  const auto file = SafetensorsFile::Open(folder / "model.safetensors");
  EXPECT_EQ((*file)->metadata().at("format"), "pt");
}

TEST(SafetensorsWriter, ShardsHoldAsManyTensorsAsFit) {
  const TempFolder folder;
  const Model model;
  // mask 3 + weight 30 bytes fit into one shard, embedding is larger than a shard.
  ASSERT_TRUE(WriteCheckpoint(folder / "new", model.sources, {.max_shard_bytes = 33}).ok());
  EXPECT_TRUE(std::filesystem::exists(folder / "new/model-00001-of-00002.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(folder / "new/model-00002-of-00002.safetensors"));
  EXPECT_THAT(Slurp(folder / "new/model.safetensors.index.json"), HasSubstr("\"total_size\": 193"));
  const auto checkpoint = Checkpoint::Open(folder / "new");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  model.ExpectIn(**checkpoint);
  EXPECT_THAT((*checkpoint)->names(), ElementsAre("embedding", "mask", "weight"));
  const auto missing = (*checkpoint)->Get("weigh");
  EXPECT_THAT(StatusText(missing.status()), HasSubstr("the nearest is 'weight'"));
  EXPECT_TRUE((*checkpoint)->Get("weight").ok());
  // A second checkpoint would mix with the first.
  EXPECT_EQ(WriteCheckpoint(folder / "new", model.sources).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(SafetensorsWriter, ReplacesASingleFileAtomicallyAndLeavesItOnError) {
  const TempFolder folder;
  Model model;
  ASSERT_TRUE(WriteCheckpoint(folder.path(), model.sources).ok());
  model.embedding[0] = 99;
  ASSERT_TRUE(WriteCheckpoint(folder.path(), model.sources).ok());
  EXPECT_EQ(Floats(*(*Checkpoint::Open(folder.path()))->Find("embedding"))[0], 99);

  const auto broken = [&](auto write) {
    std::vector<TensorSource> sources = model.sources;
    sources.push_back({"last", FileDtype::kU8, {4}, write});
    return WriteCheckpoint(folder.path(), sources);
  };
  const std::vector<std::byte> five(5);
  const absl::Status more = broken([&](const ByteSink& sink) { return sink(five); });
  EXPECT_THAT(StatusText(more), AllOf(HasSubstr("'last'"), HasSubstr("more than its 4 bytes")));
  const absl::Status fewer = broken([&](const ByteSink& sink) { return sink({five.data(), 3}); });
  EXPECT_THAT(StatusText(fewer), HasSubstr("3 of its 4 bytes"));
  const absl::Status own = broken([](const ByteSink&) { return absl::DataLossError("gone"); });
  EXPECT_EQ(own.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(folder.NumEntries(), 1u);  // no temporary file stays
  EXPECT_EQ(Floats(*(*Checkpoint::Open(folder.path()))->Find("embedding"))[0], 99);
  EXPECT_EQ(WriteCheckpoint(folder.path(), model.sources, {.max_shard_bytes = 33}).code(),
            absl::StatusCode::kFailedPrecondition);
}

// The checksum is computed on the way to the disk; here it is compared with what lies there.
TEST(SafetensorsWriter, TellsAnOpenManifestTheChecksumsOfItsFiles) {
  const TempFolder folder;
  std::vector<std::byte> bytes(size_t{5} << 20);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(Mix64(i));
  std::vector<TensorSource> sources;
  for (const int64_t rows : {1, 3, 1000, 300'000, 1 << 20}) {  // through the buffer and past it
    sources.push_back(FromBytes("t" + std::to_string(rows), FileDtype::kF32, {rows},
                                std::span(bytes).first(static_cast<size_t>(4 * rows))));
  }
  ASSERT_TRUE(BeginManifest(folder.path()).ok());
  ASSERT_TRUE(WriteCheckpoint(folder.path(), sources, {.max_shard_bytes = 2'000'000}).ok());
  std::string notes = *ReadFile(folder / ".checksums");
  EXPECT_EQ(std::count(notes.begin(), notes.end(), '\n'), 2) << "the index is nobody's to note";
  const absl::Status finished = FinishManifest(folder.path());
  ASSERT_TRUE(finished.ok()) << finished;
  const auto manifest = ReadManifest(folder.path());
  ASSERT_TRUE(manifest.ok() && manifest->has_value()) << manifest.status();
  EXPECT_EQ((*manifest)->size(), 3u);
  const absl::Status sound = CheckFiles(folder.path(), **manifest);
  EXPECT_TRUE(sound.ok()) << sound;
}

TEST(SafetensorsWriter, TwoTensorsOfOneNameAndUnwritableFoldersAreErrors) {
  const TempFolder folder;
  const Model model;
  std::vector<TensorSource> sources = model.sources;
  sources.push_back(sources[0]);
  EXPECT_THAT(StatusText(WriteCheckpoint(folder.path(), sources)),
              HasSubstr("'mask' is given twice"));
  folder.Write("file", "");
  EXPECT_FALSE(WriteCheckpoint(folder / "file/below", model.sources).ok());
  EXPECT_FALSE(WriteSafetensors(folder / "no/such/x.safetensors", model.sources).ok());
}

TEST(Checkpoint, WrongIndexesAreErrors) {
  const TempFolder folder;
  const Model model;
  ASSERT_TRUE(WriteSafetensors(folder / "a.safetensors", model.sources).ok());
  const auto error = [&](const std::string& index) {
    folder.Write("model.safetensors.index.json", index);
    const auto opened = Checkpoint::Open(folder.path());
    return opened.ok() ? "no error" : StatusText(opened.status());
  };
  EXPECT_EQ(error(R"({"weight_map":{"mask":"a.safetensors"}})"), "no error");
  EXPECT_THAT(error(R"({"weight_map":{"mask":"b.safetensors"}})"),
              AllOf(HasSubstr("'mask'"), HasSubstr("b.safetensors, which is missing")));
  EXPECT_THAT(error(R"({"weight_map":{"other":"a.safetensors"}})"),
              AllOf(HasSubstr("'other'"), HasSubstr("does not hold it")));
  EXPECT_THAT(error(R"({"weight_map":{"mask":"../a.safetensors"}})"),
              HasSubstr("beside the index"));
  EXPECT_THAT(error(R"({"weight_map":{"mask":"/etc/passwd"}})"), HasSubstr("beside the index"));
  EXPECT_THAT(error(R"({"weight_map":{"mask":".."}})"), HasSubstr("beside the index"));
  EXPECT_THAT(error(R"({"weight_map":{"mask":3}})"), HasSubstr("not a file name"));
  EXPECT_THAT(error(R"({"weight_map":{"m":"a.safetensors","m":"a.safetensors"}})"),
              HasSubstr("twice"));
  EXPECT_THAT(error(R"({"weight_map":{}})"), HasSubstr("names no tensor"));
  EXPECT_THAT(error(R"({"weight_map":[]})"), HasSubstr("weight_map"));
  EXPECT_THAT(error("[]"), HasSubstr("weight_map"));
  EXPECT_THAT(error("{"), HasSubstr("not JSON"));
  folder.Write("b.safetensors", "short");
  EXPECT_THAT(error(R"({"weight_map":{"mask":"b.safetensors"}})"), HasSubstr("too short"));
}

}  // namespace
}  // namespace orrery::model
