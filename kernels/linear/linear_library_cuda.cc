// LinearLibrary: row-major products as cuBLASLt sees them, column-major. A row-major matrix is its
// own transpose there, and the operands change places:
//   out = x w^T    out^T [N, T] = w [N, K] x^T [K, T]
//   dx = dy w      dx^T [K, T] = w^T [K, N] dy^T [N, T]
//   dw += dy^T x   dw^T [K, N] += x^T [K, T] dy [T, N]
// cuBLASLt is loaded when it is first wanted: it is large, and nothing else needs it to start.
#include <cublasLt.h>
#include <dlfcn.h>

#include <array>
#include <map>
#include <string>

#include "kernels/cuda/cuda_check.h"
#include "kernels/linear/linear_cuda.h"
#include "orchestrator/base/status.h"

namespace orrery::kernels::cuda {
namespace {

constexpr size_t kWorkspaceBytes = LinearLibrary::kWorkspaceBytes;

cudaDataType TypeOf(DType dtype) { return dtype == DType::kFloat32 ? CUDA_R_32F : CUDA_R_16BF; }

void Check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  EndProcess(std::string("the GPU failed: cuBLASLt says ") + std::to_string(status) + " to " +
             what);
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

// An operand of cuBLASLt, in its terms.
struct Operand {
  TensorView view;
  bool transposed = false;
};

struct Product {
  Operand first, second;
  TensorView bias;  // data null: none
  TensorView out;
  float beta = 0;  // 1: added to out
};

struct Plan {
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algorithm;
  bool found = false;
};

// What decides a plan: extents, strides, dtypes, transposes, bias, alignment.
using Key = std::array<int64_t, 14>;

// Bytes to which all operands are aligned, at most 16.
int64_t AlignmentOf(const Product& p) {
  uintptr_t bits = 16;
  for (const TensorView* view : {&p.first.view, &p.second.view, &p.out}) {
    bits |= reinterpret_cast<uintptr_t>(view->data);
  }
  return static_cast<int64_t>(bits & ~(bits - 1));
}

Key KeyOf(const Product& p) {
  const TensorView &a = p.first.view, &b = p.second.view;
  return {a.rows,
          a.cols,
          a.row_stride,
          b.rows,
          b.cols,
          b.row_stride,
          p.out.row_stride,
          static_cast<int64_t>(a.dtype),
          static_cast<int64_t>(p.out.dtype),
          p.first.transposed,
          p.second.transposed,
          p.bias.data != nullptr,
          p.beta != 0,
          AlignmentOf(p)};
}

}  // namespace

struct LinearLibrary::State {
  Library lt;
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  std::map<Key, Plan> plans;

  cublasLtMatrixLayout_t Layout(const TensorView& view) {
    cublasLtMatrixLayout_t layout = nullptr;
    Check(lt.cublasLtMatrixLayoutCreate(&layout, TypeOf(view.dtype), view.cols, view.rows,
                                        view.row_stride),
          "layout");
    return layout;
  }
  template <typename T>
  void SetAttribute(Plan* plan, cublasLtMatmulDescAttributes_t name, const T& value) {
    Check(lt.cublasLtMatmulDescSetAttribute(plan->product, name, &value, sizeof(value)),
          "attribute of a product");
  }
  void FindAlgorithm(int64_t alignment, Plan* plan);
  Plan MakePlan(const Product& p);
  bool Run(const Product& p, cudaStream_t stream);
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
    state_->lt.cublasLtMatrixLayoutDestroy(plan.first);
    state_->lt.cublasLtMatrixLayoutDestroy(plan.second);
    state_->lt.cublasLtMatrixLayoutDestroy(plan.out);
  }
  cudaFree(state_->workspace);
  state_->lt.cublasLtDestroy(state_->handle);
}

void LinearLibrary::State::FindAlgorithm(int64_t alignment, Plan* plan) {
  cublasLtMatmulPreference_t preference = nullptr;
  Check(lt.cublasLtMatmulPreferenceCreate(&preference), "preference");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t name, const auto& value) {
    Check(lt.cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof(value)),
          "preference of a product");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  const uint32_t bytes = static_cast<uint32_t>(alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, bytes);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, bytes);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, bytes);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, bytes);
  cublasLtMatmulHeuristicResult_t result = {};
  int count = 0;
  const cublasStatus_t status =
      lt.cublasLtMatmulAlgoGetHeuristic(handle, plan->product, plan->first, plan->second, plan->out,
                                        plan->out, preference, 1, &result, &count);
  lt.cublasLtMatmulPreferenceDestroy(preference);
  plan->found = status == CUBLAS_STATUS_SUCCESS && count > 0;
  plan->algorithm = result.algo;
}

Plan LinearLibrary::State::MakePlan(const Product& p) {
  Plan plan;
  Check(lt.cublasLtMatmulDescCreate(&plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "product");
  const auto operation = [](const Operand& o) { return o.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  SetAttribute(&plan, CUBLASLT_MATMUL_DESC_TRANSA, operation(p.first));
  SetAttribute(&plan, CUBLASLT_MATMUL_DESC_TRANSB, operation(p.second));
  if (p.bias.data != nullptr) {
    SetAttribute(&plan, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    SetAttribute(&plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, TypeOf(p.bias.dtype));
  }
  plan.first = Layout(p.first.view);
  plan.second = Layout(p.second.view);
  plan.out = Layout(p.out);
  FindAlgorithm(AlignmentOf(p), &plan);
  return plan;
}

bool LinearLibrary::State::Run(const Product& p, cudaStream_t stream) {
  const Key key = KeyOf(p);
  auto found = plans.find(key);
  if (found == plans.end()) found = plans.emplace(key, MakePlan(p)).first;
  Plan& plan = found->second;
  if (!plan.found) return false;
  if (p.bias.data != nullptr) {
    SetAttribute(&plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias.data);
  }
  const float one = 1;
  Check(
      lt.cublasLtMatmul(handle, plan.product, &one, p.first.view.data, plan.first,
                        p.second.view.data, plan.second, &p.beta, p.out.data, plan.out, p.out.data,
                        plan.out, &plan.algorithm, workspace, kWorkspaceBytes, stream),
      "cublasLtMatmul");
  return true;
}

bool LinearLibrary::Run(const TensorView& x, const TensorView& w, const TensorView& bias,
                        const TensorView& out, cudaStream_t stream) {
  // With odd extents cuBLASLt rounds sums to bfloat16 more than once (seen with k of 33 and 577).
  const bool regular = x.cols % 8 == 0 && w.rows % 8 == 0 && x.row_stride % 8 == 0 &&
                       w.row_stride % 8 == 0 && out.row_stride % 8 == 0;
  if (x.dtype != DType::kBFloat16 || !regular) return false;
  return state_->Run({{w, true}, {x, false}, bias, out, 0}, stream);
}

void LinearLibrary::GradInput(const TensorView& dy, const TensorView& w, bool accumulate,
                              const TensorView& dx, cudaStream_t stream) {
  CHECK(dy.cols == w.rows && dx.cols == w.cols && dx.rows == dy.rows);
  if (dx.num_elements() == 0) return;
  CHECK(state_->Run({{w, false}, {dy, false}, {}, dx, accumulate ? 1.0f : 0.0f}, stream))
      << "cuBLASLt does not take dx [" << dx.rows << ", " << dx.cols << "] of " << w.rows;
}

void LinearLibrary::GradWeight(const TensorView& dy, const TensorView& x, const TensorView& dw,
                               cudaStream_t stream) {
  CHECK(dy.rows == x.rows && dw.rows == dy.cols && dw.cols == x.cols);
  CHECK(dw.dtype == DType::kFloat32);
  if (dw.num_elements() == 0 || x.rows == 0) return;
  CHECK(state_->Run({{x, false}, {dy, true}, {}, dw, 1.0f}, stream))
      << "cuBLASLt does not take dw [" << dw.rows << ", " << dw.cols << "] of " << x.rows;
}

}  // namespace orrery::kernels::cuda
