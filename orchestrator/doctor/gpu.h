// NVIDIA GPUs as the driver tells of them. libcuda and libnvidia-ml are opened at run time: nothing
// is linked, and a machine without a driver is one of the answers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "orchestrator/doctor/finding.h"

namespace orrery::doctor {

struct Gpu {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int64_t total_bytes = 0;
  int64_t free_bytes = -1;  // -1: not known
};

struct GpuReport {
  enum class State {
    kNoDriver,  // no libcuda
    kNoDevice,  // a driver, no GPU
    kFailed,    // cuInit or a query failed: `error`
    kTooOld,    // the driver knows an older CUDA only than kernels are built for
    kAvailable,
  };
  State state = State::kNoDriver;
  std::string error;
  int driver_cuda = 0;         // the newest CUDA the driver runs, as 12020 for 12.2
  std::string driver_version;  // 535.129.03; empty where NVML does not say
  std::vector<Gpu> gpus;
};

// The libraries' file names; tests give others. needed_cuda: as driver_cuda.
GpuReport ProbeGpus(const std::string& cuda_library, const std::string& nvml_library,
                    int needed_cuda);

// pci_folder: /sys/bus/pci/devices, where an NVIDIA GPU without a driver shows.
Findings GpuFindings(const GpuReport& report, int needed_cuda, const std::string& pci_folder);

// cuda_folder: where the toolkit is looked for besides PATH (/usr/local/cuda).
Finding ToolkitFinding(const std::string& path_variable, const std::string& cuda_folder);

}  // namespace orrery::doctor
