#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "orchestrator/base/check.h"
#include "orchestrator/base/fatal.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"

namespace orrery {
namespace {

std::string Scratch(const std::string& name) {
  const std::string folder = testing::TempDir() + "/base_test." + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  return folder + "/" + name;
}

TEST(FileTest, AtomicWriteReplacesAndReadsBack) {
  const std::string path = Scratch("file");
  ASSERT_TRUE(WriteFileAtomically(path, "old").ok());
  ASSERT_TRUE(WriteFileAtomically(path, std::string("n\0w", 3)).ok());
  EXPECT_EQ(*ReadFile(path), std::string("n\0w", 3));
  for (const auto& entry : std::filesystem::directory_iterator(Scratch(""))) {
    EXPECT_EQ(entry.path().string().find(".tmp-"), std::string::npos) << entry.path();
  }
}

TEST(FileTest, ErrorsNameThePath) {
  EXPECT_EQ(ReadFile("/nonexistent/x").status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(ReadFile("/nonexistent/x").status().message().find("/nonexistent/x"),
            absl::string_view::npos);
  EXPECT_FALSE(WriteFileAtomically("/nonexistent/x", "a").ok());
}

TEST(FileTest, FullDiskIsAStatus) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full here";
  // A full disk shows up when bytes are written: the same code path through a bind-free stand-in.
  EXPECT_EQ(ErrnoStatus("cannot write", "x", ENOSPC).code(), absl::StatusCode::kResourceExhausted);
}

TEST(FileTest, MapsEmptyFilesAndRefusesFolders) {
  const std::string path = Scratch("empty");
  std::ofstream(path).close();
  EXPECT_EQ((*MappedFile::Open(path))->size(), 0u);
  EXPECT_FALSE(MappedFile::Open(Scratch("")).ok());
}

TEST(HashTest, Sha256OfKnownText) {
  EXPECT_EQ(Sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(HashTest, SeedsDependOnEveryPartAndItsPlace) {
  EXPECT_NE(HashSeed({1, 2, 3}), HashSeed({1, 3, 2}));
  EXPECT_NE(HashSeed({1, 2, 3}), HashSeed({1, 2}));
  EXPECT_EQ(HashSeed({1, 2, 3}), HashSeed({1, 2, 3}));
}

TEST(HashTest, StreamIsUniformBelowItsBound) {
  RandomStream stream(7);
  int counts[5] = {};
  for (int i = 0; i < 50000; ++i) ++counts[stream.Below(5)];
  for (const int count : counts) EXPECT_NEAR(count, 10000, 5 * 90);  // 5 standard deviations
}

TEST(CheckDeathTest, NamesThePlaceAndTheValues) {
  EXPECT_DEATH(CHECK_EQ(1, 2) << "because", "base_test.cc.*CHECK failed.*1 against 2.*because");
}

// A member of any likely name goes into the macros as it is.
struct Holder {
  absl::Status status_, status;
  absl::Status First() const {
    RETURN_IF_ERROR(status_);
    RETURN_IF_ERROR(status);
    return absl::OkStatus();
  }
};

TEST(StatusTest, ReturnIfErrorTakesMembers) {
  EXPECT_TRUE(Holder{}.First().ok());
  EXPECT_EQ((Holder{InvalidInput("a"), InvalidInput("b")}.First().message()), "a");
  EXPECT_EQ((Holder{absl::OkStatus(), InvalidInput("b")}.First().message()), "b");
}

TEST(FatalDeathTest, TheLastHookHearsItAndTheExitCodeIsOne) {
  const std::string path = Scratch("last_words");
  const auto write = [&](const char* who) {
    return [path, who](std::string_view message) { std::ofstream(path) << who << ": " << message; };
  };
  const auto fail = [&] {
    const FatalHook outer(write("outer"));
    { const FatalHook gone(write("gone")); }
    const FatalHook inner(write("inner"));
    EndProcess("the device is lost");
  };
  EXPECT_EXIT(fail(), testing::ExitedWithCode(1), "orrery: error: the device is lost");
  EXPECT_EQ(*ReadFile(path), "inner: the device is lost");
}

TEST(FatalDeathTest, ThreadsThatFailTogetherEndOnce) {
  const std::string path = Scratch("count");
  const auto fail = [&] {
    const FatalHook hook([path](std::string_view) {
      std::ofstream(path, std::ios::app) << "x";
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    });
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) threads.emplace_back([] { EndProcess("lost"); });
    for (std::thread& thread : threads) thread.join();
  };
  EXPECT_EXIT(fail(), testing::ExitedWithCode(1), "lost");
  EXPECT_EQ(*ReadFile(path), "x");
}

}  // namespace
}  // namespace orrery
