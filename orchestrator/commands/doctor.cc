// orrery doctor: what this machine has, what is missing, and the command that fixes it.
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/timex.h>

#include <cstdio>
#include <ctime>
#include <filesystem>

#include "kernels/cpu/thread_pool.h"
#include "orchestrator/base/status.h"
#include "orchestrator/commands/commands.h"
#include "orchestrator/commands/machine.h"
#include "orchestrator/doctor/gpu.h"
#include "orchestrator/doctor/system.h"
#include "orchestrator/hub/environment.h"
#include "trainer/cpu/torch_version.h"

namespace orrery::commands {
namespace {

constexpr int kNeededCuda = 12000;

int64_t Limit(decltype(RLIMIT_AS) what) {
  rlimit limit = {};
  if (::getrlimit(what, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 0;
  return static_cast<int64_t>(limit.rlim_cur);
}

std::string OwnPath() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

// The tree whose build/ holds this binary.
std::string SourceTree() {
  const auto tree = std::filesystem::path(OwnPath()).parent_path().parent_path();
  std::error_code error;
  return std::filesystem::exists(tree / "setup/packages.txt", error) ? tree.string() : "";
}

int64_t BuiltAt() {
  struct stat binary = {};
  return ::stat(OwnPath().c_str(), &binary) == 0 ? binary.st_mtime : 0;
}

bool ClockIsSynchronised() {
  timex state = {};
  return ::adjtimex(&state) != TIME_ERROR && (state.status & STA_UNSYNC) == 0;
}

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

doctor::Findings Examine() {
  using namespace doctor;
  const int64_t files = Limit(RLIMIT_NOFILE);
  const hub::HubEnvironment hub = hub::ReadHubEnvironment();
  Findings all = {CpuFinding("", kernels::NumThreads(), SimdName()),
                  MemoryFinding("", Limit(RLIMIT_AS)),
                  DiskFinding("."),
                  FilesFinding(files == 0 ? 1 << 20 : files),
                  PackagesFinding(SourceTree(), "/var/lib/dpkg/status"),
                  TorchFinding(LoadedLibrary("libtorch_cpu.so"), trainer::TorchVersion()),
                  ToolkitFinding(Variable("PATH"), "/usr/local/cuda")};
  const GpuReport report = ProbeGpus("libcuda.so.1", "libnvidia-ml.so.1", kNeededCuda);
  for (Finding& f : GpuFindings(report, kNeededCuda, "/sys/bus/pci/devices")) {
    all.push_back(std::move(f));
  }
  all.push_back(HubFinding(hub.cache, hub.endpoint, !hub.token.empty(), hub.offline));
  all.push_back(ClockFinding(std::time(nullptr), BuiltAt(), ClockIsSynchronised()));
  return all;
}

}  // namespace

absl::Status Doctor() {
  const doctor::Findings findings = Examine();
  std::fputs(doctor::ToText(findings).c_str(), stdout);
  const int problems = doctor::CountProblems(findings);
  return problems == 0 ? absl::OkStatus()
                       : Failed("the machine is not ready: {} problem(s), see above", problems);
}

}  // namespace orrery::commands
