// What this process runs on, as far as results or speed depend on it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "orchestrator/loop/loop_state.h"

namespace orrery::commands {

// The instruction set that the CPU kernels choose here: AVX3, AVX2, SSE4, NEON, SVE2 ...
std::string SimdName();

// Whether the machine gives `bytes` of address space for `what`; the error has the size and `fix`.
// Asked before weights and caches are mapped, which cannot fail any more then.
absl::Status CheckMappable(int64_t bytes, std::string_view what, std::string_view fix);

// Records threads and instruction set in the state that checkpoints hold.
void SetMachine(LoopState* state);

}  // namespace orrery::commands
