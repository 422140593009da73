// exact: a row's values do not depend on the batch it is in, bit for bit. fast: libraries and split
// sums where they are faster.
#pragma once

#include <cstdint>

namespace orrery::kernels::cuda {

enum class Numerics : uint8_t { kExact, kFast };

}  // namespace orrery::kernels::cuda
