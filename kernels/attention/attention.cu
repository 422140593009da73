// Which kernels take the rows of a batch: tiles of one sequence's rows (attention_warpgroups.cu,
// attention_tiles.cu) and rows alone (attention_rows.cu), or all rows where only
// attention_simple.cu fits.
#include "kernels/attention/attention_kernels.cuh"
#include "kernels/attention/attention_simple.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/exp2.cuh"

namespace orrery::kernels::cuda {

void Attention(const TensorView& qkv, const HeadShape& heads, float scale,
               const AttentionRows& rows, const KvBlocks& kv, const AttentionPlan& plan,
               void* workspace, const TensorView& out, cudaStream_t stream) {
  CHECK(qkv.dtype == kv.dtype && out.dtype == kv.dtype && out.cols == heads.q_width());
  if (qkv.rows == 0) return;
  const bool fits = kv.dtype == DType::kBFloat16 && heads.group() <= kMaxGroup &&
                    (heads.head_dim == 128 || heads.head_dim == 64) && qkv.row_stride % 2 == 0 &&
                    out.row_stride % 2 == 0 && scale > 0;
  CHECK(fits || kv.format == KvFormat::kModel) << "float8 keys and values";
  if (!fits) return AttentionSimple(qkv, heads, scale, rows, kv, out, stream);
  AttentionParams params = {};
  params.queries = static_cast<const __nv_bfloat16*>(qkv.data);
  params.query_stride = qkv.row_stride;
  params.k = static_cast<const char*>(kv.k);
  params.v = static_cast<const char*>(kv.v);
  params.num_kv_heads = static_cast<int>(heads.num_kv_heads);
  params.group = static_cast<int>(heads.group());
  params.scale_log2 = scale * kLog2E;
  params.rows = rows;
  params.out = static_cast<__nv_bfloat16*>(out.data);
  params.out_stride = out.row_stride;
  if (rows.num_tiles > 0 && plan.warpgroup_blocks > 0) {
    AttentionByWarpgroups(params, heads.head_dim, kv.format, plan.warpgroup_blocks, stream);
  } else if (rows.num_tiles > 0) {
    AttentionOfTiles(params, heads.head_dim, kv.format, stream);
  }
  const int64_t alone = rows.num_alone(qkv.rows);
  if (alone == 0) return;
  const int32_t* lone_rows = rows.num_tiles > 0 ? rows.lone_rows : nullptr;
  AttentionOfRows(params, lone_rows, alone, heads.head_dim, kv.format, plan, workspace, stream);
}

}  // namespace orrery::kernels::cuda
