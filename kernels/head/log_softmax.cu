// One thread block a row of logits.
#include "kernels/cuda/launch.cuh"
#include "kernels/head/log_softmax_cuda.h"
#include "kernels/head/row_statistics.cuh"

namespace orrery::kernels::cuda {
namespace {

constexpr int kWarps = 16;

template <typename T>
__global__ void __launch_bounds__(32 * kWarps)
    ScoreTargetsKernel(Matrix<const T> logits, int64_t vocabulary, const int32_t* targets,
                       float temperature, TargetScores scores, bool aligned) {
  __shared__ PieceStats pieces[kMaxPieces];
  LetSuccessorStart();
  WaitForPredecessor();
  const T* row = logits.Row(blockIdx.x);
  const Tempering tempering = TemperingOf(temperature);
  const int num_pieces = static_cast<int>((vocabulary + kPieceSize - 1) / kPieceSize);
  for (int piece = threadIdx.x / 32; piece < num_pieces; piece += kWarps) {
    const int64_t from = int64_t{piece} * kPieceSize;
    const int valid = static_cast<int>(min(int64_t{kPieceSize}, vocabulary - from));
    const PieceStats stats = StatsOfPiece(row + from, valid, aligned, tempering.scale);
    if (threadIdx.x % 32 == 0) pieces[piece] = stats;
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const FoldedRow folded = FoldPieces(pieces, num_pieces, tempering.scale);
  if (threadIdx.x != 0) return;
  const int64_t t = blockIdx.x;
  const RowStats& stats = folded.stats;
  scores.logprobs[t] = stats.Logprob(ToFloat(row[targets[t]]), tempering.inverse);
  scores.entropies[t] = stats.entropy;
  scores.maxima[t] = stats.max;
  scores.log_sums[t] = stats.log_sum;
  scores.finite[t] = stats.finite;
}

template <typename T>
__global__ void __launch_bounds__(32 * kWarps)
    LogSoftmaxGradKernel(Matrix<T> logits, int64_t vocabulary, const int32_t* targets,
                         float temperature, TargetScores scores, const float* dlogprobs,
                         const float* dentropies, bool aligned) {
  constexpr int kN = kVectorSize<T>;
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t t = blockIdx.x;
  T* row = logits.Row(t);
  const float inverse = TemperingOf(temperature).inverse;
  const float max = scores.maxima[t], log_sum = scores.log_sums[t], entropy = scores.entropies[t];
  const float dlogprob = dlogprobs[t], dentropy = dentropies[t];
  const int64_t target = targets[t];
  for (int64_t i = int64_t{threadIdx.x} * kN; i < vocabulary; i += 32 * kWarps * kN) {
    float z[kN];
    Unpack<T>(LoadUpTo(row + i, vocabulary - i, aligned), z);
#pragma unroll
    for (int e = 0; e < kN; ++e) {
      const float logprob = (z[e] - max) * inverse - log_sum;
      const float p = __expf(logprob);
      const float hit = i + e == target ? 1.0f : 0.0f;
      z[e] = (dlogprob * (hit - p) - dentropy * p * (logprob + entropy)) * inverse;
    }
    StoreUpTo(Pack<T>(z), row + i, vocabulary - i, aligned);
  }
}

}  // namespace

void ScoreTargets(const TensorView& logits, const int32_t* targets, float temperature,
                  const TargetScores& scores, cudaStream_t stream) {
  CHECK(logits.cols > 0 && logits.cols <= kMaxVocabulary) << logits.cols;
  if (logits.rows == 0) return;
  ForDType(logits.dtype, [&](auto tag) {
    using T = decltype(tag);
    Launch(ScoreTargetsKernel<T>, static_cast<unsigned>(logits.rows), 32 * kWarps, 0, stream,
           AsMatrix<const T>(logits), logits.cols, targets, temperature, scores,
           VectorAligned(logits));
  });
}

void LogSoftmaxGrad(const TensorView& logits, const int32_t* targets, float temperature,
                    const TargetScores& scores, const float* dlogprobs, const float* dentropies,
                    cudaStream_t stream) {
  if (logits.rows == 0) return;
  ForDType(logits.dtype, [&](auto tag) {
    using T = decltype(tag);
    Launch(LogSoftmaxGradKernel<T>, static_cast<unsigned>(logits.rows), 32 * kWarps, 0, stream,
           AsMatrix<T>(logits), logits.cols, targets, temperature, scores, dlogprobs, dentropies,
           VectorAligned(logits));
  });
}

}  // namespace orrery::kernels::cuda
