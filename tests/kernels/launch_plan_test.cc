// The launch plans of GPU kernels against the tables of H200, B200 and Rubin, without a GPU.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/attention/attention_plan.h"
#include "kernels/linear/linear_plan.h"
#include "kernels/linear/stream_plan.h"

namespace orrery::kernels::cuda {
namespace {

const DeviceLimits kDevices[] = {H200Limits(), B200Limits(), RubinLimits()};

int64_t Tiles(LinearTile tile, int64_t rows, int64_t features) {
  const LinearTileSize size = SizeOf(tile);
  return ((rows + size.rows - 1) / size.rows) *
         ((features + size.weight_rows - 1) / size.weight_rows);
}

TEST(DeviceTable, RubinIsThePublishedOne) {
  EXPECT_EQ(RubinLimits().num_sms, 212);
  EXPECT_EQ(RubinLimits().max_shared_bytes(), 334848);
  EXPECT_EQ(H200Limits().max_shared_bytes(), 232448);
  EXPECT_TRUE(H200Limits().wgmma);
  EXPECT_FALSE(RubinLimits().wgmma) << "warpgroup instructions are Hopper's alone";
}

// The rings of the streaming product's shapes, from 16 weight rows x 8 to 128 x 64, by columns of a
// stage: rows padded by 16 bytes and two barriers.
const StreamRing kRings[] = {
    {4, (16 + 8) * (2 * 256 + 16) + 16},   {5, (48 + 64) * (2 * 128 + 16) + 16},
    {6, (64 + 64) * (2 * 128 + 16) + 16},  {6, (128 + 8) * (2 * 128 + 16) + 16},
    {2, (64 + 16) * (2 * 256 + 16) + 16},  {4, (64 + 32) * (2 * 128 + 16) + 16},
    {4, (128 + 64) * (2 * 128 + 16) + 16},
};
constexpr int64_t kStaticBytes = 3000;  // lists of tiles

TEST(StreamPlan, AnH200KeepsTheTunedDepth) {
  for (const StreamRing& ring : kRings) {
    const StreamPlan plan = PlanStream(ring, kStaticBytes, H200Limits());
    EXPECT_EQ(plan.stages, ring.stages) << ring.stage_bytes;
    EXPECT_EQ(plan.shared_bytes, ring.bytes());
  }
}

TEST(StreamPlan, FitsAndIsNeverShallower) {
  for (const DeviceLimits& device : kDevices) {
    for (const StreamRing& ring : kRings) {
      const StreamPlan plan = PlanStream(ring, kStaticBytes, device);
      EXPECT_GE(plan.stages, ring.stages);
      EXPECT_EQ(plan.shared_bytes, plan.stages * ring.stage_bytes);
      EXPECT_LE(plan.shared_bytes + kStaticBytes, device.max_shared_bytes());
      // As many blocks an SM as on the GPU that it was tuned on.
      const auto blocks = [](int64_t bytes, const DeviceLimits& on) {
        return std::max<int64_t>(on.shared_bytes_per_sm / (bytes + kStaticBytes + 1024), 1);
      };
      EXPECT_EQ(blocks(plan.shared_bytes, device), blocks(ring.bytes(), H200Limits()));
    }
  }
}

TEST(StreamPlan, RubinTakesItsLargeBlocks) {
  // One block an SM: as many stages as 334,848 bytes hold.
  const StreamRing wide = kRings[6], tall = kRings[3];
  EXPECT_EQ(PlanStream(wide, kStaticBytes, RubinLimits()).stages, 6);
  EXPECT_EQ(PlanStream(tall, kStaticBytes, RubinLimits()).stages, 8);
  EXPECT_GT(PlanStream(wide, kStaticBytes, RubinLimits()).shared_bytes,
            RubinLimits().shared_bytes_per_block);
  EXPECT_EQ(PlanStream(wide, kStaticBytes, B200Limits()).stages, 4) << "has no such blocks";
}

// A tile an SM: as much of it as two thirds of the SM hold, and no more than the tile has.
TEST(StreamPlan, LoneTilesHaveDeepRings) {
  const StreamRing thin = kRings[0], wide = kRings[6];
  EXPECT_EQ(PlanLoneTiles(thin, kStaticBytes, 16, H200Limits()).stages, 11);
  EXPECT_EQ(PlanLoneTiles(thin, kStaticBytes, 8, H200Limits()).stages, 8);
  EXPECT_EQ(PlanLoneTiles(thin, kStaticBytes, 2, H200Limits()).stages, 4) << "as usual";
  EXPECT_EQ(PlanLoneTiles(wide, kStaticBytes, 16, H200Limits()).stages, 4) << "as usual";
  for (const DeviceLimits& device : kDevices) {
    for (const StreamRing& ring : kRings) {
      const StreamPlan plan = PlanLoneTiles(ring, kStaticBytes, 64, device);
      EXPECT_GE(plan.stages, PlanStream(ring, kStaticBytes, device).stages);
      EXPECT_EQ(plan.shared_bytes, plan.stages * ring.stage_bytes);
      EXPECT_LE(plan.shared_bytes + kStaticBytes, device.max_shared_bytes());
    }
  }
}

TEST(LinearPlan, UpToEightRowsReadTheWeightOnce) {
  for (const DeviceLimits& device : kDevices) {
    for (int64_t rows = 1; rows <= 8; ++rows) {
      for (const int64_t features : {1, 128, 2048, 5120, 151936}) {
        const LinearTile tile = PlanLinear(rows, features, device);
        EXPECT_EQ(SizeOf(tile).rows, 8) << rows << " x " << features;
        // A tall tile only where every SM has at least two.
        if (tile == LinearTile::kTall) {
          EXPECT_GE(Tiles(tile, rows, features), 2 * device.num_sms);
        }
      }
    }
    EXPECT_EQ(PlanLinear(1, 151936, device), LinearTile::kTall);
    EXPECT_EQ(PlanLinear(1, 2048, device), LinearTile::kThin);
  }
}

TEST(LinearPlan, TilesPayWhereTheyFillTheGpu) {
  for (const DeviceLimits& device : kDevices) {
    if (!device.wgmma) {
      EXPECT_FALSE(TilesPay(8192, 5120, 2048, false, device));
      continue;
    }
    EXPECT_FALSE(TilesPay(191, 24576, 4096, true, device));
    EXPECT_FALSE(TilesPay(8192, 5120, 2056, false, device)) << "k is no multiple of a slab";
    // Measured on an H200: small layers at a batch of decode, and large ones.
    EXPECT_FALSE(TilesPay(1024, 960, 576, false, device));
    EXPECT_FALSE(TilesPay(1024, 576, 1536, false, device));
    EXPECT_FALSE(TilesPay(256, 1536, 576, true, device));
    EXPECT_FALSE(TilesPay(512, 2048, 4096, false, device));
    EXPECT_TRUE(TilesPay(512, 1536, 576, true, device));
    EXPECT_TRUE(TilesPay(256, 5120, 2048, false, device));
    EXPECT_TRUE(TilesPay(1024, 2048, 4096, false, device));
    EXPECT_TRUE(TilesPay(256, 6144, 4096, false, device));
    EXPECT_TRUE(TilesPay(8192, 960, 576, false, device));
  }
}

TEST(LinearPlan, TheLibraryPaysFromSomeRowsOn) {
  const DeviceLimits device = H200Limits();
  EXPECT_FALSE(LibraryPays(1, 5120, device));
  EXPECT_FALSE(LibraryPays(4, 5120, device));
  EXPECT_TRUE(LibraryPays(8, 5120, device));
  EXPECT_FALSE(LibraryPays(8, 2048, device)) << "one tile an SM";
  EXPECT_TRUE(LibraryPays(8, 4096, device));
  EXPECT_TRUE(LibraryPays(9, 128, device));
}

TEST(LinearPlan, MoreRowsTakeWiderTiles) {
  for (const DeviceLimits& device : kDevices) {
    for (const int64_t features : {128, 2048, 5120, 12288, 151936}) {
      int64_t before = 0;
      for (int64_t rows = 9; rows <= 5000; ++rows) {
        const LinearTile tile = PlanLinear(rows, features, device);
        EXPECT_GE(SizeOf(tile).rows, 64);
        const int64_t now = SizeOf(tile).weight_rows;
        EXPECT_GE(now, before) << rows << " x " << features;
        before = now;
      }
    }
  }
}

TEST(AttentionPlan, SplitsWhereRowsAreFewAndTheContextIsLong) {
  const HeadShape qwen{32, 4, 128};
  for (const DeviceLimits& device : kDevices) {
    EXPECT_FALSE(PlanAttention(qwen, 1, 255, device).split) << "one chunk";
    const AttentionPlan one = PlanAttention(qwen, 1, 1023, device);
    EXPECT_TRUE(one.split);
    EXPECT_EQ(one.num_chunks, 4);
    EXPECT_TRUE(one.whole_chunks);
    EXPECT_FALSE(PlanAttention(qwen, 16, 1023, device).whole_chunks) << "two blocks an SM";
    EXPECT_EQ(one.workspace_bytes, 4 * (kAttentionCounters + 4 * 4 * AttentionPartialFloats(128)));
    // As many thread blocks as SMs need no split.
    EXPECT_FALSE(PlanAttention(qwen, device.num_sms, 100000, device).split);
    EXPECT_EQ(PlanAttention(qwen, device.num_sms, 100000, device).workspace_bytes, 0);
  }
}

TEST(AttentionPlan, DividesRunsOfOneSequence) {
  struct Run {
    int32_t sequence, first, count;
  };
  // A long run is cut; positions or sequences that do not go on end a tile; padding is left out.
  const std::vector<Run> runs = {{0, 0, 40}, {0, -1, 1}, {1, 7, 3}, {2, 5, 4},  {2, 9, 4},
                                 {3, 9, 5},  {3, 13, 1}, {4, 0, 1}, {0, -1, 1}, {5, 1, 16}};
  std::vector<int32_t> positions, sequences;
  for (const Run& run : runs) {
    for (int32_t i = 0; i < run.count; ++i) {
      positions.push_back(run.first + i);
      sequences.push_back(run.sequence);
    }
  }
  for (const HeadShape& heads : {HeadShape{32, 4, 128}, HeadShape{9, 3, 64}, HeadShape{4, 4, 64}}) {
    const AttentionDivision division = DivideRows(positions, sequences, heads);
    std::vector<int> seen(positions.size());
    for (const AttentionTile& tile : division.tiles) {
      EXPECT_GE(tile.num_rows, 4);
      EXPECT_LE(tile.num_rows * heads.group(), kTileQueries);
      for (int32_t i = 0; i < tile.num_rows; ++i) {
        const int32_t t = tile.first_row + i;
        ++seen[t];
        EXPECT_EQ(positions[t], positions[tile.first_row] + i);
        EXPECT_EQ(sequences[t], sequences[tile.first_row]);
      }
    }
    for (const int32_t t : division.lone_rows) ++seen[t];
    for (size_t t = 0; t < seen.size(); ++t) EXPECT_EQ(seen[t], positions[t] >= 0) << t;
    EXPECT_EQ(division.lone_rows.size(), 5u);
  }
  const AttentionDivision division = DivideRows(positions, sequences, {32, 4, 128});
  ASSERT_EQ(division.tiles.size(), 6u);  // 16, 16 and 8 rows; 8; 5; 16
  EXPECT_EQ(division.tiles[2].first_row, 32);
  EXPECT_EQ(division.tiles[2].num_rows, 8);
  EXPECT_TRUE(DivideRows({}, {}, {32, 4, 128}).tiles.empty());
}

TEST(AttentionPlan, NeverMoreItemsThanCounters) {
  DeviceLimits huge = RubinLimits();
  huge.num_sms = 100000;
  for (const int64_t rows : {1, 100, 256, 257, 5000}) {
    const AttentionPlan plan = PlanAttention({32, 4, 128}, rows, 5000, huge);
    EXPECT_EQ(plan.split, rows * 4 <= kAttentionCounters) << rows;
  }
}

}  // namespace
}  // namespace orrery::kernels::cuda
