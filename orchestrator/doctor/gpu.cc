#include "orchestrator/doctor/gpu.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace orrery::doctor {
namespace {

// A few functions of the CUDA driver API and of NVML, by their stable binary interface.
constexpr int kSuccess = 0, kNoDevice = 100, kSystemNotReady = 802, kDriverMismatch = 803;
constexpr int kMajorAttribute = 75, kMinorAttribute = 76;

struct NvmlMemory {
  unsigned long long total, free, used;
};

class Library {
 public:
  explicit Library(const std::string& name) : handle_(::dlopen(name.c_str(), RTLD_NOW)) {}
  ~Library() {
    if (handle_ != nullptr) ::dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  bool open() const { return handle_ != nullptr; }
  template <typename Function>
  Function* Find(const char* name) const {
    return handle_ == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(handle_, name));
  }

 private:
  void* const handle_;
};

std::string Explain(int code) {
  switch (code) {
    case kSystemNotReady:
      return "the system is not ready (CUDA error 802)";
    case kDriverMismatch:
      return "the kernel's driver and the library differ in version (CUDA error 803)";
    default:
      return fmt::format("CUDA error {}", code);
  }
}

class Driver {
 public:
  explicit Driver(const std::string& name) : library_(name) {
    init_ = library_.Find<int(unsigned)>("cuInit");
    version_ = library_.Find<int(int*)>("cuDriverGetVersion");
    count_ = library_.Find<int(int*)>("cuDeviceGetCount");
    get_ = library_.Find<int(int*, int)>("cuDeviceGet");
    name_ = library_.Find<int(char*, int, int)>("cuDeviceGetName");
    memory_ = library_.Find<int(size_t*, int)>("cuDeviceTotalMem_v2");
    attribute_ = library_.Find<int(int*, int, int)>("cuDeviceGetAttribute");
  }

  bool open() const { return library_.open(); }
  bool whole() const {
    return init_ != nullptr && version_ != nullptr && count_ != nullptr && get_ != nullptr &&
           name_ != nullptr && memory_ != nullptr && attribute_ != nullptr;
  }
  int Init() const { return init_(0); }
  int Version() const {
    int version = 0;
    return version_(&version) == kSuccess ? version : 0;
  }
  int Count(int* count) const { return count_(count); }
  int Describe(int index, Gpu* gpu) const {
    int device = 0;
    char name[256] = {};
    size_t bytes = 0;
    for (const int code :
         {get_(&device, index), name_(name, sizeof name - 1, device), memory_(&bytes, device),
          attribute_(&gpu->major, kMajorAttribute, device),
          attribute_(&gpu->minor, kMinorAttribute, device)}) {
      if (code != kSuccess) return code;
    }
    gpu->name = name;
    gpu->total_bytes = static_cast<int64_t>(bytes);
    return kSuccess;
  }

 private:
  const Library library_;
  int (*init_)(unsigned);
  int (*version_)(int*);
  int (*count_)(int*);
  int (*get_)(int*, int);
  int (*name_)(char*, int, int);
  int (*memory_)(size_t*, int);
  int (*attribute_)(int*, int, int);
};

// What the driver API does not say: its own version, and how much memory is free.
void AskNvml(const std::string& name, GpuReport* report) {
  const Library nvml(name);
  const auto init = nvml.Find<int()>("nvmlInit_v2");
  const auto shutdown = nvml.Find<int()>("nvmlShutdown");
  const auto version = nvml.Find<int(char*, unsigned)>("nvmlSystemGetDriverVersion");
  const auto handle = nvml.Find<int(unsigned, void**)>("nvmlDeviceGetHandleByIndex_v2");
  const auto memory = nvml.Find<int(void*, NvmlMemory*)>("nvmlDeviceGetMemoryInfo");
  if (init == nullptr || shutdown == nullptr || init() != kSuccess) return;
  char text[96] = {};
  if (version != nullptr && version(text, sizeof text - 1) == kSuccess) {
    report->driver_version = text;
  }
  // NVML counts all GPUs, the driver those that CUDA_VISIBLE_DEVICES leaves: only where nothing is
  // hidden are their numbers the same.
  const bool same_numbers = std::getenv("CUDA_VISIBLE_DEVICES") == nullptr;
  for (size_t i = 0; i < report->gpus.size() && same_numbers; ++i) {
    void* device = nullptr;
    NvmlMemory bytes = {};
    if (handle == nullptr || memory == nullptr ||
        handle(static_cast<unsigned>(i), &device) != kSuccess ||
        memory(device, &bytes) != kSuccess) {
      continue;
    }
    report->gpus[i].free_bytes = static_cast<int64_t>(bytes.free);
  }
  shutdown();
}

std::string CudaText(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// A display controller of NVIDIA's (vendor 10de, class 03) on the bus.
bool HasNvidiaDevice(const std::string& pci_folder) {
  std::error_code error;
  for (const auto& device : std::filesystem::directory_iterator(pci_folder, error)) {
    std::string vendor, kind;
    std::ifstream(device.path() / "vendor") >> vendor;
    std::ifstream(device.path() / "class") >> kind;
    if (vendor == "0x10de" && kind.starts_with("0x03")) return true;
  }
  return false;
}

Finding OfGpu(size_t index, const Gpu& gpu) {
  std::string text =
      fmt::format("{}, {:.1f} GiB", gpu.name, static_cast<double>(gpu.total_bytes) / (1 << 30));
  if (gpu.free_bytes >= 0) {
    text += fmt::format(" ({:.1f} free)", static_cast<double>(gpu.free_bytes) / (1 << 30));
  }
  text += fmt::format(", compute capability {}.{}", gpu.major, gpu.minor);
  return Good(fmt::format("gpu {}", index), text);
}

// Its version line: "Cuda compilation tools, release 12.2, V12.2.140".
std::string NvccRelease(const std::string& nvcc) {
  std::FILE* pipe = ::popen(("'" + nvcc + "' --version 2>/dev/null").c_str(), "re");
  if (pipe == nullptr) return {};
  std::string text;
  char part[512];
  while (const size_t n = std::fread(part, 1, sizeof part, pipe)) text.append(part, n);
  ::pclose(pipe);
  const size_t at = text.find("release ");
  if (at == std::string::npos) return {};
  return text.substr(at + 8, text.find(',', at) - at - 8);
}

std::string FindNvcc(const std::string& path_variable, const std::string& cuda_folder) {
  std::istringstream folders(path_variable + ":" + cuda_folder + "/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string nvcc = folder + "/nvcc";
    if (!folder.empty() && nvcc.find('\'') == std::string::npos &&
        ::access(nvcc.c_str(), X_OK) == 0) {
      return nvcc;
    }
  }
  return {};
}

}  // namespace

GpuReport ProbeGpus(const std::string& cuda_library, const std::string& nvml_library,
                    int needed_cuda) {
  GpuReport report;
  const Driver driver(cuda_library);
  if (!driver.open()) return report;
  const auto fail = [&](const std::string& error) {
    report.state = GpuReport::State::kFailed;
    report.error = error;
    return report;
  };
  if (!driver.whole()) return fail(cuda_library + " lacks functions of the CUDA driver");
  report.driver_cuda = driver.Version();
  int count = 0;
  int code = driver.Init();
  if (code == kSuccess) code = driver.Count(&count);
  if (code == kNoDevice || (code == kSuccess && count == 0)) {
    report.state = GpuReport::State::kNoDevice;
    return report;
  }
  if (code != kSuccess) return fail(Explain(code));
  for (int i = 0; i < count; ++i) {
    Gpu gpu;
    code = driver.Describe(i, &gpu);
    if (code != kSuccess) return fail(fmt::format("GPU {}: {}", i, Explain(code)));
    report.gpus.push_back(gpu);
  }
  AskNvml(nvml_library, &report);
  report.state =
      report.driver_cuda < needed_cuda ? GpuReport::State::kTooOld : GpuReport::State::kAvailable;
  return report;
}

Findings GpuFindings(const GpuReport& report, int needed_cuda, const std::string& pci_folder) {
  Findings findings;
  const std::string version =
      report.driver_version.empty() ? "driver" : "driver " + report.driver_version;
  switch (report.state) {
    case GpuReport::State::kNoDriver:
      if (HasNvidiaDevice(pci_folder)) {
        return {Problem("gpu", "an NVIDIA GPU, but no driver (libcuda.so.1 is not there)",
                        "Debian: apt-get install nvidia-driver; Ubuntu: ubuntu-drivers install; "
                        "in a container: start it with --gpus all")};
      }
      return {Note("gpu", "none: everything runs on the CPU")};
    case GpuReport::State::kNoDevice:
      return {Note("gpu", "a driver, but no GPU that this process may use",
                   "in a container: start it with --gpus all; see also CUDA_VISIBLE_DEVICES")};
    case GpuReport::State::kFailed:
      return {Problem("gpu", "the driver does not start: " + report.error,
                      "nvidia-smi says more; after an update of the driver the machine wants a "
                      "reboot, with NVSwitch the service nvidia-fabricmanager")};
    case GpuReport::State::kTooOld:
      findings.push_back(Problem(
          "driver",
          fmt::format("{} runs CUDA up to {}, the kernels need {}", version,
                      CudaText(report.driver_cuda), CudaText(needed_cuda)),
          "install a newer driver: docs.nvidia.com/deploy/cuda-compatibility has the versions"));
      break;
    case GpuReport::State::kAvailable:
      findings.push_back(
          Good("driver", fmt::format("{}, CUDA up to {}", version, CudaText(report.driver_cuda))));
      break;
  }
  for (size_t i = 0; i < report.gpus.size(); ++i) findings.push_back(OfGpu(i, report.gpus[i]));
  return findings;
}

Finding ToolkitFinding(const std::string& path_variable, const std::string& cuda_folder) {
  const std::string nvcc = FindNvcc(path_variable, cuda_folder);
  if (nvcc.empty()) {
    return Note("toolkit", "no CUDA toolkit (nvcc): only needed to build GPU kernels",
                "developer.nvidia.com/cuda-downloads, then ./orrery build");
  }
  const std::string release = NvccRelease(nvcc);
  if (release.empty()) return Note("toolkit", nvcc + " does not say its version");
  if (std::atoi(release.c_str()) < 12) {
    return Note("toolkit", fmt::format("CUDA {} at {}: too old for C++20 kernels", release, nvcc),
                "install CUDA 12 or newer: developer.nvidia.com/cuda-downloads");
  }
  return Good("toolkit", fmt::format("CUDA {} at {}", release, nvcc));
}

}  // namespace orrery::doctor
