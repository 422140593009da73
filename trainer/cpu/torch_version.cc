#include "trainer/cpu/torch_version.h"

#include <torch/headeronly/version.h>

namespace orrery::trainer {

const char* TorchVersion() { return TORCH_VERSION; }

}  // namespace orrery::trainer
