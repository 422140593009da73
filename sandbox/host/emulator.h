// Which emulator an image of another architecture needs.
#pragma once

#include <string>

#include "sandbox/protocol/messages.h"

namespace orrery::sandbox {

// Fills in the request where the image is not for this machine ("" is taken to be). The image store
// has refused such an image unless emulation was asked for.
void ChooseEmulator(const std::string& architecture, CreateRequest* request);

}  // namespace orrery::sandbox
