// The writable layer of a sandbox: a detached mount with the folders "upper" and "work" in it. It
// exists in no mount namespace, so that it is gone when the last descriptor of it is: the
// launcher's, whose death closes them all.
#pragma once

#include <string>

#include "sandbox/protocol/descriptor.h"
#include "sandbox/protocol/error.h"
#include "sandbox/protocol/messages.h"

namespace orrery::sandbox {

struct Volume {
  Descriptor mount;  // owners as on disk: kUpperIdBase + the sandbox's ids
  Descriptor upper;  // its folder "upper", for reading
  bool frozen = false;
};

// `layer_root`: the folder whose mode the root of the sandbox takes.
Error MakeVolume(const CreateRequest& request, const std::string& layer_root, Volume& volume);

}  // namespace orrery::sandbox
