// The long form of the series: 10,000 episodes, 200 owners killed. (1,000 trees: diff_test.cc,
// which this program has too.)
#include "tests/sandbox/host/series.h"

namespace orrery::sandbox {
namespace {

constexpr int64_t kMostGrowthKb = 64 << 10;  // 6.5 kB an episode would show

class SeriesTest : public HostTest {};

TEST_F(SeriesTest, TenThousandEpisodesLeaveNothing) {
  LiveAtOnce(host_.get(), options_, 64, 500);
  ASSERT_TRUE(WaitForBlanks(host_.get(), options_, 3));
  const int descriptors = CountDescriptors();
  const int64_t available = MemoryAfterReclaim("MemAvailable");
  const int64_t slab = MemoryAfterReclaim("Slab");
  LiveAtOnce(host_.get(), options_, 64, 10'000);
  ASSERT_TRUE(WaitForBlanks(host_.get(), options_, 3));
  EXPECT_EQ(CountDescriptors(), descriptors);
  EXPECT_EQ(host_->load().sandboxes, 0);
  const int64_t slab_after = MemoryAfterReclaim("Slab");
  const int64_t available_after = MemoryAfterReclaim("MemAvailable");
  std::printf(
      "before and after 10,000 episodes: MemAvailable %lld and %lld kB, Slab %lld and %lld\n",
      static_cast<long long>(available), static_cast<long long>(available_after),
      static_cast<long long>(slab), static_cast<long long>(slab_after));
  EXPECT_LT(slab_after - slab, kMostGrowthKb);
  RecordProperty("memory_taken_kb", std::to_string(available - available_after));
  host_.reset();
  ExpectNothingLeft(TestOptions(work_));
}

TEST_F(SeriesTest, TwoHundredKilledOwnersLeaveNothing) {
  RunOwnerKills(TestOptions(work_), options_, 200, 20261130);
  EXPECT_TRUE(Make()->Exec(Shell("true")).ok());
  host_.reset();
  ExpectNothingLeft(TestOptions(work_));
}

}  // namespace
}  // namespace orrery::sandbox
