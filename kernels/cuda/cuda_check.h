// A CUDA error does not heal: the context is gone. CUDA_CHECK ends the process with the call, its
// place and CUDA's own words.
#pragma once

#include <cuda_runtime_api.h>

#include "orchestrator/base/check.h"

#define CUDA_CHECK(call)                                          \
  do {                                                            \
    const cudaError_t cuda_check_error = (call);                  \
    CHECK(cuda_check_error == cudaSuccess)                        \
        << #call << ": " << cudaGetErrorString(cuda_check_error); \
  } while (false)
