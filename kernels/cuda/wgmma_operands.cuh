// Warpgroup products (wgmma.cuh) with operands as gradients have them: transposed in shared memory,
// and the left one in registers. sm_90a alone.
//
// A matrix in shared memory is stored in panels of 64 columns: [rows, 64] bfloat16, 128 bytes a
// row, chunks of 16 bytes swizzled by row % 8, a panel at a multiple of 1,024 bytes. The same
// memory is an operand whose sums run over its columns (RowOperand) or over its rows
// (ColumnOperand).
#pragma once

#include "kernels/cuda/wgmma.cuh"

namespace orrery::kernels {

// 16 bytes of column `chunk` of a row, by the byte they begin at in a matrix of `rows` rows.
__device__ __forceinline__ int PanelOffset(int rows, int row, int chunk) {
  return (chunk / 8 * rows + row) * 128 + ((chunk ^ (row & 7)) % 8) * 16;
}

// AsyncCopy16, or zeros where there is nothing to read.
__device__ __forceinline__ void AsyncCopy16OrZero(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(to)), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}

// Sums over columns: rows from `row` (a multiple of 8) on, 16 columns from `column` on.
__device__ __forceinline__ uint64_t RowOperand(const char* matrix, int rows, int row, int column) {
  return SwizzledDescriptor(matrix + (column / 64 * rows + row) * 128, column % 64);
}
// Sums over rows: 16 rows from `row` (a multiple of 8) on; columns from `column`, a multiple of 64,
// on, as many as the instruction takes.
__device__ __forceinline__ uint64_t ColumnOperand(const char* matrix, int rows, int row,
                                                  int column) {
  const uint64_t address = SharedAddress(matrix + (column / 64 * rows + row) * 128) >> 4;
  const uint64_t panel = static_cast<uint64_t>(rows * 128) >> 4, eight_rows = 1024 >> 4;
  return address | (panel << 16) | (eight_rows << 32) | (uint64_t{1} << 62);
}

#define ORRERY_SUMS_8(d, i)                                                                   \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define ORRERY_SUMS_32(d, i) \
  ORRERY_SUMS_8(d, i), ORRERY_SUMS_8(d, i + 8), ORRERY_SUMS_8(d, i + 16), ORRERY_SUMS_8(d, i + 24)
#define ORRERY_NAMES_32                                                    \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define ORRERY_NAMES_64                                                           \
  ORRERY_NAMES_32                                                                 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
  "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// d[64, N] (+)= a[64, 16] b[16, N], both by descriptor; kColumns: ColumnOperand, else RowOperand.
// d lies as Wgmma64x128x16 has it.
template <bool kColumnsA, bool kColumnsB>
__device__ __forceinline__ void WgmmaShared(float (&d)[32], uint64_t a, uint64_t b,
                                            bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" ORRERY_NAMES_32
      "}, %32, %33, p, 1, 1, %35, %36;\n}\n"
      : ORRERY_SUMS_32(d, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kColumnsA), "n"(kColumnsB));
}
template <bool kColumnsA, bool kColumnsB>
__device__ __forceinline__ void WgmmaShared(float (&d)[64], uint64_t a, uint64_t b,
                                            bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" ORRERY_NAMES_64
      "}, %64, %65, p, 1, 1, %67, %68;\n}\n"
      : ORRERY_SUMS_32(d, 0), ORRERY_SUMS_32(d, 32)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kColumnsA), "n"(kColumnsB));
}

// d[64, N] += a b with a[64, 16] in registers, laid out as mma.sync's: of lane 4 g + t, rows g and
// g + 8, columns 2 t and 2 t + 1, then 2 t + 8 and 2 t + 9. b: a ColumnOperand.
__device__ __forceinline__ void WgmmaRegisters(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" ORRERY_NAMES_32
               "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;\n"
               : ORRERY_SUMS_32(d, 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void WgmmaRegisters(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" ORRERY_NAMES_64
               "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;\n"
               : ORRERY_SUMS_32(d, 0), ORRERY_SUMS_32(d, 32)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef ORRERY_NAMES_64
#undef ORRERY_NAMES_32
#undef ORRERY_SUMS_32
#undef ORRERY_SUMS_8

// Products under way write these registers: what the compiler moves stays on its side of the fence.
template <int N>
__device__ __forceinline__ void FenceRegisters(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Columns 16 k .. 16 k + 15 of sums, as the left operand of the next product.
template <int N>
__device__ __forceinline__ void PackOperand(const float (&sums)[N], int k, uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = PackBf16(sums[8 * k + 2 * i], sums[8 * k + 2 * i + 1]);
}

}  // namespace orrery::kernels
