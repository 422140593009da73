#include "sandbox/init/remount.h"

#include <fcntl.h>
#include <unistd.h>

#include "sandbox/launcher/inside_mounts.h"
#include "sandbox/launcher/mounts.h"
#include "sandbox/launcher/system.h"
#include "sandbox/protocol/descriptor.h"

namespace orrery::sandbox {
namespace {

constexpr unsigned kRecursive = 0x8000;  // AT_RECURSIVE
constexpr const char* kFolders[] = {"proc", "sys", "dev"};

Error CopyTree(int root, const char* path, Descriptor& tree) {
  tree.Reset(system::OpenTree(root, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | kRecursive));
  return tree.valid() ? Error{} : LastError(std::string("taking /") + path + " along");
}

}  // namespace

Error MoveToNewRoot(int root) {
  Descriptor old_root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  // Copied before the new root hangs somewhere among them.
  Descriptor trees[3];
  for (int i = 0; i < 3; ++i) ORRERY_TRY(CopyTree(old_root.get(), kFolders[i], trees[i]));
  // A place that is there in any image: /proc is a mount of ours.
  Descriptor place;
  ORRERY_TRY(OpenTarget(old_root.get(), "proc", place));
  ORRERY_TRY(Attach(root, place.get(), "/proc"));
  Descriptor top(::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!top.valid()) return LastError("opening the new root");
  for (int i = 0; i < 3; ++i) {
    Descriptor target;
    ORRERY_TRY(OpenTarget(top.get(), kFolders[i], target));
    ORRERY_TRY(Attach(trees[i].get(), target.get(), kFolders[i]));
  }
  return PivotTo(top.get());
}

}  // namespace orrery::sandbox
