#include "orchestrator/commands/machine.h"

#include <hwy/targets.h>
#include <sys/mman.h>

#include "kernels/cpu/thread_pool.h"
#include "orchestrator/base/status.h"

namespace orrery::commands {

std::string SimdName() {
  // Targets are bits, the best one lowest; HWY_TARGETS are those compiled.
  const int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  return usable == 0 ? "none" : hwy::TargetName(usable & -usable);
}

absl::Status CheckMappable(int64_t bytes, std::string_view what, std::string_view fix) {
  if (bytes <= 0) return absl::OkStatus();
  const size_t size = static_cast<size_t>(bytes);
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return Exhausted(
        "{} take {} MB, which this machine does not give (limits: ulimit -v, cgroups); {}", what,
        (bytes >> 20) + 1, fix);
  }
  ::munmap(memory, size);
  return absl::OkStatus();
}

void SetMachine(LoopState* state) {
  state->threads = kernels::NumThreads();
  state->simd = SimdName();
}

}  // namespace orrery::commands
