// Blocks to the host and back on a GPU, in planes of all sizes and distances; and how planes are
// grouped and blocks gathered into runs, which needs none.
#include "rollout/cuda/host_kv.h"

#include <gtest/gtest.h>

#include "kernels/cuda/device.h"
#include "orchestrator/base/hash.h"

namespace orrery::rollout::cuda {
namespace {

using kernels::cuda::DeviceBuffer;

// Planes at offsets of a made-up address.
std::vector<KvPlane> PlanesAt(const std::vector<std::pair<int64_t, int64_t>>& offset_and_bytes) {
  std::vector<KvPlane> planes;
  for (const auto& [offset, bytes] : offset_and_bytes) {
    planes.push_back({reinterpret_cast<std::byte*>(int64_t{1} << 40) + offset, bytes});
  }
  return planes;
}

TEST(GroupPlanesTest, EqualDistancesGoTogether) {
  const auto groups = GroupPlanes(PlanesAt({{0, 64}, {1000, 64}, {2000, 64}, {3000, 64}}), 5);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].count, 4);
  EXPECT_EQ(groups[0].device_pitch, 1000);
  EXPECT_EQ(groups[0].host_pitch, 5 * 64);
}

TEST(GroupPlanesTest, OtherSizesAndDistancesDoNot) {
  // Two of a size, one at another distance, two of another size, and one that lies before them.
  const auto groups =
      GroupPlanes(PlanesAt({{0, 64}, {1000, 64}, {5000, 64}, {6000, 32}, {7000, 32}, {10, 32}}), 5);
  const int64_t counts[] = {2, 1, 2, 1}, host_offsets[] = {0, 640, 960, 1280};
  ASSERT_EQ(groups.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(groups[i].count, counts[i]) << i;
    EXPECT_EQ(groups[i].host_offset, host_offsets[i]) << i;
  }
}

TEST(GroupPlanesTest, NoFurtherApartThanACopyReaches) {
  const int64_t far = kMostPitch + 1;
  EXPECT_EQ(GroupPlanes(PlanesAt({{0, 64}, {far, 64}, {2 * far, 64}}), 5).size(), 3u);
  EXPECT_EQ(GroupPlanes(PlanesAt({{0, 64}, {far - 1, 64}, {2 * far - 2, 64}}), 5).size(), 1u);
  // Nor on the host.
  EXPECT_EQ(GroupPlanes(PlanesAt({{0, 64}, {1000, 64}}), far / 64 + 1).size(), 2u);
}

TEST(SwapRunsTest, ConsecutiveBlocksOfBothMemoriesAreOne) {
  const std::vector<KvSwap> swaps = {{3, 7, true},  {4, 8, true},   {5, 9, true},   {6, 11, true},
                                     {8, 12, true}, {9, 13, false}, {10, 14, false}};
  const std::vector<SwapRun> runs = ToRuns(swaps);
  const int64_t counts[] = {3, 1, 1, 2};
  ASSERT_EQ(runs.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(runs[i].count, counts[i]) << i;
  EXPECT_EQ(runs[3].first, (KvSwap{9, 13, false}));
  EXPECT_TRUE(ToRuns({}).empty());
}

TEST(HostKvTest, ABlockThatTheHostDoesNotHaveIsAProgrammersError) {
  const std::vector<KvSwap> swaps = {{0, 0, true}};
  EXPECT_DEATH(HostKv().Swap(swaps, nullptr), "host_block");
}

// Against the same copies in ordinary memory.
class Mirror {
 public:
  Mirror(std::vector<std::byte> device, std::span<const KvPlane> planes, const std::byte* base,
         int64_t host_blocks)
      : device_(std::move(device)) {
    for (const KvPlane& p : planes) {
      planes_.push_back({p.data - base, p.block_bytes});
      host_.emplace_back(static_cast<size_t>(p.block_bytes * host_blocks));
    }
  }
  void Swap(std::span<const KvSwap> swaps) {
    for (const KvSwap& s : swaps) {
      for (size_t i = 0; i < planes_.size(); ++i) {
        const auto [offset, bytes] = planes_[i];
        std::byte* device = device_.data() + offset + s.block * bytes;
        std::byte* host = host_[i].data() + s.host_block * bytes;
        std::copy_n(s.out ? device : host, bytes, s.out ? host : device);
      }
    }
  }
  const std::vector<std::byte>& device() const { return device_; }

 private:
  std::vector<std::byte> device_;
  std::vector<std::pair<int64_t, int64_t>> planes_;
  std::vector<std::vector<std::byte>> host_;
};

TEST(HostKvTest, BytesComeBackInEveryLayout) {
  if (kernels::NumDevices() == 0) GTEST_SKIP() << "no GPU";
  constexpr int64_t kBlocks = 40, kHostBlocks = 17;
  cudaStream_t stream = nullptr;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (uint64_t seed = 0; seed < 20; ++seed) {
    RandomStream random(HashSeed({seed, 77}));
    const auto pick = [&](int64_t n) {
      return static_cast<int64_t>(random.Uniform() * static_cast<double>(n));
    };
    // Pieces as of bfloat16, float8 (odd lengths) and small heads; some planes with gaps.
    const int64_t sizes[] = {16384, 8256, 2048, 1040, 33};
    std::vector<std::pair<int64_t, int64_t>> at;
    int64_t end = 0, size = sizes[seed % 5];
    for (int64_t n = 1 + pick(12); n > 0; --n) {
      if (seed >= 10 && pick(3) == 0) size = sizes[pick(5)];
      if (seed >= 10 && pick(3) == 0) end += pick(5000);
      at.push_back({end, size});
      end += kBlocks * size;
    }
    std::vector<std::byte> bytes(static_cast<size_t>(end));
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(HashSeed({seed, i}));
    const DeviceBuffer device(end);
    CUDA_CHECK(cudaMemcpy(device.data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
    std::vector<KvPlane> planes;
    for (const auto& [offset, piece] : at) planes.push_back({device.data() + offset, piece});
    HostKv host(planes, kHostBlocks);
    Mirror mirror(std::move(bytes), planes, device.data(), kHostBlocks);
    for (int round = 0; round < 8; ++round) {
      std::vector<KvSwap> swaps;
      for (int64_t n = 1 + pick(6); n > 0; --n) {
        const int64_t length = 1 + pick(6);
        const KvSwap first{static_cast<int32_t>(pick(kBlocks - length)),
                           static_cast<int32_t>(pick(kHostBlocks - length)), pick(2) == 0};
        for (int32_t i = 0; i < length; ++i) {
          swaps.push_back({first.block + i, first.host_block + i, first.out || round == 0});
        }
      }
      // Before anything comes back everything was once taken out.
      for (int32_t i = 0; round == 0 && i < kHostBlocks; ++i) swaps.push_back({i + 3, i, true});
      host.Swap(swaps, stream);
      mirror.Swap(swaps);
    }
    std::vector<std::byte> got(static_cast<size_t>(end));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    CUDA_CHECK(cudaMemcpy(got.data(), device.data(), got.size(), cudaMemcpyDeviceToHost));
    ASSERT_TRUE(got == mirror.device()) << "seed " << seed;
  }
  CUDA_CHECK(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace orrery::rollout::cuda
