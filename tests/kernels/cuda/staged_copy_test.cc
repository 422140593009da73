// Copies through pinned pieces.
#include "kernels/cuda/staged_copy.h"

#include <gtest/gtest.h>

#include <cstring>

#include "orchestrator/base/hash.h"
#include "tests/kernels/cuda/device_array.h"

namespace orrery::kernels::cuda {
namespace {

class CudaStagedCopyTest : public CudaTest {};

TEST_F(CudaStagedCopyTest, ThereAndBackOfAnySize) {
  for (const int64_t bytes : {int64_t{1}, int64_t{1000}, int64_t{32} << 20, (int64_t{32} << 20) + 7,
                              (int64_t{200} << 20) + 12345}) {
    std::vector<uint8_t> host(static_cast<size_t>(bytes)), back(host.size(), 1);
    for (size_t i = 0; i + 8 <= host.size(); i += 8) {
      const uint64_t word = Mix64(i + 1);
      std::memcpy(host.data() + i, &word, 8);
    }
    DeviceArray<uint8_t> device(bytes);
    CopyToDevice(device.get(), host.data(), bytes, nullptr);
    EXPECT_EQ(device.Download(), host);
    CopyToHost(back.data(), device.get(), bytes, nullptr);
    EXPECT_EQ(back, host);
  }
}

}  // namespace
}  // namespace orrery::kernels::cuda
