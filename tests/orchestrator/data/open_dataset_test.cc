#include "orchestrator/data/open_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/real_data.h"

namespace orrery::data {
namespace {

using configs::DataConfig;
using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

constexpr char kRow[] = "{\"prompt\": \"a\", \"answer\": 1}\n";

class OpenDatasetTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/open_dataset_test." + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& content = kRow) {
    const std::filesystem::path path = folder_ + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << content;
  }

  absl::StatusOr<std::unique_ptr<Dataset>> Open(const DataConfig& config,
                                                const SourceResolver& resolver = nullptr) {
    return OpenDataset(config, configs::StoryMathConfig{}, 1, resolver);
  }

  std::string ErrorOf(const DataConfig& config) {
    const auto dataset = Open(config);
    return dataset.ok() ? "no error" : std::string(dataset.status().message());
  }

  std::string folder_;
};

TEST_F(OpenDatasetTest, OneFile) {
  Write("x.jsonl", std::string(kRow) + kRow);
  const auto dataset = Open({.source = folder_ + "/x.jsonl"});
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 2);
  EXPECT_EQ((*dataset)->Row(1).id, "train/1");
  EXPECT_EQ((*Open({.source = folder_ + "/x.jsonl", .limit = 1}))->size(), 1);
}

TEST_F(OpenDatasetTest, FilesOfASplitAreReadInOrderOfTheirNames) {
  Write("data/train-00001-of-00002.jsonl", "{\"prompt\": \"second\", \"answer\": 1}\n");
  Write("data/train-00000-of-00002.jsonl", "{\"prompt\": \"first\", \"answer\": 1}\n");
  Write("data/test.jsonl");
  Write("data/training.jsonl");
  Write("README.md");
  const auto dataset = Open({.source = folder_});
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 2);
  EXPECT_EQ((*dataset)->Row(0).messages[0].content, "first");
  EXPECT_EQ((*dataset)->Row(1).id, "train/1");
}

TEST_F(OpenDatasetTest, FoldersOfSplitsAndPreferredSets) {
  Write("a/train/0.jsonl");
  Write("a/train/1.jsonl");
  Write("a/test/0.jsonl");
  EXPECT_THAT(*FindDataFiles(folder_ + "/a", "train"),
              ElementsAre(EndsWith("train/0.jsonl"), EndsWith("train/1.jsonl")));
  Write("b/main/train-0.parquet");
  Write("b/socratic/train-0.parquet");
  EXPECT_THAT(*FindDataFiles(folder_ + "/b", "train"),
              ElementsAre(EndsWith("main/train-0.parquet")));
  EXPECT_THAT(*FindDataFiles(folder_ + "/b/socratic", "train"), testing::SizeIs(1));
}

TEST_F(OpenDatasetTest, LinkedFilesOfTheHubCacheAreFollowed) {
  Write("blobs/0123abcd");
  std::filesystem::create_directories(folder_ + "/snapshots/main");
  std::filesystem::create_symlink("../../blobs/0123abcd", folder_ + "/snapshots/main/test.jsonl");
  EXPECT_EQ((*Open({.source = folder_ + "/snapshots", .split = "test"}))->size(), 1);
}

TEST_F(OpenDatasetTest, WhatCannotBeChosenIsAnErrorThatListsTheFiles) {
  Write("a/x/train.jsonl");
  Write("a/y/train.jsonl");
  EXPECT_THAT(ErrorOf({.source = folder_ + "/a"}),
              AllOf(HasSubstr("several sets of the split 'train'"), HasSubstr("x/train.jsonl"),
                    HasSubstr("y/train.jsonl")));
  EXPECT_THAT(ErrorOf({.source = folder_ + "/a", .split = "test"}),
              AllOf(HasSubstr("has no files of the split 'test'"), HasSubstr("x/train.jsonl")));
  std::filesystem::create_directories(folder_ + "/empty");
  EXPECT_THAT(ErrorOf({.source = folder_ + "/empty"}), HasSubstr("no .jsonl, .json or .parquet"));
  EXPECT_THAT(ErrorOf({.source = folder_ + "/absent"}), HasSubstr("there is no file or folder"));
  EXPECT_THAT(ErrorOf({}), HasSubstr("data.source: is missing"));
  Write("none.json", "[]");
  EXPECT_THAT(ErrorOf({.source = folder_ + "/none.json"}), HasSubstr("there are no rows"));
}

TEST_F(OpenDatasetTest, HubNamesGoThroughTheResolver) {
  Write("train.jsonl");
  std::string asked;
  const auto resolver = [&](const std::string& source) -> absl::StatusOr<std::string> {
    asked = source;
    return folder_;
  };
  EXPECT_EQ((*Open({.source = "hf:o/n@main"}, resolver))->size(), 1);
  EXPECT_EQ(asked, "hf:o/n@main");
  EXPECT_THAT(ErrorOf({.source = "hf:o/n"}), HasSubstr("'hf:o/n' needs the hub"));
  const auto failing = [](const std::string&) -> absl::StatusOr<std::string> {
    return absl::UnavailableError("offline");
  };
  EXPECT_EQ(Open({.source = "hf:o/n"}, failing).status().message(), "offline");
}

TEST_F(OpenDatasetTest, StoryMathNeedsNoFile) {
  const auto dataset = Open({.source = "story_math", .limit = 10});
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 10);
}

// The real set: its counts, and that every label is a whole number once the commas are gone.
TEST(Gsm8kTest, AllRowsOfTheRealSet) {
  const std::string folder = RealDataPath("gsm8k");
  if (folder.empty()) GTEST_SKIP() << "no GSM8K here; set ORRERY_DATA";
  struct Split {
    const char* name;
    int64_t rows;
    int commas;
  };
  for (const Split& split : {Split{"train", 7473, 79}, Split{"test", 1319, 14}}) {
    DataConfig config{.source = folder, .preset = "gsm8k", .split = split.name};
    const auto dataset = OpenDataset(config, {}, 1, nullptr);
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    EXPECT_EQ((*dataset)->size(), split.rows);
    int commas = 0;
    for (int64_t i = 0; i < (*dataset)->size(); ++i) {
      const Prompt row = (*dataset)->Row(i);
      const size_t sign = row.answer.starts_with('-') ? 1 : 0;
      EXPECT_EQ(row.answer.find_first_not_of("0123456789", sign), std::string::npos) << row.answer;
      EXPECT_EQ(row.solution.find("<<"), std::string::npos);
      EXPECT_EQ(row.solution.find(">>"), std::string::npos);
      const std::string label = row.solution.substr(row.solution.rfind("#### "));
      commas += label.find(',') != std::string::npos ? 1 : 0;
    }
    EXPECT_EQ(commas, split.commas);
    EXPECT_EQ((*dataset)->Row(0).answer, std::string(split.name) == "train" ? "72" : "18");
  }
}

TEST(MathTest, AllRowsOfTheRealSet) {
  const std::string path = RealDataPath("math/math500.json");
  if (path.empty()) GTEST_SKIP() << "no MATH-500 here; set ORRERY_DATA";
  const auto dataset =
      OpenDataset({.source = path, .preset = "math", .split = "test"}, {}, 1, nullptr);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 500);
  EXPECT_EQ((*dataset)->Row(0).answer, "\\left( 3, \\frac{\\pi}{2} \\right)");
  EXPECT_EQ((*dataset)->Row(0).metadata.at("unique_id"), "test/precalculus/807.json");
}

}  // namespace
}  // namespace orrery::data
