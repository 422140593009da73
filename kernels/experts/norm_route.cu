// A cluster of eight thread blocks takes up to four rows from the residual stream to their lists.
// Every block takes the norms of all rows of its cluster, by AddRmsNorm's arithmetic: reading them
// again costs less than passing them on. It multiplies them by its tiles of 16 experts and sends
// each row's logits to the block that owns the row, whose first warp chooses.
//
//   block          0        1   ..   7
//   weights        tile 0   1        7       under way while the predecessor ends
//   norm           all rows of the cluster
//   product        16 experts x 8 rows       mma.m16n8k16 over ascending k, as the streaming
//                                            product; the upper rows repeat the lower ones
//   logits         of row c to block c       st.async
//   choice         row 0    1   ..   3
//
// x may be overwritten with the sum: each block writes its own row, after all have read.
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/oversized_memory.h"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/experts/norm_route_cuda.h"
#include "kernels/experts/route_row.cuh"
#include "kernels/rms_norm/rms_norm_rows.cuh"

namespace orrery::kernels::cuda {
namespace {

constexpr int kVector = kVectorSize<BFloat16>;
constexpr int kMaxWarps = kMaxNormRouteWidth / kVector / 32, kMinWarps = 8;
constexpr int kTileExperts = 16;
constexpr int kMaxTiles = kMaxExperts / kTileExperts / kNormRouteBlocks;  // of a block
static_assert(kMaxTiles <= kMinWarps, "a warp has at most one tile");

struct NormRouteParams {
  Matrix<const BFloat16> x, delta, router;
  Matrix<BFloat16> sum, out;
  const BFloat16* norm = nullptr;
  float eps = 0;
  int d = 0;
  bool splits = false;  // the sums over d
  RouteParams route;

  // Of a row in shared memory: 16 bytes of padding, so that ldmatrix meets every bank once.
  __device__ int row_bytes() const { return 2 * d + 16; }
};

struct Shared {
  float squares[kMaxNormRouteClusterRows][kMaxWarps];  // of rows, by warp
  float parts[kMaxWarps][4][32];                       // sums of each warp's part of d
  float logits[kMaxExperts];                           // of the row that this block owns
  alignas(8) uint64_t logits_there;                    // counts their bytes
};
static_assert(sizeof(Shared) <= kNormRouteStaticBytes);

__device__ __forceinline__ int Lane() { return static_cast<int>(threadIdx.x) % 32; }
__device__ __forceinline__ int Warp() { return static_cast<int>(threadIdx.x) / 32; }
__device__ __forceinline__ int Warps() { return static_cast<int>(blockDim.x) / 32; }

// Tiles of 16 experts are dealt to blocks in turns.
__device__ __forceinline__ int NumTiles(int num_experts, int rank) {
  const int tiles = (num_experts + kTileExperts - 1) / kTileExperts;
  return tiles > rank ? (tiles - rank - 1) / kNormRouteBlocks + 1 : 0;
}
__device__ __forceinline__ int FirstExpert(int tile, int rank) {
  return kTileExperts * (rank + kNormRouteBlocks * tile);
}

// A warp a row. Rows past the last expert are not written: their sums go nowhere.
__device__ __forceinline__ void CopyRouter(const NormRouteParams& p, int rank, int tiles,
                                           char* weights) {
  for (int row = Warp(); row < kTileExperts * tiles; row += Warps()) {
    const int expert = FirstExpert(row / kTileExperts, rank) + row % kTileExperts;
    if (expert >= p.route.num_experts) break;
    const BFloat16* from = p.router.Row(expert);
    char* to = weights + row * p.row_bytes();
    for (int i = kVector * Lane(); i < p.d; i += kVector * 32) AsyncCopy16(to + 2 * i, from + i);
  }
}

// Sums over the warp of each of kRows values; the lane gets that of value lane / (32 / kRows).
// Every addition is one of WarpSum's: so are the bits.
template <int kRows>
__device__ __forceinline__ float WarpSums(float (&x)[kRows]) {
  int step = 16;
#pragma unroll
  for (int n = kRows / 2; n > 0; n /= 2) {
    const bool upper = Lane() & step;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float other = __shfl_xor_sync(~0u, upper ? x[i] : x[i + n], step);
      x[i] = (upper ? x[i + n] : x[i]) + other;
    }
    step /= 2;
  }
  float sum = x[0];
#pragma unroll
  for (; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum;
}

// 1 / root mean square of the rows, the lane's that of row lane / (32 / kRows). Contains a barrier.
template <int kRows>
__device__ __forceinline__ float InverseRmsOfRows(const NormRouteParams& p, float (&squares)[kRows],
                                                  Shared* shared) {
  constexpr int kLanes = 32 / kRows;
  const float of_warp = WarpSums(squares);
  if (Lane() % kLanes == 0) shared->squares[Lane() / kLanes][Warp()] = of_warp;
  __syncthreads();
  float parts[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) parts[r] = Lane() < Warps() ? shared->squares[r][Lane()] : 0;
  return InverseRms(WarpSums(parts), static_cast<float>(p.d), p.eps);
}

// Sums of 16 experts x 8 rows over steps [step, end) of 16 columns. Rows repeat from kRows on.
template <int kRows>
struct TileProduct {
  static constexpr int kAhead = 4;  // steps whose operands are loaded together; even
  struct Operands {
    uint32_t a[kAhead][4], b[kAhead / 2][4];
  };
  const char *a, *b;  // of this lane's rows

  __device__ TileProduct(const char* weights, const char* rows, int row_bytes)
      : a(weights + Lane() % 16 * row_bytes + Lane() / 16 * 16),
        b(rows + Lane() % kRows * row_bytes + Lane() / 8 * 16) {}

  __device__ void Load(int step, Operands* to) const {
#pragma unroll
    for (int s = 0; s < kAhead; ++s) LoadMatrix4(to->a[s], a + 32 * (step + s));
#pragma unroll
    for (int s = 0; s < kAhead / 2; ++s) LoadMatrix4(to->b[s], b + 32 * (step + 2 * s));
  }
  __device__ static void Multiply(const Operands& of, float (&sums)[4]) {
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      Mma16816(sums, of.a[s], of.b[s / 2][s % 2 * 2], of.b[s / 2][s % 2 * 2 + 1]);
    }
  }
  __device__ void Run(int step, int end, float (&sums)[4]) const {
    if (end - step >= kAhead) {
      Operands now, next;
      Load(step, &now);
      step += kAhead;
#pragma unroll 2
      for (; step + kAhead <= end; step += kAhead) {
        Load(step, &next);
        Multiply(now, sums);
        now = next;
      }
      Multiply(now, sums);
    }
    for (; step < end; ++step) {
      uint32_t weights[4], rows[2];
      LoadMatrix4(weights, a + 32 * step);
      LoadMatrix2(rows, b + 32 * step);
      Mma16816(sums, weights, rows[0], rows[1]);
    }
  }
};

// The sums of this block's tiles, in shared->parts: tile t's in those of warps t * parts ...
// Contains a barrier. Returns the parts of a tile.
template <int kRows>
__device__ __forceinline__ int Multiply(const NormRouteParams& p, const char* weights,
                                        const char* rows, int tiles, Shared* shared) {
  const int parts = p.splits && tiles > 0 ? Warps() / tiles : 1;
  const int tile = Warp() / parts, part = Warp() % parts, steps = p.d / 16;
  if (tile < tiles) {
    float sums[4] = {};
    TileProduct<kRows>(weights + kTileExperts * tile * p.row_bytes(), rows, p.row_bytes())
        .Run(steps * part / parts, steps * (part + 1) / parts, sums);
#pragma unroll
    for (int v = 0; v < 4; ++v) shared->parts[Warp()][v][Lane()] = sums[v];
  }
  __syncthreads();
  return parts;
}

// Each row's logits to the block that owns it. num_rows: of the cluster.
__device__ __forceinline__ void SendLogits(const NormRouteParams& p, int rank, int tiles, int parts,
                                           int num_rows, Shared* shared) {
  for (int i = static_cast<int>(threadIdx.x); i < 128 * tiles; i += static_cast<int>(blockDim.x)) {
    const int tile = i / 128, v = i / 32 % 4, lane = Lane();
    const int expert = FirstExpert(tile, rank) + lane / 4 + v / 2 * 8;  // Mma16816
    const int row = lane % 4 * 2 + v % 2;
    if (row >= num_rows || expert >= p.route.num_experts) continue;
    float sum = shared->parts[tile * parts][v][lane];
    for (int part = 1; part < parts; ++part) sum += shared->parts[tile * parts + part][v][lane];
    SendFloat(AddressAt(SharedAddress(&shared->logits[expert]), row), sum,
              AddressAt(SharedAddress(&shared->logits_there), row));
  }
}

// By one warp.
__device__ __forceinline__ void Choose(const RouteParams& p, int64_t t, int32_t position,
                                       const float* logits) {
  const int expert = p.num_experts <= 128 ? RouteRow<4>(p, t, position, logits)
                                          : RouteRow<16>(p, t, position, logits);
  if (expert < 0) return;
  const int64_t slot = t * p.top_k + Lane();
  if (p.rows == 1 && p.replay.experts.ids == nullptr) {  // its experts differ: nobody else counts
    p.routing.counts[expert] = 1;
    return PutInList(p.routing, expert, 0, slot);
  }
  PutInList(p.routing, expert, atomicAdd(p.routing.counts + expert, 1), slot);
}

template <int kRows>
__global__ void __cluster_dims__(kNormRouteBlocks, 1, 1) __launch_bounds__(32 * kMaxWarps)
    NormRouteKernel(const __grid_constant__ NormRouteParams p) {
  extern __shared__ __align__(128) char dynamic[];
  __shared__ Shared shared;
  LetSuccessorStart();
  const int rank = ClusterRank();
  const int64_t first = static_cast<int64_t>(blockIdx.x / kNormRouteBlocks) * kRows;
  const int num_rows = static_cast<int>(min(int64_t{kRows}, p.route.rows - first));
  const bool owns = rank < num_rows;  // row first + rank
  const int tiles = NumTiles(p.route.num_experts, rank);
  char* weights = dynamic;
  char* rows = dynamic + kTileExperts * tiles * p.row_bytes();
  CopyRouter(p, rank, tiles, weights);
  if (threadIdx.x == 0) {
    BarrierInit(&shared.logits_there, 1);
    BarrierInitFence();
    BarrierArriveExpect(&shared.logits_there, 4 * static_cast<uint32_t>(p.route.num_experts));
  }
  const int column = kVector * static_cast<int>(threadIdx.x);
  const bool has_column = column < p.d;
  const uint4 w = LoadUpTo(p.norm + column, p.d - column, true);

  WaitForPredecessor();
  const int32_t position = owns ? p.route.positions[first + rank] : -1;
  uint4 x[kRows], delta[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int left = r < num_rows ? p.d - column : 0;
    x[r] = LoadUpTo(p.x.Row(first + r) + column, left, true);
    delta[r] = LoadUpTo(p.delta.Row(first + r) + column, left, true);
  }
  float squares[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float a[kVector], b[kVector];
    Unpack<BFloat16>(x[r], a);
    Unpack<BFloat16>(delta[r], b);
    AddDelta<BFloat16>(b, a);
    x[r] = Pack<BFloat16>(a);
    squares[r] = AddSquares(a, 0);
  }
  const float inverse = InverseRmsOfRows<kRows>(p, squares, &shared);
  uint4 own_sum = {}, own_norm = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float a[kVector];
    Unpack<BFloat16>(x[r], a);
    const uint4 normed = NormedVector<BFloat16>(a, __shfl_sync(~0u, inverse, 32 / kRows * r), w);
    if (has_column) *reinterpret_cast<uint4*>(rows + r * p.row_bytes() + 2 * column) = normed;
    if (r == rank) own_sum = x[r], own_norm = normed;
  }
  ClusterArrive();  // this thread has read its columns of all rows
  WaitForOwnCopies();
  __syncthreads();
  if (owns && has_column) {
    *reinterpret_cast<uint4*>(p.out.Row(first + rank) + column) = own_norm;
  }
  const int parts = Multiply<kRows>(p, weights, rows, tiles, &shared);
  ClusterWait();
  SendLogits(p, rank, tiles, parts, num_rows, &shared);
  if (!owns) return;
  if (has_column) *reinterpret_cast<uint4*>(p.sum.Row(first + rank) + column) = own_sum;
  if (Warp() > 0) return;
  BarrierWaitCluster(&shared.logits_there, 0);
  Choose(p.route, first + rank, position, shared.logits);
}

template <int kRows>
void Run(const NormRouteParams& p, const NormRoutePlan& plan, const DeviceLimits& limits,
         cudaStream_t stream) {
  static const bool allowed = [&] {
    const auto kernel = NormRouteKernel<kRows>;
    AllowSharedBytes(
        kernel, static_cast<size_t>(limits.shared_bytes_per_block - StaticSharedBytes(kernel)));
    return true;
  }();
  CHECK(allowed);
  const int64_t warps = std::max<int64_t>(DivideUp(p.d, 32 * kVector), kMinWarps);
  Launch(NormRouteKernel<kRows>,
         static_cast<unsigned>(kNormRouteBlocks * DivideUp(p.route.rows, kRows)),
         static_cast<unsigned>(32 * warps), static_cast<size_t>(plan.shared_bytes), stream, p);
}

}  // namespace

void NormRoute(const NormRouteArgs& args, const DeviceLimits& limits, cudaStream_t stream,
               Numerics numerics) {
  const TensorView& x = args.x;
  if (x.rows == 0) return;
  const NormRoutePlan plan = PlanNormRoute(x.dtype, x.rows, x.cols, args.shape.num_experts, limits);
  CHECK(plan);
  for (const TensorView* view : {&x, &args.delta, &args.sum, &args.out}) {
    CHECK(view->dtype == x.dtype && view->rows == x.rows && view->cols == x.cols);
    CHECK(VectorAligned(*view));
  }
  CHECK(args.norm.dtype == x.dtype && args.norm.cols == x.cols && VectorAligned(args.norm));
  CHECK(args.router.dtype == x.dtype && args.router.cols == x.cols && VectorAligned(args.router));
  CHECK_EQ(args.router.rows, args.shape.num_experts);
  NormRouteParams p;
  p.x = AsMatrix<const BFloat16>(x);
  p.delta = AsMatrix<const BFloat16>(args.delta);
  p.router = AsMatrix<const BFloat16>(args.router);
  p.sum = AsMatrix<BFloat16>(args.sum);
  p.out = AsMatrix<BFloat16>(args.out);
  p.norm = static_cast<const BFloat16*>(args.norm.data);
  p.eps = args.eps;
  p.d = static_cast<int>(x.cols);
  p.splits = numerics == Numerics::kFast;
  p.route = MakeRouteParams(x.rows, args.shape, args.positions, args.replay, args.routing);
  switch (plan.rows) {
    case 1:
      return Run<1>(p, plan, limits, stream);
    case 2:
      return Run<2>(p, plan, limits, stream);
    default:
      return Run<kMaxNormRouteClusterRows>(p, plan, limits, stream);
  }
}

}  // namespace orrery::kernels::cuda
