// The root file system of a sandbox as one detached overlay mount: the image's layers, the frozen
// uppers of snapshots and a volume of its own, each shown through the sandbox's id map.
//
// The overlay is mounted with the launcher's privileges, so that its marks are trusted.*
// attributes, which nothing in a sandbox can write; what it does on the upper layer it does as the
// sandbox's root, for whom alone the idmapped upper can be written.
#pragma once

#include <vector>

#include "sandbox/launcher/id_maps.h"
#include "sandbox/launcher/layer_mounts.h"
#include "sandbox/launcher/stage.h"
#include "sandbox/launcher/volume.h"
#include "sandbox/protocol/descriptor.h"
#include "sandbox/protocol/error.h"
#include "sandbox/protocol/messages.h"

namespace orrery::sandbox {

Error MakeRoot(const CreateRequest& request, const std::vector<const Volume*>& frozen,
               const Volume& volume, IdMaps& id_maps, LayerMounts& layers, Stage& stage,
               Descriptor& root);

}  // namespace orrery::sandbox
