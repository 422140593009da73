#include "orchestrator/data/parquet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "orchestrator/base/file.h"

#ifdef ORRERY_HAVE_PARQUET

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/writer.h>

namespace orrery::data {
namespace {

using testing::HasSubstr;

void Must(const arrow::Status& status) { ASSERT_TRUE(status.ok()) << status.ToString(); }

class ParquetTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/parquet_test." + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Two rows in each row group, so that several are read.
  std::string Write(const std::shared_ptr<arrow::Table>& table) {
    const std::string path = folder_ + "/t.parquet";
    auto file = arrow::io::FileOutputStream::Open(path);
    EXPECT_TRUE(file.ok());
    Must(parquet::arrow::WriteTable(*table, arrow::default_memory_pool(), *file, 2));
    Must((*file)->Close());
    return path;
  }

  std::vector<Prompt> Read(const std::string& path, const configs::DataConfig& config,
                           int64_t limit = 0) {
    std::vector<Prompt> rows;
    const absl::Status status = ReadParquetRows(path, RowMapper(config), limit, rows);
    EXPECT_TRUE(status.ok()) << status;
    return rows;
  }

  std::string ErrorOf(const std::string& path, const configs::DataConfig& config = {}) {
    std::vector<Prompt> rows;
    const absl::Status status = ReadParquetRows(path, RowMapper(config), 0, rows);
    return status.ok() ? "no error" : std::string(status.message());
  }

  std::string folder_;
};

template <typename Builder, typename Value>
std::shared_ptr<arrow::Array> Column(const std::vector<std::optional<Value>>& values) {
  Builder builder;
  for (const auto& value : values) Must(value ? builder.Append(*value) : builder.AppendNull());
  return builder.Finish().ValueOrDie();
}

std::shared_ptr<arrow::Array> Texts(const std::vector<std::optional<std::string>>& values) {
  return Column<arrow::StringBuilder, std::string>(values);
}

std::shared_ptr<arrow::Array> Dictionary(const std::vector<std::string>& values) {
  arrow::StringDictionaryBuilder builder;
  for (const std::string& value : values) Must(builder.Append(value));
  return builder.Finish().ValueOrDie();
}

// list<struct<role, content>>, the usual type of chat columns.
std::shared_ptr<arrow::Array> Chats(
    const std::vector<std::vector<std::pair<std::string, std::string>>>& chats) {
  auto role = std::make_shared<arrow::StringBuilder>();
  auto content = std::make_shared<arrow::StringBuilder>();
  const auto type =
      arrow::struct_({arrow::field("role", arrow::utf8()), arrow::field("content", arrow::utf8())});
  auto message = std::make_shared<arrow::StructBuilder>(
      type, arrow::default_memory_pool(),
      std::vector<std::shared_ptr<arrow::ArrayBuilder>>{role, content});
  arrow::ListBuilder list(arrow::default_memory_pool(), message);
  for (const auto& chat : chats) {
    Must(list.Append());
    for (const auto& [who, what] : chat) {
      Must(message->Append());
      Must(role->Append(who));
      Must(content->Append(what));
    }
  }
  return list.Finish().ValueOrDie();
}

std::shared_ptr<arrow::Table> Table(
    const std::vector<std::pair<std::string, std::shared_ptr<arrow::Array>>>& columns) {
  arrow::FieldVector fields;
  arrow::ArrayVector arrays;
  for (const auto& [name, array] : columns) {
    fields.push_back(arrow::field(name, array->type()));
    arrays.push_back(array);
  }
  return arrow::Table::Make(arrow::schema(fields), arrays);
}

TEST_F(ParquetTest, ReadsTextsNumbersDictionariesAndNulls) {
  const std::string path = Write(Table({
      {"prompt", Texts({"a", "b\xc3\xa9", "c", "d", "e"})},
      {"answer", Column<arrow::Int64Builder, int64_t>({1, -2, 3, 4, 5})},
      {"small", Column<arrow::Int8Builder, int8_t>({1, 2, 3, 4, std::nullopt})},
      {"score", Column<arrow::DoubleBuilder, double>({0.5, 18.0, NAN, 1, 2})},
      {"flag", Column<arrow::BooleanBuilder, bool>({true, false, true, true, true})},
      {"level", Dictionary({"hard", "easy", "hard", "easy", "hard"})},
      {"day", Column<arrow::Date32Builder, int32_t>({0, 1, 2, 3, 4})},
      {"bytes", Column<arrow::BinaryBuilder, std::string>({"\xff", "x", "x", "x", "x"})},
  }));
  const auto rows = Read(path, {});
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_EQ(rows[1].messages[0].content, "b\xc3\xa9");
  EXPECT_EQ(rows[1].answer, "-2");
  EXPECT_EQ(rows[4].id, "train/4");
  EXPECT_EQ(rows[0].metadata.at("score"), "0.5");
  EXPECT_EQ(rows[1].metadata.at("score"), "18");
  EXPECT_EQ(rows[2].metadata.count("score"), 0u) << "not a number is missing";
  EXPECT_EQ(rows[4].metadata.count("small"), 0u) << "null is missing";
  EXPECT_EQ(rows[3].metadata.at("small"), "4");
  EXPECT_EQ(rows[0].metadata.at("flag"), "true");
  EXPECT_EQ(rows[2].metadata.at("level"), "hard");
  EXPECT_EQ(rows[3].metadata.at("level"), "easy");
  EXPECT_EQ(rows[1].metadata.at("day"), "1970-01-02");
  EXPECT_EQ(rows[0].metadata.count("bytes"), 0u) << "bytes that are no text are left out";
  EXPECT_EQ(rows[1].metadata.at("bytes"), "x");
  EXPECT_EQ(Read(path, {}, 3).size(), 3u);
}

TEST_F(ParquetTest, ReadsMessagesAndNestedFields) {
  const auto truth = arrow::StructArray::Make(arrow::ArrayVector{Texts({"5", "6", "7"})},
                                              std::vector<std::string>{"ground_truth"})
                         .ValueOrDie();
  configs::DataConfig config;
  config.answer_field = "reward_model.ground_truth";
  const auto rows = Read(Write(Table({{"prompt", Chats({{{"system", "s"}, {"user", "u"}},
                                                        {{"user", "v"}},
                                                        {{"user", "w"}, {"assistant", "x"}}})},
                                      {"reward_model", truth}})),
                         config);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].messages[0].content, "s");
  EXPECT_EQ(rows[0].messages[1].content, "u");
  EXPECT_EQ(rows[1].answer, "6");
  EXPECT_EQ(rows[2].messages.size(), 1u);
  EXPECT_EQ(rows[2].solution, "x");
  EXPECT_EQ(rows[2].metadata.at("reward_model"), "{\"ground_truth\":\"7\"}");
}

TEST_F(ParquetTest, MistakesNameFileAndRow) {
  const std::string null_prompt = Write(Table(
      {{"prompt", Texts({"a", "b", "c", std::nullopt})}, {"answer", Texts({"1", "2", "3", "4"})}}));
  EXPECT_THAT(ErrorOf(null_prompt), HasSubstr(null_prompt + ": row 4: field 'prompt' is null"));
  configs::DataConfig config;
  config.preset = "gsm8k";
  EXPECT_THAT(ErrorOf(null_prompt, config),
              HasSubstr("row 1: there is no field 'question'; the row has: prompt, answer"));
  const std::string bytes = Write(
      Table({{"prompt", Column<arrow::BinaryBuilder, std::string>({std::string("\xff\xfe")})}}));
  EXPECT_THAT(ErrorOf(bytes), HasSubstr("row 1: field 'prompt' '\\xff\\xfe' is not UTF-8"));
}

TEST_F(ParquetTest, BrokenFilesAreErrors) {
  EXPECT_THAT(ErrorOf(folder_ + "/absent.parquet"), HasSubstr("absent.parquet"));
  const std::string path =
      Write(Table({{"prompt", Texts({"a", "b", "c"})}, {"answer", Texts({"1", "2", "3"})}}));
  const std::string whole = *ReadFile(path);
  const auto overwrite = [&](const std::string& content) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
    return ErrorOf(path);
  };
  EXPECT_THAT(overwrite(""), HasSubstr("t.parquet: "));
  EXPECT_THAT(overwrite("{\"prompt\": 1}"), HasSubstr("get it again"));
  EXPECT_THAT(overwrite(whole.substr(0, whole.size() / 2)), HasSubstr("get it again"));
  for (size_t i = 0; i < whole.size(); i += 3) {  // any status, no crash
    std::string broken = whole;
    broken[i] = static_cast<char>(broken[i] ^ 0x55);
    overwrite(broken);
  }
}

}  // namespace
}  // namespace orrery::data

#else

namespace orrery::data {
namespace {

TEST(ParquetTest, WithoutArrowSaysSo) {
  std::vector<Prompt> rows;
  const absl::Status status = ReadParquetRows("x.parquet", RowMapper({}), 0, rows);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("this build has no Arrow"));
}

}  // namespace
}  // namespace orrery::data

#endif
