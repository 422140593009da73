// Warpgroup products of Hopper (sm_90a alone: code that uses them stands behind
// __CUDA_ARCH_FEAT_SM90_ALL).
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx.cuh"

namespace orrery::kernels {

// Orders register and shared-memory accesses before the first product of a group.
__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most `kPending` groups are under way.
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// What ordinary stores and copies wrote to shared memory becomes visible to the tensor cores.
__device__ __forceinline__ void FenceForTensorCores() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Descriptor of a matrix whose rows are 64 bfloat16 values (128 bytes), chunks of 16 bytes swizzled
// by row % 8; starts at a multiple of 1,024 bytes. k: first column, a multiple of 16.
__device__ __forceinline__ uint64_t SwizzledDescriptor(const void* matrix, int k) {
  const uint64_t address = (SharedAddress(matrix) + 2 * k) >> 4;
  const uint64_t eight_rows = 1024 >> 4;
  return address | (uint64_t{1} << 16) | (eight_rows << 32) | (uint64_t{1} << 62);
}

// d[64, 128] (+)= a[64, 16] b[128, 16]^T over one warpgroup; a and b by descriptor. Lane l = 4 g +
// t of warp w holds rows 16 w + g (values 4 j, 4 j + 1) and 16 w + g + 8 (4 j + 2, 4 j + 3) of
// columns 8 j + 2 t and the next.
__device__ __forceinline__ void Wgmma64x128x16(float (&d)[64], uint64_t a, uint64_t b,
                                               bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1, 0, 0;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63])
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

// --- the copy engine (tensor_map.h): a box from (column, row) on, completing on a barrier that
// expects its bytes ---

__device__ __forceinline__ void BarrierExpect(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}
__device__ __forceinline__ void CopyBox(void* to, const void* tensor_map, int column, int row,
                                        uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(SharedAddress(to)),
      "l"(tensor_map), "r"(column), "r"(row), "r"(SharedAddress(barrier))
      : "memory");
}
// To the same place in every block of a cluster whose bit is set in `blocks`, each completing on
// its own barrier.
__device__ __forceinline__ void CopyBoxToCluster(void* to, const void* tensor_map, int column,
                                                 int row, uint64_t* barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(SharedAddress(to)),
      "l"(tensor_map), "r"(column), "r"(row), "r"(SharedAddress(barrier)), "h"(blocks)
      : "memory");
}

// --- clusters of thread blocks ---

__device__ __forceinline__ int ClusterRank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
__device__ __forceinline__ void ClusterSync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// Arrives at the barrier that another block has at the same place.
__device__ __forceinline__ void BarrierArriveAt(uint64_t* barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}\n" ::"r"(SharedAddress(barrier)),
      "r"(rank)
      : "memory");
}

// Registers a thread: the producers give theirs to those who hold sums.
template <int kRegisters>
__device__ __forceinline__ void KeepRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace orrery::kernels
