// The eight-bit format of keys and values, by its definition.
#include "kernels/attention/float8_kv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/kernels/random_data.h"

namespace orrery::kernels {
namespace {

TEST(Float8KvTest, EveryByteIsItsOwnNearest) {
  for (const int k : {kFloat8MinExponent, -3, 0, kFloat8MaxExponent}) {
    for (int byte = 0; byte < 256; ++byte) {
      if ((byte & 0x7f) == 0x7f) continue;  // not a number, never stored
      EXPECT_EQ(ToFloat8(FromFloat8(static_cast<uint8_t>(byte), k), k), byte) << k;
    }
  }
  EXPECT_EQ(FromFloat8(0x7e, 0), 448);
  EXPECT_EQ(FromFloat8(0x38, 0), 1);
  EXPECT_EQ(FromFloat8(0x01, 0), std::ldexp(1.0f, -9));
}

TEST(Float8KvTest, TakesTheNearestAndTheEvenOfTwo) {
  // Between every two neighbours: the middle goes to the even one, either side of it to its own.
  for (int byte = 0; byte < 0x7e; ++byte) {
    const float low = FromFloat8(static_cast<uint8_t>(byte), 0);
    const float high = FromFloat8(static_cast<uint8_t>(byte + 1), 0);
    const float middle = (low + high) / 2, step = (high - low) / 64;
    EXPECT_EQ(ToFloat8(middle, 0), byte + byte % 2) << middle;
    EXPECT_EQ(ToFloat8(middle - step, 0), byte);
    EXPECT_EQ(ToFloat8(middle + step, 0), byte + 1);
    EXPECT_EQ(ToFloat8(-middle, 0), (byte + byte % 2) | 0x80);
  }
}

TEST(Float8KvTest, TheExponentIsTheSmallestThatHoldsTheLargest) {
  const std::vector<float> cases = {1,     448,   449,   0.875f, 0.8750001f, 3e-39f,
                                    1e30f, 57344, 57345, 1e-20f, 256.5f};
  for (const float largest : cases) {
    const std::vector<float> row = {0, -largest, largest / 3};
    const int k = Float8Exponent(row);
    ASSERT_GE(k, kFloat8MinExponent);
    ASSERT_LE(k, kFloat8MaxExponent);
    if (k < kFloat8MaxExponent) {
      EXPECT_LE(largest, std::ldexp(448.0, k)) << largest;
    }
    if (k > kFloat8MinExponent) {
      EXPECT_GT(largest, std::ldexp(448.0, k - 1)) << largest;
    }
  }
  EXPECT_EQ(Float8Exponent(std::vector<float>{0, 0}), 0);
}

TEST(Float8KvTest, ErrorsStayWithinTheHalfStep) {
  Random random(1);
  for (const float size : {1e-6f, 0.3f, 20.0f, 5e4f}) {
    std::vector<float> row = random.Floats(128, size);
    row[5] = 0;
    row[6] = size * 1e-5f;
    std::vector<float> rounded = row;
    const int k = Float8Exponent(row);
    RoundToFloat8(rounded);
    for (size_t i = 0; i < row.size(); ++i) {
      const double bound =
          std::max(std::ldexp(std::abs(static_cast<double>(row[i])), -4), std::ldexp(1.0, k - 10));
      EXPECT_LE(std::abs(rounded[i] - row[i]), bound) << row[i];
    }
    std::vector<float> again = rounded;
    RoundToFloat8(again);
    EXPECT_EQ(again, rounded);
  }
}

}  // namespace
}  // namespace orrery::kernels
