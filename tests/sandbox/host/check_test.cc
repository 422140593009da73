// What a hostile program tries, seen to fail.
#include "sandbox/check/check.h"

#include <set>

#include "tests/sandbox/host/testing.h"

namespace orrery::sandbox {
namespace {

// With the mounts of this kernel and with those of older ones.
class CheckTest : public HostTest, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    HostTest::SetUp();
    if (IsSkipped() || !GetParam()) return;
    host_.reset();
    HostOptions options = TestOptions(work_);
    options.staged_mounts = true;
    host_ = *MakeLocalHost(options);
    Make();
    ASSERT_TRUE(WaitForBlanks(host_.get(), options_, options.blanks));
  }
  void ExpectHeld(const absl::StatusOr<std::vector<CheckRow>>& rows, size_t at_least) {
    ASSERT_TRUE(rows.ok()) << rows.status();
    EXPECT_GE(rows->size(), at_least);
    for (const CheckRow& row : *rows) EXPECT_TRUE(row.held) << row.name << ": " << row.detail;
  }
  std::string Empty() {
    const std::string folder = work_.path() + "/empty";
    std::filesystem::create_directories(folder);
    return folder;
  }
};

INSTANTIATE_TEST_SUITE_P(Mounts, CheckTest, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "Staged" : "Detached");
});

TEST_P(CheckTest, EscapesFail) {
  const auto rows = CheckEscapes(host_.get(), ProbeOptions(Empty()));
  ExpectHeld(rows, 75);
  std::set<std::string> names;
  for (const CheckRow& row : *rows) names.insert(row.name);
  for (const char* name : {"core_pattern", "vsock", "host's abstract socket", "init's memory",
                           "userfaultfd", "inherited descriptors", "kill init"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

TEST_P(CheckTest, LoadsAreContained) {
  ExpectHeld(CheckLoads(host_.get(), ProbeOptions(Empty())), 10);
}

TEST_P(CheckTest, NeighboursSeeNothingOfEachOther) {
  ExpectHeld(CheckNeighbours(host_.get(), ProbeOptions(Empty())), 1);
}

TEST_P(CheckTest, FilesAreNoWayOut) {
  ExpectHeld(CheckFiles(host_.get(), ProbeOptions(Empty())), 3);
}

}  // namespace
}  // namespace orrery::sandbox
