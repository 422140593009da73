// The long series of kills.
#include "tests/e2e/kill_series.h"

namespace orrery::e2e {
namespace {

TEST(KillSeries, TwentyKillsLeaveNoTrace) { KillSeries(/*kills=*/20, /*seed=*/2); }

}  // namespace
}  // namespace orrery::e2e
