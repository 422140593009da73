// Three kernels: a warp a piece takes the statistics of all rows; a warp a row folds them, and
// draws for rows without filters, penalties and bans; a block a row draws for the others
// (sampler_filter.cu).
#include "kernels/cuda/launch.cuh"
#include "kernels/sampler/draw.cuh"
#include "kernels/sampler/sampler_filter.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int kPieceWarps = 8;
constexpr int kRowWarps = 4;

template <typename T>
__global__ void __launch_bounds__(32 * kPieceWarps, 4)
    PieceStatsKernel(Matrix<const T> logits, int vocabulary, int num_pieces, bool aligned,
                     const SamplerRow* rows, PieceStats* pieces) {
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t row = blockIdx.y;
  const int piece = blockIdx.x * kPieceWarps + threadIdx.x / 32;
  if (piece >= num_pieces || rows[row].active == 0) return;
  const Tempering tempering = TemperingOf(rows[row].temperature);
  const int first = piece * kPieceSize;
  const T* from = logits.Row(row) + first;
  // Two calls, so that whole pieces carry no checks.
  const PieceStats stats = vocabulary - first >= kPieceSize
                               ? StatsOfPiece(from, kPieceSize, aligned, tempering.scale)
                               : StatsOfPiece(from, vocabulary - first, aligned, tempering.scale);
  if (threadIdx.x % 32 == 0) pieces[row * num_pieces + piece] = stats;
}

// The lowest id whose logit is the row's maximum.
template <typename T>
__device__ __forceinline__ int FirstLargest(const T* row, int vocabulary, bool aligned,
                                            const FoldedRow& folded) {
  const int lane = threadIdx.x % 32;
  int piece = kMaxPieces;
#pragma unroll
  for (int i = FoldedRow::kPerLane - 1; i >= 0; --i) {
    const bool own = i < folded.per_lane && folded.maxima[i] == folded.stats.max;
    if (own) piece = lane * folded.per_lane + i;
  }
  piece = __reduce_min_sync(~0u, piece);
  const int first = piece * kPieceSize;
  float x[kPieceSize / 32];
  LoadLaneOfPiece(row + first, min(vocabulary - first, kPieceSize), aligned, x);
  int id = vocabulary;
#pragma unroll
  for (int i = kPieceSize / 32 - 1; i >= 0; --i) {
    const int candidate = first + lane * (kPieceSize / 32) + i;
    if (x[i] == folded.stats.max && candidate < vocabulary) id = candidate;
  }
  return __reduce_min_sync(~0u, id);
}

template <typename T>
__device__ __forceinline__ int DrawPlain(const T* row, int vocabulary, bool aligned, double uniform,
                                         float scale, const FoldedRow& folded) {
  Place place;
  {
    // Registers cannot be indexed: the pieces in order by selection.
    const auto weight = [&](int i) {
      double sum = 0;
#pragma unroll
      for (int j = 0; j < FoldedRow::kPerLane; ++j) {
        if (j == i) sum = folded.sums[j];
      }
      return sum;
    };
    place = FindPlace(folded.per_lane, uniform * folded.total, weight);
  }
  if (place.index < 0) return 0;
  const int first = place.index * kPieceSize, valid = min(vocabulary - first, kPieceSize);
  // Powers relative to the row's maximum: what is 0 beside it is never drawn.
  const float top = folded.stats.max;
  const int index = DrawInPiece(row + first, valid, aligned, place.fraction,
                                [&](int, float x) { return Exp2((x - top) * scale); });
  return first + max(index, 0);
}

template <typename T>
__global__ void __launch_bounds__(32 * kRowWarps)
    DrawKernel(Matrix<const T> logits, int64_t num_rows, int vocabulary, int num_pieces,
               bool aligned, const SamplerRow* rows, const PieceStats* pieces, RowStats* stats,
               SamplerOutput out) {
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t r = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / 32;
  if (r >= num_rows || rows[r].active == 0) return;
  const SamplerRow row = rows[r];
  const Tempering tempering = TemperingOf(row.temperature);
  const FoldedRow folded = FoldPieces(pieces + r * num_pieces, num_pieces, tempering.scale);
  const bool leader = threadIdx.x % 32 == 0, finite = folded.stats.finite != 0;
  if (leader) {
    stats[r] = folded.stats;
    out.entropies[r] = finite ? folded.stats.entropy : 0;
    out.finite[r] = folded.stats.finite;
  }
  if (finite && NeedsOwnPasses(row)) return;
  const T* from = logits.Row(r);
  int token = 0;
  if (finite) {
    token = row.temperature > 0
                ? DrawPlain(from, vocabulary, aligned, Uniform(row.seed, row.position),
                            tempering.scale, folded)
                : FirstLargest(from, vocabulary, aligned, folded);
  }
  if (leader) {
    out.token_ids[r] = token;
    out.logprobs[r] = finite ? folded.stats.Logprob(ToFloat(from[token]), tempering.inverse) : 0;
  }
}

int64_t NumPieces(int64_t vocabulary) { return DivideUp(vocabulary, kPieceSize); }

}  // namespace

int64_t SamplerWorkspaceBytes(int64_t n, int64_t vocabulary) {
  return n * static_cast<int64_t>(NumPieces(vocabulary) * sizeof(PieceStats) + sizeof(RowStats));
}

void SampleTokens(const TensorView& logits, const SamplerRow* rows, void* workspace,
                  const SamplerOutput& out, cudaStream_t stream) {
  CHECK(logits.cols > 0 && logits.cols <= kMaxVocabulary) << logits.cols;
  CHECK_LE(logits.rows, 65535);
  CHECK_EQ(reinterpret_cast<uintptr_t>(workspace) % 16, uintptr_t{0});
  if (logits.rows == 0) return;
  const int vocabulary = static_cast<int>(logits.cols);
  const int num_pieces = static_cast<int>(NumPieces(logits.cols));
  auto* stats = static_cast<RowStats*>(workspace);
  auto* pieces = reinterpret_cast<PieceStats*>(stats + logits.rows);
  // A partial vector at the end of a row is read one by one.
  const bool aligned = VectorAligned(logits);
  ForDType(logits.dtype, [&](auto tag) {
    using T = decltype(tag);
    const Matrix<const T> matrix = AsMatrix<const T>(logits);
    const dim3 grid(static_cast<unsigned>(DivideUp(num_pieces, kPieceWarps)),
                    static_cast<unsigned>(logits.rows));
    Launch(PieceStatsKernel<T>, grid, 32 * kPieceWarps, 0, stream, matrix, vocabulary, num_pieces,
           aligned, rows, pieces);
    Launch(DrawKernel<T>, static_cast<unsigned>(DivideUp(logits.rows, kRowWarps)), 32 * kRowWarps,
           0, stream, matrix, logits.rows, vocabulary, num_pieces, aligned, rows, pieces, stats,
           out);
  });
  SampleFilteredRows(logits, rows, stats, pieces, out, stream);
}

}  // namespace orrery::kernels::cuda
