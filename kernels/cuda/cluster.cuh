// Thread blocks of a cluster that send each other values: stores into the shared memory of another
// block, completing on a barrier that lies there. A block must not end while others may still send
// to it, and none may send before all have begun and set up their barriers: ClusterArrive after
// that, ClusterWait before the first value.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx.cuh"

namespace orrery::kernels {

// By all threads of all blocks, then ClusterWait. Relaxed: what was stored before it is not yet
// visible (a release is a fence of the whole GPU, which costs more than the barrier), but barriers
// set up before BarrierInitFence are, and loads whose values were used have been done.
__device__ __forceinline__ void ClusterArrive() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void ClusterWait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Where another block has what lies at `address` here (SharedAddress).
__device__ __forceinline__ uint32_t AddressAt(uint32_t address, int rank) {
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

// Both addresses of one block (AddressAt). The barrier there counts 4 bytes once they have arrived.
__device__ __forceinline__ void SendFloat(uint32_t to, float value, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
      "r"(__float_as_uint(value)), "r"(barrier)
      : "memory");
}
// BarrierWait for what other blocks sent.
__device__ __forceinline__ void BarrierWaitCluster(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}

}  // namespace orrery::kernels
