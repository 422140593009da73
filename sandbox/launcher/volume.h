// The writable layer of a sandbox: a mount with the folders "upper" and "work" in it. It exists in
// no mount namespace but at most the launcher's, so that the launcher's death takes it away.
#pragma once

#include <string>

#include "sandbox/launcher/stage.h"
#include "sandbox/protocol/descriptor.h"
#include "sandbox/protocol/error.h"
#include "sandbox/protocol/messages.h"

namespace orrery::sandbox {

struct Volume {
  StagedMount mount;  // owners as on disk: kUpperIdBase + the sandbox's ids
  Descriptor upper;   // its folder "upper", for reading
  bool frozen = false;
};

// `layer_root`: the folder whose mode the root of the sandbox takes.
Error MakeVolume(const CreateRequest& request, const std::string& layer_root, Stage& stage,
                 Volume& volume);

}  // namespace orrery::sandbox
