#include "tests/sandbox/image/kill_series.h"

namespace orrery::sandbox::image {
namespace {

TEST(Kill, TwoHundredTimesAtRandomMoments) {
  SKIP_UNLESS_ROOT();
  RunKillSeries(200, 20261130);
}

}  // namespace
}  // namespace orrery::sandbox::image
