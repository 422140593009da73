#include "orchestrator/loop/loop_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "orchestrator/base/status.h"

namespace orrery {
namespace {

using ::testing::HasSubstr;

class LoopStateTest : public ::testing::Test {
 protected:
  LoopStateTest() {
    std::string name = (std::filesystem::temp_directory_path() / "orrery-loop-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~LoopStateTest() override { std::filesystem::remove_all(folder_); }
  absl::StatusOr<LoopState> LoadText(const std::string& text) {
    std::ofstream(folder_ + "/loop.json", std::ios::binary) << text;
    return LoadLoopState(folder_);
  }
  std::string folder_;
};

TEST_F(LoopStateTest, ComesBackAsItWas) {
  const LoopState state{17, 544, 4352, 544, "story_math:0123abcd", 2, "AVX2"};
  ASSERT_TRUE(SaveLoopState(state, folder_).ok());
  const absl::StatusOr<LoopState> loaded = LoadLoopState(folder_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_TRUE(*loaded == state);
}

TEST_F(LoopStateTest, WhatIsDamagedIsAnErrorThatNamesTheFile) {
  EXPECT_FALSE(LoadLoopState(folder_).ok());
  ASSERT_TRUE(SaveLoopState({17, 544, 4352, 544, "x", 2, "SSE4"}, folder_).ok());
  std::ifstream file(folder_ + "/loop.json");
  const std::string good{std::istreambuf_iterator<char>(file), {}};
  for (size_t length = 0; length + 2 < good.size(); ++length) {
    const absl::StatusOr<LoopState> loaded = LoadText(good.substr(0, length));
    ASSERT_FALSE(loaded.ok()) << good.substr(0, length);
    EXPECT_THAT(StatusText(loaded.status()), HasSubstr("loop.json"));
  }
  for (const char* text :
       {"[]", "null", "{\"step\": -1}", "{\"step\": \"1\"}", "{\"step\": 1.5}"}) {
    EXPECT_FALSE(LoadText(text).ok()) << text;
  }
}

TEST(MachineNote, SaysWhatDiffersAndWhetherItMatters) {
  LoopState then;
  then.threads = 4;
  then.simd = "AVX3";
  LoopState now = then;
  EXPECT_EQ(MachineNote(then, now), "");
  now.threads = 2;
  EXPECT_THAT(MachineNote(then, now), HasSubstr("2 threads"));
  EXPECT_THAT(MachineNote(then, now), HasSubstr("with 4: the same results"));
  now.simd = "AVX2";
  EXPECT_THAT(MachineNote(then, now),
              HasSubstr("AVX2 kernels, its checkpoint was written with AVX3"));
  then.simd.clear();  // an older checkpoint does not know
  now.threads = 4;
  EXPECT_EQ(MachineNote(then, now), "");
}

}  // namespace
}  // namespace orrery
