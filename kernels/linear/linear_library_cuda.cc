// LinearLibrary: a row-major product as cuBLASLt sees it, column-major:
//   out^T [N, T] = w^T^T [N, K] x^T [K, T].
// cuBLASLt is loaded when it is first wanted: it is large, and nothing else needs it to start.
#include <cublasLt.h>
#include <dlfcn.h>

#include <array>
#include <map>

#include "kernels/cuda/cuda_check.h"
#include "kernels/linear/linear_cuda.h"
#include "orchestrator/base/status.h"

namespace orrery::kernels::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;

cudaDataType TypeOf(DType dtype) { return dtype == DType::kFloat32 ? CUDA_R_32F : CUDA_R_16BF; }

void Check(cublasStatus_t status, const char* what) {
  CHECK(status == CUBLAS_STATUS_SUCCESS) << what << ": cuBLASLt says " << status;
}

// The functions of cuBLASLt that are used, by their own names.
struct Library {
  decltype(&::cublasLtCreate) cublasLtCreate;
  decltype(&::cublasLtDestroy) cublasLtDestroy;
  decltype(&::cublasLtMatmulDescCreate) cublasLtMatmulDescCreate;
  decltype(&::cublasLtMatmulDescDestroy) cublasLtMatmulDescDestroy;
  decltype(&::cublasLtMatmulDescSetAttribute) cublasLtMatmulDescSetAttribute;
  decltype(&::cublasLtMatrixLayoutCreate) cublasLtMatrixLayoutCreate;
  decltype(&::cublasLtMatrixLayoutDestroy) cublasLtMatrixLayoutDestroy;
  decltype(&::cublasLtMatmulPreferenceCreate) cublasLtMatmulPreferenceCreate;
  decltype(&::cublasLtMatmulPreferenceDestroy) cublasLtMatmulPreferenceDestroy;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) cublasLtMatmulPreferenceSetAttribute;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) cublasLtMatmulAlgoGetHeuristic;
  decltype(&::cublasLtMatmul) cublasLtMatmul;
};

template <typename Function>
bool Resolve(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(library, name));
  return *function != nullptr;
}

absl::StatusOr<Library> Load() {
  constexpr const char* kName = "libcublasLt.so.13";
  void* handle = ::dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return NotFound("{} cannot be loaded ({}): install cuBLAS 13, or use exact numerics", kName,
                    ::dlerror());
  }
  Library l = {};
  const bool complete =
#define RESOLVE(name) Resolve(handle, #name, &l.name)
      RESOLVE(cublasLtCreate) && RESOLVE(cublasLtDestroy) && RESOLVE(cublasLtMatmulDescCreate) &&
      RESOLVE(cublasLtMatmulDescDestroy) && RESOLVE(cublasLtMatmulDescSetAttribute) &&
      RESOLVE(cublasLtMatrixLayoutCreate) && RESOLVE(cublasLtMatrixLayoutDestroy) &&
      RESOLVE(cublasLtMatmulPreferenceCreate) && RESOLVE(cublasLtMatmulPreferenceDestroy) &&
      RESOLVE(cublasLtMatmulPreferenceSetAttribute) && RESOLVE(cublasLtMatmulAlgoGetHeuristic) &&
      RESOLVE(cublasLtMatmul);
#undef RESOLVE
  if (!complete) return NotFound("{} lacks functions of cuBLASLt 13", kName);
  return l;
}

struct Plan {
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algorithm;
  bool found = false;
};

// What decides a plan: extents, strides, dtypes, bias.
using Key = std::array<int64_t, 8>;

}  // namespace

struct LinearLibrary::State {
  Library lt;
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  std::map<Key, Plan> plans;

  Plan MakePlan(const TensorView& x, const TensorView& w, const TensorView& bias,
                const TensorView& out);
};

absl::StatusOr<std::unique_ptr<LinearLibrary>> LinearLibrary::Create() {
  auto state = std::make_unique<State>();
  ASSIGN_OR_RETURN(state->lt, Load());
  Check(state->lt.cublasLtCreate(&state->handle), "cublasLtCreate");
  CUDA_CHECK(cudaMalloc(&state->workspace, kWorkspaceBytes));
  return std::unique_ptr<LinearLibrary>(new LinearLibrary(std::move(state)));
}

LinearLibrary::LinearLibrary(std::unique_ptr<State> state) : state_(std::move(state)) {}

LinearLibrary::~LinearLibrary() {
  for (auto& [key, plan] : state_->plans) {
    state_->lt.cublasLtMatmulDescDestroy(plan.product);
    state_->lt.cublasLtMatrixLayoutDestroy(plan.w);
    state_->lt.cublasLtMatrixLayoutDestroy(plan.x);
    state_->lt.cublasLtMatrixLayoutDestroy(plan.out);
  }
  cudaFree(state_->workspace);
  state_->lt.cublasLtDestroy(state_->handle);
}

Plan LinearLibrary::State::MakePlan(const TensorView& x, const TensorView& w,
                                    const TensorView& bias, const TensorView& out) {
  Plan plan;
  Check(lt.cublasLtMatmulDescCreate(&plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "product");
  const cublasOperation_t transposed = CUBLAS_OP_T;
  Check(lt.cublasLtMatmulDescSetAttribute(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                          sizeof(transposed)),
        "transpose");
  if (bias.data != nullptr) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const cudaDataType type = TypeOf(bias.dtype);
    Check(lt.cublasLtMatmulDescSetAttribute(plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                            sizeof(epilogue)),
          "epilogue");
    Check(lt.cublasLtMatmulDescSetAttribute(plan.product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                                            &type, sizeof(type)),
          "bias type");
  }
  Check(lt.cublasLtMatrixLayoutCreate(&plan.w, TypeOf(w.dtype), w.cols, w.rows, w.row_stride), "w");
  Check(lt.cublasLtMatrixLayoutCreate(&plan.x, TypeOf(x.dtype), x.cols, x.rows, x.row_stride), "x");
  Check(lt.cublasLtMatrixLayoutCreate(&plan.out, TypeOf(out.dtype), out.cols, out.rows,
                                      out.row_stride),
        "out");
  cublasLtMatmulPreference_t preference = nullptr;
  Check(lt.cublasLtMatmulPreferenceCreate(&preference), "preference");
  Check(
      lt.cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                              &kWorkspaceBytes, sizeof(kWorkspaceBytes)),
      "workspace");
  cublasLtMatmulHeuristicResult_t result = {};
  int count = 0;
  const cublasStatus_t status = lt.cublasLtMatmulAlgoGetHeuristic(
      handle, plan.product, plan.w, plan.x, plan.out, plan.out, preference, 1, &result, &count);
  lt.cublasLtMatmulPreferenceDestroy(preference);
  plan.found = status == CUBLAS_STATUS_SUCCESS && count > 0;
  plan.algorithm = result.algo;
  return plan;
}

bool LinearLibrary::Run(const TensorView& x, const TensorView& w, const TensorView& bias,
                        const TensorView& out, cudaStream_t stream) {
  // With odd extents cuBLASLt rounds sums to bfloat16 more than once (seen with k of 33 and 577).
  const bool regular = x.cols % 8 == 0 && w.rows % 8 == 0 && x.row_stride % 8 == 0 &&
                       w.row_stride % 8 == 0 && out.row_stride % 8 == 0;
  if (x.dtype != DType::kBFloat16 || !regular) return false;
  const Key key = {x.rows,
                   x.cols,
                   w.rows,
                   x.row_stride,
                   w.row_stride,
                   out.row_stride,
                   2 * static_cast<int64_t>(x.dtype) + static_cast<int64_t>(out.dtype),
                   bias.data != nullptr};
  auto found = state_->plans.find(key);
  if (found == state_->plans.end()) {
    found = state_->plans.emplace(key, state_->MakePlan(x, w, bias, out)).first;
  }
  Plan& plan = found->second;
  if (!plan.found) return false;
  if (bias.data != nullptr) {
    Check(state_->lt.cublasLtMatmulDescSetAttribute(plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                    &bias.data, sizeof(bias.data)),
          "bias");
  }
  const float one = 1, zero = 0;
  Check(state_->lt.cublasLtMatmul(state_->handle, plan.product, &one, w.data, plan.w, x.data,
                                  plan.x, &zero, out.data, plan.out, out.data, plan.out,
                                  &plan.algorithm, state_->workspace, kWorkspaceBytes, stream),
        "cublasLtMatmul");
  return true;
}

}  // namespace orrery::kernels::cuda
