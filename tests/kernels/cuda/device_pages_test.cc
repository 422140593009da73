// Pages of the GPU at hand: memory that moves between ranges whose addresses stay.
#include "kernels/cuda/device_pages.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int64_t kPage = PagePool::kPageBytes;

class DevicePagesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (NumDevices() == 0) GTEST_SKIP() << "no GPU";
  }
};

void Fill(const PageRange& range, int64_t bytes, int value) {
  CUDA_CHECK(cudaMemset(range.data(), value, static_cast<size_t>(bytes)));
}

bool Holds(const PageRange& range, int64_t bytes, int value) {
  std::vector<unsigned char> host(static_cast<size_t>(bytes));
  CUDA_CHECK(cudaMemcpy(host.data(), range.data(), host.size(), cudaMemcpyDeviceToHost));
  for (const unsigned char c : host) {
    if (c != value) return false;
  }
  return true;
}

TEST_F(DevicePagesTest, GrowingKeepsAddressAndContents) {
  const auto pool = MakeDevicePool();
  PageRange range(pool, int64_t{1} << 40);
  std::byte* const at = range.data();
  range.Grow(kPage);
  Fill(range, kPage, 7);
  range.Grow(3 * kPage);
  EXPECT_EQ(range.data(), at);
  EXPECT_TRUE(Holds(range, kPage, 7));
  Fill(range, 3 * kPage, 9);  // pages side by side are one memory
  EXPECT_TRUE(Holds(range, 3 * kPage, 9));
}

TEST_F(DevicePagesTest, PagesChangeHands) {
  const auto pool = MakeDevicePool();
  PageRange kv(pool, 8 * kPage), arena(pool, 8 * kPage);
  std::byte* const at = kv.data();
  for (int turn = 1; turn < 4; ++turn) {
    kv.Grow(6 * kPage);
    Fill(kv, 6 * kPage, turn);
    CUDA_CHECK(cudaDeviceSynchronize());
    kv.Shrink(0);
    arena.Grow(4 * kPage);
    Fill(arena, 4 * kPage, 100 + turn);
    EXPECT_TRUE(Holds(arena, 4 * kPage, 100 + turn));
    CUDA_CHECK(cudaDeviceSynchronize());
    arena.Shrink(0);
  }
  EXPECT_EQ(kv.data(), at);
  EXPECT_EQ(pool->peak_bytes(), 6 * kPage);
}

// A graph captured over a range runs again after its pages went and came back.
TEST_F(DevicePagesTest, GraphsStayValid) {
  const auto pool = MakeDevicePool();
  PageRange range(pool, kPage), other(pool, kPage);
  range.Grow(kPage);
  cudaStream_t stream = nullptr;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CUDA_CHECK(cudaMemsetAsync(range.data(), 5, kPage, stream));
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  for (int turn = 0; turn < 3; ++turn) {
    CUDA_CHECK(cudaGraphLaunch(executable, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    EXPECT_TRUE(Holds(range, kPage, 5));
    range.Shrink(0);
    other.Grow(kPage);
    Fill(other, kPage, 1);
    CUDA_CHECK(cudaDeviceSynchronize());
    other.Shrink(0);
    range.Grow(kPage);
    Fill(range, kPage, 2);
    CUDA_CHECK(cudaDeviceSynchronize());
  }
  CUDA_CHECK(cudaGraphExecDestroy(executable));
  CUDA_CHECK(cudaGraphDestroy(graph));
  CUDA_CHECK(cudaStreamDestroy(stream));
}

TEST_F(DevicePagesTest, TakenAndGivenBackAsCounted) {
  size_t before = 0, during = 0, after = 0, total = 0;
  const auto pool = MakeDevicePool();
  CUDA_CHECK(cudaMemGetInfo(&before, &total));
  {
    PageRange range(pool, 64 * kPage);
    range.Grow(40 * kPage);
    CUDA_CHECK(cudaMemGetInfo(&during, &total));
    EXPECT_NEAR(static_cast<double>(before - during), static_cast<double>(pool->bytes()),
                0.05 * static_cast<double>(pool->bytes()));
  }
  pool->Trim();
  CUDA_CHECK(cudaMemGetInfo(&after, &total));
  EXPECT_NEAR(static_cast<double>(after), static_cast<double>(before), 8e6);
}

}  // namespace
}  // namespace orrery::kernels::cuda
