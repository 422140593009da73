#include "sandbox/init/remount.h"

#include <fcntl.h>
#include <unistd.h>

#include "sandbox/launcher/inside_mounts.h"
#include "sandbox/launcher/mounts.h"
#include "sandbox/launcher/system.h"
#include "sandbox/protocol/descriptor.h"

namespace orrery::sandbox {
namespace {

constexpr const char* kFolders[] = {"proc", "sys", "dev"};

}  // namespace

// Everything that an image could have spoiled is looked at before anything is moved.
Error MoveToNewRoot(int root) {
  Descriptor old_root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  Descriptor trees[3], targets[3];
  for (int i = 0; i < 3; ++i) {
    ORRERY_TRY(OpenTarget(root, kFolders[i], targets[i]));
    ORRERY_TRY(OpenTarget(old_root.get(), kFolders[i], trees[i]));
  }
  ORRERY_TRY(Attach(root, old_root.get(), "/"));
  for (int i = 0; i < 3; ++i) {
    ORRERY_TRY(Attach(trees[i].get(), targets[i].get(), kFolders[i]));
  }
  return PivotTo(root);
}

}  // namespace orrery::sandbox
