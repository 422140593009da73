#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/tensor_map.h"

namespace orrery::kernels {
namespace {

// Of the driver, which is found at run time: programs run without one, too.
using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                            CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);

Encode FindEncode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result;
  CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                              cudaEnableDefault, &result));
  CHECK(result == cudaDriverEntryPointSuccess) << "the driver has no cuTensorMapEncodeTiled";
  return reinterpret_cast<Encode>(function);
}

}  // namespace

CUtensorMap MakeTensorMap(const void* data, int64_t rows, int64_t cols, int64_t row_stride,
                          int64_t box_rows) {
  static const Encode encode = FindEncode();
  const cuuint64_t extents[2] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(row_stride) * 2};
  const cuuint32_t box[2] = {kBoxColumns, static_cast<cuuint32_t>(box_rows)}, steps[2] = {1, 1};
  CUtensorMap map;
  const CUresult status =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), extents, strides,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(status == CUDA_SUCCESS) << "tensor map of " << rows << " x " << cols << " rows of "
                                << row_stride << ": error " << static_cast<int>(status);
  return map;
}

}  // namespace orrery::kernels
