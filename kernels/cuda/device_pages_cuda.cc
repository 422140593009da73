#include <cuda.h>

#include <string>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device_pages.h"

namespace orrery::kernels::cuda {
namespace {

template <typename Function>
void Find(const char* name, Function* function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  CUDA_CHECK(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result));
  CHECK(result == cudaDriverEntryPointSuccess) << "the driver has no " << name;
  *function = reinterpret_cast<Function>(found);
}

// By their own names.
struct Functions {
  decltype(&::cuDeviceGetAttribute) cuDeviceGetAttribute;
  decltype(&::cuMemAddressReserve) cuMemAddressReserve;
  decltype(&::cuMemAddressFree) cuMemAddressFree;
  decltype(&::cuMemCreate) cuMemCreate;
  decltype(&::cuMemRelease) cuMemRelease;
  decltype(&::cuMemMap) cuMemMap;
  decltype(&::cuMemUnmap) cuMemUnmap;
  decltype(&::cuMemSetAccess) cuMemSetAccess;

  Functions() {
#define FIND(name) Find(#name, &name)
    FIND(cuDeviceGetAttribute);
    FIND(cuMemAddressReserve);
    FIND(cuMemAddressFree);
    FIND(cuMemCreate);
    FIND(cuMemRelease);
    FIND(cuMemMap);
    FIND(cuMemUnmap);
    FIND(cuMemSetAccess);
#undef FIND
  }
};

void Check(CUresult status, const char* what, int64_t bytes) {
  if (status == CUDA_SUCCESS) return;
  size_t free_bytes = 0, total_bytes = 0;
  cudaMemGetInfo(&free_bytes, &total_bytes);
  EndProcess("the GPU failed: " + std::string(what) + " of " + std::to_string(bytes >> 20) +
             " MiB: driver error " + std::to_string(static_cast<int>(status)) + "; " +
             std::to_string(free_bytes >> 20) + " of " + std::to_string(total_bytes >> 20) +
             " MiB are free");
}

class DeviceDriver : public PageDriver {
 public:
  DeviceDriver() {
    int device = 0, supported = 0;
    CUDA_CHECK(cudaFree(nullptr));  // makes the context current: the driver's own calls want one
    CUDA_CHECK(cudaGetDevice(&device));
    f_.cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                            device);
    CHECK(supported != 0) << "GPU " << device << " has no virtual memory management";
    location_.type = CU_MEM_LOCATION_TYPE_DEVICE;
    location_.id = device;
  }

  bool real() const override { return true; }
  std::byte* Reserve(int64_t bytes) override {
    CUdeviceptr at = 0;
    Check(f_.cuMemAddressReserve(&at, static_cast<size_t>(bytes), 0, 0, 0), "addresses", bytes);
    return reinterpret_cast<std::byte*>(at);
  }
  void Unreserve(std::byte* at, int64_t bytes) override {
    Check(f_.cuMemAddressFree(Address(at), static_cast<size_t>(bytes)), "giving back addresses",
          bytes);
  }
  Page Create(int64_t bytes) override {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location_;
    CUmemGenericAllocationHandle handle = 0;
    Check(f_.cuMemCreate(&handle, static_cast<size_t>(bytes), &properties, 0), "a page", bytes);
    return handle;
  }
  void Destroy(Page page) override { Check(f_.cuMemRelease(page), "giving back a page", 0); }
  void Map(std::byte* at, int64_t bytes, Page page) override {
    Check(f_.cuMemMap(Address(at), static_cast<size_t>(bytes), 0, page, 0), "mapping", bytes);
  }
  void Allow(std::byte* at, int64_t bytes) override {
    CUmemAccessDesc access = {};
    access.location = location_;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    Check(f_.cuMemSetAccess(Address(at), static_cast<size_t>(bytes), &access, 1), "access", bytes);
  }
  void Unmap(std::byte* at, int64_t bytes) override {
    Check(f_.cuMemUnmap(Address(at), static_cast<size_t>(bytes)), "unmapping", bytes);
  }

 private:
  static CUdeviceptr Address(std::byte* at) { return reinterpret_cast<CUdeviceptr>(at); }

  const Functions f_;
  CUmemLocation location_ = {};
};

}  // namespace

std::shared_ptr<PagePool> MakeDevicePool() {
  return std::make_shared<PagePool>(std::make_unique<DeviceDriver>());
}

std::shared_ptr<PagePool> MakeCountingPool() {
  return std::make_shared<PagePool>(std::make_unique<CountingDriver>());
}

}  // namespace orrery::kernels::cuda
