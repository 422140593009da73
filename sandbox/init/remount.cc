#include "sandbox/init/remount.h"

#include <fcntl.h>
#include <unistd.h>

#include "sandbox/launcher/inside_mounts.h"
#include "sandbox/launcher/mounts.h"
#include "sandbox/launcher/system.h"
#include "sandbox/protocol/descriptor.h"

namespace orrery::sandbox {
namespace {

Error CarryOver(int old_root, int new_root, const char* path) {
  Descriptor tree(system::OpenTree(
      old_root, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | 0x8000 /* AT_RECURSIVE */));
  if (!tree.valid()) return LastError(std::string("taking /") + path + " along");
  Descriptor target;
  ORRERY_TRY(OpenTarget(new_root, path, target));
  return Attach(tree.get(), target.get(), path);
}

}  // namespace

Error MoveToNewRoot(int root) {
  Descriptor old_root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  // The place must exist in any image: /dev is a mount of ours. What is mounted there is reached
  // through its descriptor.
  Descriptor place;
  ORRERY_TRY(OpenTarget(old_root.get(), "dev/mqueue", place));
  ORRERY_TRY(Attach(root, place.get(), "/dev/mqueue"));
  Descriptor top(::open("/dev/mqueue", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!top.valid()) return LastError("opening the new root");
  // The copies are made of the old tree, in which the new root itself hangs below /dev: it goes
  // first.
  for (const char* path : {"proc", "sys"}) ORRERY_TRY(CarryOver(old_root.get(), top.get(), path));
  return PivotTo(top.get());
}

}  // namespace orrery::sandbox
