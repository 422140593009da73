// Warpgroup products by the number of rows of X: as wide as the instruction allows and no wider
// than needed. sm_90a alone.
#pragma once

#include "kernels/cuda/wgmma.cuh"

namespace orrery::kernels {

#define ORRERY_SUMS_8(i)                                                                      \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define ORRERY_SUMS_16 ORRERY_SUMS_8(0), ORRERY_SUMS_8(8)
#define ORRERY_SUMS_32 ORRERY_SUMS_8(0), ORRERY_SUMS_8(8), ORRERY_SUMS_8(16), ORRERY_SUMS_8(24)
#define ORRERY_SUMS_48                                                                         \
  ORRERY_SUMS_8(0), ORRERY_SUMS_8(8), ORRERY_SUMS_8(16), ORRERY_SUMS_8(24), ORRERY_SUMS_8(32), \
      ORRERY_SUMS_8(40)
#define ORRERY_SUMS_64                                                                         \
  ORRERY_SUMS_8(0), ORRERY_SUMS_8(8), ORRERY_SUMS_8(16), ORRERY_SUMS_8(24), ORRERY_SUMS_8(32), \
      ORRERY_SUMS_8(40), ORRERY_SUMS_8(48), ORRERY_SUMS_8(56)
#define ORRERY_SUMS_72                                                                         \
  ORRERY_SUMS_8(0), ORRERY_SUMS_8(8), ORRERY_SUMS_8(16), ORRERY_SUMS_8(24), ORRERY_SUMS_8(32), \
      ORRERY_SUMS_8(40), ORRERY_SUMS_8(48), ORRERY_SUMS_8(56), ORRERY_SUMS_8(64)
#define ORRERY_SUMS_80                                                                         \
  ORRERY_SUMS_8(0), ORRERY_SUMS_8(8), ORRERY_SUMS_8(16), ORRERY_SUMS_8(24), ORRERY_SUMS_8(32), \
      ORRERY_SUMS_8(40), ORRERY_SUMS_8(48), ORRERY_SUMS_8(56), ORRERY_SUMS_8(64),              \
      ORRERY_SUMS_8(72)

// d[64, kN] += a[64, 16] b[kN, 16]^T over one warpgroup, kN one of 16, 32, 64, 96, 128, 144, 160; a
// and b by descriptor. d lies as Wgmma64x128x16 has it.
template <int kN>
__device__ __forceinline__ void Wgmma64(float (&d)[kN / 2], uint64_t a, uint64_t b) {
  static_assert(kN == 16 || kN == 32 || kN == 64 || kN == 96 || kN == 128 || kN == 144 ||
                kN == 160);
  if constexpr (kN == 16) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7"
        "}, %8, %9, 1, 1, 1, 0, 0;\n"
        : ORRERY_SUMS_8(0)
        : "l"(a), "l"(b));
  } else if constexpr (kN == 32) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
        "%10, %11, %12, %13, %14, %15"
        "}, %16, %17, 1, 1, 1, 0, 0;\n"
        : ORRERY_SUMS_16
        : "l"(a), "l"(b));
  } else if constexpr (kN == 64) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
        "%10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
        "%30, %31"
        "}, %32, %33, 1, 1, 1, 0, 0;\n"
        : ORRERY_SUMS_32
        : "l"(a), "l"(b));
  } else if constexpr (kN == 96) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
        "%10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
        "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47"
        "}, %48, %49, 1, 1, 1, 0, 0;\n"
        : ORRERY_SUMS_48
        : "l"(a), "l"(b));
  } else if constexpr (kN == 128) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
        "%10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
        "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63"
        "}, %64, %65, 1, 1, 1, 0, 0;\n"
        : ORRERY_SUMS_64
        : "l"(a), "l"(b));
  } else if constexpr (kN == 144) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n144k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
        "%10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
        "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, "
        "%70, %71"
        "}, %72, %73, 1, 1, 1, 0, 0;\n"
        : ORRERY_SUMS_72
        : "l"(a), "l"(b));
  } else if constexpr (kN == 160) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
        "%10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
        "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, "
        "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
        "}, %80, %81, 1, 1, 1, 0, 0;\n"
        : ORRERY_SUMS_80
        : "l"(a), "l"(b));
  }
}

#undef ORRERY_SUMS_80
#undef ORRERY_SUMS_72
#undef ORRERY_SUMS_64
#undef ORRERY_SUMS_48
#undef ORRERY_SUMS_32
#undef ORRERY_SUMS_16
#undef ORRERY_SUMS_8

}  // namespace orrery::kernels
