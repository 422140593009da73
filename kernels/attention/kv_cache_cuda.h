// One layer's keys and values on a GPU, paged as on the CPU in blocks of 16 positions, in the
// model's dtype: k and v are each [blocks, Hkv, 16, D]. A (block, head) piece is contiguous, so one
// bulk copy brings it to shared memory.
//
// In bfloat16 with D a multiple of 64 a piece lies as the tensor cores read it
// (cuda/wgmma_operands.cuh): in panels of 64 columns, [D / 64, 16, 64], where 16-byte chunk c of
// position r is stored as chunk c ^ (r % 8). A bulk copy keeps that order, so a product takes its
// operand from where the copy put it.
//
// In float8 (float8_kv.h; a bfloat16 model with D 64 or 128) a piece is its 16 rows of D bytes, not
// swizzled, and behind them the 16 rows' exponents k, a byte each.
#pragma once

#include <cstdint>

#include "kernels/attention/attention.h"

#ifdef __CUDACC__
#define ORRERY_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define ORRERY_HOST_DEVICE inline
#endif

namespace orrery::kernels::cuda {

enum class KvFormat : uint8_t { kModel, kFloat8 };  // kModel: the model's dtype

struct KvBlocks {
  void* k = nullptr;
  void* v = nullptr;
  DType dtype = DType::kBFloat16;
  int64_t num_blocks = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  KvFormat format = KvFormat::kModel;

  bool swizzled() const { return dtype == DType::kBFloat16 && head_dim % 64 == 0; }
  // Of a piece: its rows' columns that lie together.
  int64_t panel_columns() const { return swizzled() ? 64 : head_dim; }
  // Bytes of keys and values of one layer.
  static int64_t NumBytes(const HeadShape& heads, DType dtype, int64_t blocks,
                          KvFormat format = KvFormat::kModel) {
    return 2 * blocks * heads.num_kv_heads * PieceBytes(heads.head_dim, dtype, format);
  }
  // Keys, or values, of a block and head.
  static int64_t PieceBytes(int64_t head_dim, DType dtype, KvFormat format) {
    return kBlockTokens * (format == KvFormat::kFloat8 ? head_dim + 1 : head_dim * SizeOf(dtype));
  }
  // Whether keys and values of such heads can be held in float8.
  static bool Float8Fits(const HeadShape& heads, DType dtype) {
    return dtype == DType::kBFloat16 && heads.group() <= 8 &&
           (heads.head_dim == 64 || heads.head_dim == 128);
  }
};

// Element of (slot = block * 16 + offset, head, i) in k or v.
ORRERY_HOST_DEVICE int64_t KvIndex(int64_t slot, int64_t head, int64_t i, int64_t num_kv_heads,
                                   int64_t head_dim, bool swizzled) {
  const int64_t block = slot / kBlockTokens, row = slot % kBlockTokens;
  const int64_t piece = (block * num_kv_heads + head) * kBlockTokens * head_dim;
  if (!swizzled) return piece + row * head_dim + i;
  return piece + (i / 64 * kBlockTokens + row) * 64 + ((i % 64) ^ ((row & 7) << 3));
}

}  // namespace orrery::kernels::cuda
