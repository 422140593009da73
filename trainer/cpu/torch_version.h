// The LibTorch this binary was built with.
#pragma once

namespace orrery::trainer {

const char* TorchVersion();  // "2.11.0"

}  // namespace orrery::trainer
