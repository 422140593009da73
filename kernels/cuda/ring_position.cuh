// A place in a ring of stages that producers fill and consumers empty.
#pragma once

#include <cstdint>

namespace orrery::kernels {

// Where the ring stands: the stage, and the parity of the phase that will fill (or empty) it.
struct RingPosition {
  int stage = 0;
  uint32_t phase = 0;
  __device__ void Advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

}  // namespace orrery::kernels
