// The gradient of attention from the caller's views: where lists and workspace lie, and which
// kernels run.
#include "kernels/attention/attention_grad_cuda.h"
#include "kernels/attention/attention_grad_parts.cuh"

namespace orrery::kernels::cuda {
namespace {

template <typename T>
AttentionGradParams<T> MakeParams(const TensorView& dout, const TensorView& qkv,
                                  const TensorView& out, const HeadShape& heads, float scale,
                                  const AttentionGradPlan& plan, const int32_t* words,
                                  void* workspace, const TensorView& dqkv) {
  AttentionGradParams<T> p;
  p.qkv = AsMatrix<const T>(qkv);
  p.dout = AsMatrix<const T>(dout);
  p.out = AsMatrix<const T>(out);
  p.dqkv = AsMatrix<T>(dqkv);
  p.query_tiles = reinterpret_cast<const QueryTile*>(words);
  p.key_tiles = reinterpret_cast<const KeyTile*>(p.query_tiles + plan.query_tiles.size());
  p.runs = reinterpret_cast<const QueryRun*>(p.key_tiles + plan.key_tiles.size());
  p.sums = reinterpret_cast<const KeySum*>(p.runs + plan.runs.size());
  p.num_kv_heads = static_cast<int>(heads.num_kv_heads);
  p.head_dim = static_cast<int>(heads.head_dim);
  p.group = MakeGroupSize(heads.group());
  p.scale = scale;
  p.stride = plan.num_rows * heads.group();
  p.log_sums = static_cast<float*>(workspace);
  p.deltas = p.log_sums + p.stride * heads.num_kv_heads;
  p.partials = p.log_sums + (2 * p.stride * heads.num_kv_heads + 3) / 4 * 4;
  return p;
}

}  // namespace

void AttentionGrad(const TensorView& dout, const TensorView& qkv, const TensorView& out,
                   const HeadShape& heads, float scale, const AttentionGradPlan& plan,
                   const int32_t* words, void* workspace, const TensorView& dqkv,
                   cudaStream_t stream) {
  CHECK(qkv.cols == heads.qkv_width() && dqkv.cols == heads.qkv_width());
  CHECK(dout.cols == heads.q_width() && out.cols == heads.q_width());
  CHECK(dout.dtype == qkv.dtype && out.dtype == qkv.dtype && dqkv.dtype == qkv.dtype);
  CHECK_LE(plan.num_rows, qkv.rows);
  CHECK_LT(plan.num_rows * heads.group(), int64_t{1} << 28);
  if (plan.query_tiles.empty()) return;
  const auto params = [&](auto tag) {
    return MakeParams<decltype(tag)>(dout, qkv, out, heads, scale, plan, words, workspace, dqkv);
  };
  if (!plan.tensor_cores) {
    ForDType(qkv.dtype, [&](auto tag) { AttentionGradSimple(params(tag), plan, stream); });
    return;
  }
  for (const TensorView& view : {dout, qkv, out, dqkv}) CHECK(VectorAligned(view));
  AttentionGradByWarpgroups(params(BFloat16{}), plan, stream);
}

}  // namespace orrery::kernels::cuda
