#include "tests/sandbox/image/kill_series.h"

namespace orrery::sandbox::image {
namespace {

TEST(Kill, TwelveTimesAtRandomMoments) {
  SKIP_UNLESS_ROOT();
  RunKillSeries(12, 1);
}

}  // namespace
}  // namespace orrery::sandbox::image
