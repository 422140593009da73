// What a failing device does to the process: its last words and exit code 1, never a hang.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/fill.h"
#include "orchestrator/base/file.h"
#include "tests/kernels/cuda/device_array.h"

namespace orrery::kernels::cuda {
namespace {

// Each test's failure happens in a process of its own, started anew: CUDA does not survive a fork.
class CudaFailureDeathTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
};

TEST_F(CudaFailureDeathTest, AnIllegalAccessEndsTheProcessAndIsNoted) {
  const std::string path = testing::TempDir() + "/device_failure";
  std::remove(path.c_str());
  const auto fail = [&] {
    const FatalHook hook([&](std::string_view message) { std::ofstream(path) << message; });
    FillUniform(reinterpret_cast<void*>(uintptr_t{4096}), DType::kFloat32, 1 << 20, 0, 1, 1,
                nullptr);
    CUDA_CHECK(cudaDeviceSynchronize());
  };
  EXPECT_EXIT(fail(), testing::ExitedWithCode(1),
              "orrery: error: the GPU failed: .*illegal.*cudaDeviceSynchronize");
  const absl::StatusOr<std::string> words = ReadFile(path);
  ASSERT_TRUE(words.ok());
  EXPECT_NE(words->find("illegal"), std::string::npos) << *words;
}

TEST_F(CudaFailureDeathTest, MemoryThatIsNotThereIsNamedWithNumbers) {
  EXPECT_EXIT(DeviceBuffer(int64_t{1} << 50), testing::ExitedWithCode(1),
              "the GPU failed: out of memory.*MiB are free");
}

}  // namespace
}  // namespace orrery::kernels::cuda
