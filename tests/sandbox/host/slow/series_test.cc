// The long form of the series: 10,000 episodes, 200 owners killed. (1,000 trees: diff_test.cc,
// which this program has too.)
#include "tests/sandbox/host/series.h"

namespace orrery::sandbox {
namespace {

constexpr int64_t kMostGrowthKb = 64 << 10;  // 6.5 kB an episode would show

class SeriesTest : public HostTest {};

TEST_F(SeriesTest, TenThousandEpisodesLeaveNothing) {
  LiveAtOnce(host_.get(), options_, 64, 500);
  const int descriptors = CountDescriptors();
  const int64_t available = MemoryAfterReclaim("MemAvailable");
  const int64_t slab = MemoryAfterReclaim("Slab");
  LiveAtOnce(host_.get(), options_, 64, 10'000);
  EXPECT_EQ(CountDescriptors(), descriptors);
  EXPECT_EQ(host_->load().sandboxes, 0);
  const int64_t slab_growth = MemoryAfterReclaim("Slab") - slab;
  const int64_t taken = available - MemoryAfterReclaim("MemAvailable");
  std::printf("after 10,000 episodes: %lld kB less available, slab grown by %lld kB\n",
              static_cast<long long>(taken), static_cast<long long>(slab_growth));
  EXPECT_LT(slab_growth, kMostGrowthKb);
  RecordProperty("memory_taken_kb", std::to_string(taken));
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
