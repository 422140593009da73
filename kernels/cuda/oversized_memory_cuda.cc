#include <cuda.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/oversized_memory.h"

namespace orrery::kernels {
namespace {

// By number: this toolkit's headers have no names for them yet.
constexpr auto kSharedMemoryMode = static_cast<CUfunction_attribute>(17);
constexpr int kAllowOversized = 3;

}  // namespace

void AllowOversizedSharedMemory(cudaFunction_t function) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = {};
  CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuFuncSetAttribute", &entry, 12000,
                                              cudaEnableDefault, &found));
  CHECK(entry != nullptr && found == cudaDriverEntryPointSuccess) << "cuFuncSetAttribute";
  const auto set_attribute =
      reinterpret_cast<CUresult (*)(CUfunction, CUfunction_attribute, int)>(entry);
  CHECK_EQ(set_attribute(function, kSharedMemoryMode, kAllowOversized), CUDA_SUCCESS)
      << "oversized shared memory";
}

}  // namespace orrery::kernels
