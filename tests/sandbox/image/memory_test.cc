// These tests handle bombs, so a bound that does not hold would take the machine's memory with it
// (once seen: 12.5 GB). The whole program runs with a limit: what runs away ends by it at once.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <memory>
#include <new>

namespace orrery::sandbox::image {
namespace {

constexpr rlim_t kMostBytes = rlim_t{2} << 30;  // 234 MB are needed

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kBounded = false;  // a sanitizer maps terabytes
#else
constexpr bool kBounded = true;
#endif

class Bound : public testing::Environment {
 public:
  void SetUp() override {
    rlimit limit{};
    if (!kBounded || ::getrlimit(RLIMIT_DATA, &limit) != 0) return;
    limit.rlim_cur = kMostBytes;
    ASSERT_EQ(::setrlimit(RLIMIT_DATA, &limit), 0);
  }
};

const auto* const bound = testing::AddGlobalTestEnvironment(new Bound);

TEST(Memory, IsBounded) {
  if (!kBounded) return;
  EXPECT_EQ(std::unique_ptr<char[]>(new (std::nothrow) char[kMostBytes + 1]), nullptr);
  EXPECT_NE(std::unique_ptr<char[]>(new (std::nothrow) char[kMostBytes / 8]), nullptr);
}

}  // namespace
}  // namespace orrery::sandbox::image
