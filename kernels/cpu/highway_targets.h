// Which instruction sets the CPU kernels are compiled for; include before hwy/foreach_target.h.
// Left out: steps between SSE2 and AVX2 and beyond plain AVX-512 (nothing here gains from them),
// and SVE, whose sizeless vectors cannot be held in arrays of accumulators (NEON has the same width
// on the processors this is for).
#pragma once

#include "hwy/detect_targets.h"

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
