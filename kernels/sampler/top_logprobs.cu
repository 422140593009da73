// Keys of 8 bytes order logits, and equal ones by id: the largest key is the most likely token,
// ties to the lower id.
#include "kernels/cuda/launch.cuh"
#include "kernels/sampler/draw.cuh"
#include "kernels/sampler/top_logprobs_cuda.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int kOwn = kPieceSize / 32;

__device__ __forceinline__ uint64_t KeyOf(uint32_t sort_key, int id) {
  return uint64_t{sort_key} << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}

__device__ __forceinline__ int IdOf(uint64_t key) {
  return static_cast<int>(0xffffffffu - static_cast<uint32_t>(key));
}

// A warp a piece: its n largest, largest first; 0 where it has fewer.
template <typename T>
__global__ void TopOfPieceKernel(Matrix<const T> logits, int vocabulary, int num_pieces, int n,
                                 bool aligned, const SamplerRow* rows, uint64_t* keys) {
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t row = blockIdx.y;
  const int piece = static_cast<int>(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);
  if (piece >= num_pieces || rows[row].active == 0) return;
  const int lane = threadIdx.x % 32, first = piece * kPieceSize;
  const int valid = min(vocabulary - first, kPieceSize);
  float x[kOwn];
  LoadLaneOfPiece(logits.Row(row) + first, valid, aligned, x);
  uint32_t own[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) own[i] = lane * kOwn + i < valid ? SortKey(x[i]) : 0;
  uint64_t* to = keys + (row * num_pieces + piece) * n;
  for (int k = 0; k < n; ++k) {
    uint32_t largest = 0;
    int at = 0;
#pragma unroll
    for (int i = kOwn - 1; i >= 0; --i) {
      if (own[i] >= largest) largest = own[i], at = i;
    }
    const uint32_t top = __reduce_max_sync(~0u, largest);
    // Ids ascend over lanes: the first lane that has it has the lowest.
    const int owner = __ffs(__ballot_sync(~0u, largest == top)) - 1;
    if (lane == owner) {
      to[k] = top == 0 ? 0 : KeyOf(top, first + lane * kOwn + at);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        if (i == at) own[i] = 0;
      }
    }
  }
}

__device__ __forceinline__ uint64_t WarpMaxKey(uint64_t key) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const uint64_t other = __shfl_xor_sync(~0u, key, step);
    key = other > key ? other : key;
  }
  return key;
}

// A warp a row: lane l has the lists of pieces l, l + 32, ..., and which key of each comes next.
template <typename T>
__global__ void MergePiecesKernel(Matrix<const T> logits, int64_t num_rows, int num_pieces, int n,
                                  const SamplerRow* rows, const RowStats* stats,
                                  const uint64_t* keys, TopLogprob* out) {
  LetSuccessorStart();
  WaitForPredecessor();
  constexpr int kLists = kMaxPieces / 32;
  const int64_t r = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
  if (r >= num_rows || rows[r].active == 0 || stats[r].finite == 0) return;
  const int lane = threadIdx.x % 32;
  const float inverse = TemperingOf(rows[r].temperature).inverse;
  const uint64_t* lists = keys + r * num_pieces * n;
  uint64_t heads[kLists];
  int next[kLists];
#pragma unroll
  for (int i = 0; i < kLists; ++i) {
    const int piece = lane + 32 * i;
    heads[i] = piece < num_pieces ? lists[int64_t{piece} * n] : 0;
    next[i] = 1;
  }
  for (int k = 0; k < n; ++k) {
    uint64_t largest = 0;
#pragma unroll
    for (int i = 0; i < kLists; ++i) largest = heads[i] > largest ? heads[i] : largest;
    const uint64_t top = WarpMaxKey(largest);
#pragma unroll
    for (int i = 0; i < kLists; ++i) {
      if (heads[i] != top || top == 0) continue;  // keys are distinct
      heads[i] = next[i] < n ? lists[int64_t{lane + 32 * i} * n + next[i]] : 0;
      ++next[i];
    }
    if (lane == 0) {
      const int id = IdOf(top);
      out[r * n + k] = {id, stats[r].Logprob(ToFloat(logits.Row(r)[id]), inverse)};
    }
  }
}

}  // namespace

void TopLogprobs(const TensorView& logits, const SamplerRow* rows, const void* sampler_workspace,
                 const TopLogprobsPlan& plan, void* workspace, TopLogprob* out,
                 cudaStream_t stream) {
  CHECK_EQ(plan.rows, logits.rows);
  CHECK_EQ(plan.num_pieces, DivideUp(logits.cols, kPieceSize));
  if (logits.rows == 0) return;
  const int vocabulary = static_cast<int>(logits.cols), n = static_cast<int>(plan.n);
  const int num_pieces = static_cast<int>(plan.num_pieces);
  const auto* stats = static_cast<const RowStats*>(sampler_workspace);
  auto* keys = static_cast<uint64_t*>(workspace);
  ForDType(logits.dtype, [&](auto tag) {
    using T = decltype(tag);
    const Matrix<const T> matrix = AsMatrix<const T>(logits);
    const dim3 grid(static_cast<unsigned>(plan.piece_blocks), static_cast<unsigned>(plan.rows));
    Launch(TopOfPieceKernel<T>, grid, static_cast<unsigned>(32 * plan.piece_warps), 0, stream,
           matrix, vocabulary, num_pieces, n, VectorAligned(logits), rows, keys);
    Launch(MergePiecesKernel<T>, static_cast<unsigned>(plan.row_blocks),
           static_cast<unsigned>(32 * plan.row_warps), 0, stream, matrix, logits.rows, num_pieces,
           n, rows, stats, keys, out);
  });
}

}  // namespace orrery::kernels::cuda
