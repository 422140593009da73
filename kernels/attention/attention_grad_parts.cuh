// What the kernels of attention's gradient share: their arguments, and how a block reads and writes
// rows of the batch.
#pragma once

#include "kernels/attention/attention_grad_plan.h"
#include "kernels/cuda/values.cuh"

namespace orrery::kernels::cuda {

// A query is a row and a head of a group: packed index row * group + head. A row's heads of one
// group lie side by side, so packed queries have a stride of their own.
struct GroupSize {
  uint32_t group = 1, magic = 0;  // magic: ceil(2^32 / group); exact for indices below 2^28
  __device__ __forceinline__ int RowOf(int packed) const {
    return group == 1 ? packed : static_cast<int>(__umulhi(static_cast<uint32_t>(packed), magic));
  }
};
inline GroupSize MakeGroupSize(int64_t group) {
  GroupSize size;
  size.group = static_cast<uint32_t>(group);
  size.magic = static_cast<uint32_t>(((uint64_t{1} << 32) + group - 1) / group);
  return size;
}

template <typename T>
struct AttentionGradParams {
  Matrix<const T> qkv, dout, out;
  Matrix<T> dqkv;
  const QueryTile* query_tiles = nullptr;
  const KeyTile* key_tiles = nullptr;
  const QueryRun* runs = nullptr;
  const KeySum* sums = nullptr;
  int num_kv_heads = 0, head_dim = 0;
  GroupSize group;
  float scale = 0;
  // [Hkv, stride] by packed query: log of the sum of exp (natural, or of powers of two: the two
  // kernels of a pair agree), and dout . out.
  float* log_sums = nullptr;
  float* deltas = nullptr;
  int64_t stride = 0;
  float* partials = nullptr;  // [partials, Hkv, 2, rows of a key tile, D]: dk, dv

  __device__ __forceinline__ int64_t KeyColumn(int kv_head) const {
    return static_cast<int64_t>(num_kv_heads * static_cast<int>(group.group) + kv_head) * head_dim;
  }
  __device__ __forceinline__ int64_t ValueColumn(int kv_head) const {
    return KeyColumn(kv_head) + static_cast<int64_t>(num_kv_heads) * head_dim;
  }
};

// For float32 and what the tensor-core kernels do not take.
void AttentionGradSimple(const AttentionGradParams<float>& params, const AttentionGradPlan& plan,
                         cudaStream_t stream);
void AttentionGradSimple(const AttentionGradParams<BFloat16>& params, const AttentionGradPlan& plan,
                         cudaStream_t stream);
// By warpgroup products; head_dim 64 or 128.
void AttentionGradByWarpgroups(const AttentionGradParams<BFloat16>& params,
                               const AttentionGradPlan& plan, cudaStream_t stream);

}  // namespace orrery::kernels::cuda
