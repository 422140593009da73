// What the two tensor-core products share: the list of tiles that a persistent thread block works
// through, which operands they take, and how sums are gated and stored.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ring_position.cuh"
#include "kernels/swiglu/gated_product.cuh"
#include "kernels/tensor_view.h"

namespace orrery::kernels::cuda {

using bf16 = __nv_bfloat16;

// The tiles of one thread block, or of a cluster of kBlocks that share them: every so manieth of
// the problem's. The first kTable are found by as many threads at once, so that nobody searches
// between two tiles. Lives in shared memory.
template <typename Problem, int kBlocks = 1, int kTable = 32>
struct TileList {
  typename Problem::Tile table[kTable];
  typename Problem::Shared shared;

  // By all threads of the block; contains barriers.
  __device__ int Make(const Problem& problem) {
    problem.Prepare(&shared, static_cast<int>(threadIdx.x) / 32,
                    static_cast<int>(threadIdx.x) % 32);
    __syncthreads();
    const int num_tiles = problem.NumTiles(shared);
    const int first = static_cast<int>(blockIdx.x / kBlocks);
    const int step = static_cast<int>(gridDim.x / kBlocks);
    const int num_mine = first < num_tiles ? (num_tiles - first + step - 1) / step : 0;
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < kTable && thread < num_mine) {
      table[thread] = problem.GetTile(shared, first + thread * step);
    }
    __syncthreads();
    return num_mine;
  }
  __device__ typename Problem::Tile At(const Problem& problem, int i) const {
    if (i < kTable) return table[i];
    return problem.GetTile(shared,
                           static_cast<int>(blockIdx.x / kBlocks + i * (gridDim.x / kBlocks)));
  }
};

// Whether operands are what the copies and the paired stores of these products need.
inline bool FitsTensorCores(const TensorView& x, const TensorView& w, const TensorView& out) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return x.dtype == DType::kBFloat16 && w.dtype == DType::kBFloat16 && x.cols % 16 == 0 &&
         x.row_stride % 8 == 0 && w.row_stride % 8 == 0 && out.cols % 2 == 0 &&
         out.row_stride % 2 == 0 && aligned(x.data) && aligned(w.data) && aligned(out.data);
}

// Stores a fragment of 16 outputs x 8 rows. Lane 4 g + t holds outputs g (values 0, 1) and g + 8
// (2, 3) of rows 2 t and 2 t + 1; a swap between neighbouring g gives every lane two neighbouring
// outputs of one row.
template <typename Problem>
__device__ __forceinline__ void StoreFragment(const Problem& problem,
                                              const typename Problem::Tile& tile, int output,
                                              int row, const float (&v)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, odd = g & 1;
  const int c = row + 2 * (lane % 4) + odd;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float v0 = v[2 * half], v1 = v[2 * half + 1];
    const float other = __shfl_xor_sync(0xffffffffu, odd ? v0 : v1, 4);
    const float2 pair = odd ? make_float2(other, v1) : make_float2(v0, other);
    if (c < tile.num_rows) problem.Store(tile, output + (g & ~1) + 8 * half, c, pair);
  }
}

}  // namespace orrery::kernels::cuda
