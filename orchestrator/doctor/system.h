// CPU, memory, disk, packages, libraries, hub and clock, as /proc, /sys and files tell of them.
// Every function reads from the places it is given, so that tests can make machines up.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "orchestrator/doctor/finding.h"

namespace orrery::doctor {

// root: "" for this machine; a folder with proc/ and sys/ in tests.
// The processor's name, or where the system does not tell it, its architecture.
std::string CpuModel(const std::string& root);
Finding CpuFinding(const std::string& root, int usable_threads, const std::string& simd);
// With the limits of the cgroup and of the address space (bytes; 0: none) where they are lower.
Finding MemoryFinding(const std::string& root, int64_t address_space_limit);
Finding DiskFinding(const std::string& folder);
Finding FilesFinding(int64_t open_files_limit);

// Names of a package list (setup/packages.txt) that the dpkg status file does not have installed.
std::vector<std::string> MissingPackages(const std::string& list, const std::string& dpkg_status);
// tree: the source tree, "" where the binary does not stand in one.
Finding PackagesFinding(const std::string& tree, const std::string& dpkg_status);

// Whether a library of this name (libtorch_cpu.so) is loaded in this process, and from where.
std::string LoadedLibrary(const std::string& name);
Finding TorchFinding(const std::string& library, const std::string& version);

Finding HubFinding(const std::string& cache, const std::string& endpoint, bool has_token,
                   bool offline);

// built: when this binary was made; a clock before it is wrong, and TLS and TensorBoard suffer.
Finding ClockFinding(int64_t now, int64_t built, bool synchronised);

}  // namespace orrery::doctor
