#include "sandbox/launcher/inside_mounts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "sandbox/launcher/mounts.h"
#include "sandbox/launcher/system.h"

namespace orrery::sandbox {
namespace {

constexpr unsigned kPlain = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;

struct Node {
  const char* name;
  unsigned major, minor;
};
constexpr Node kNodes[] = {{"null", 1, 3},   {"zero", 1, 5},    {"full", 1, 7},
                           {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}};

struct Link {
  const char *name, *target;
};
constexpr Link kLinks[] = {{"fd", "/proc/self/fd"},
                           {"stdin", "/proc/self/fd/0"},
                           {"stdout", "/proc/self/fd/1"},
                           {"stderr", "/proc/self/fd/2"},
                           {"ptmx", "pts/ptmx"}};

// The lists of masked and read-only paths are those of runc's and Docker's defaults.
constexpr const char* kMaskedFiles[] = {"proc/kcore",      "proc/keys",        "proc/latency_stats",
                                        "proc/timer_list", "proc/timer_stats", "proc/sched_debug",
                                        "proc/interrupts"};
constexpr const char* kMaskedFolders[] = {"proc/acpi", "proc/scsi", "proc/asound", "sys/firmware",
                                          "sys/devices/virtual/powercap"};
constexpr const char* kReadOnly[] = {"proc/bus", "proc/fs", "proc/irq", "proc/sys",
                                     "proc/sysrq-trigger"};

Error MountAt(int root, const char* path, const char* type, const MountOptions& options,
              unsigned attributes) {
  Descriptor mount, target;
  ORRERY_TRY(MakeMount(type, options, attributes, mount));
  ORRERY_TRY(OpenTarget(root, path, target));
  return Attach(mount.get(), target.get(), std::string("/") + path);
}

Error MountDevices(int root, int devices, const CreateRequest& request) {
  Descriptor target;
  ORRERY_TRY(OpenTarget(root, "dev", target));
  ORRERY_TRY(Attach(devices, target.get(), "/dev"));
  ORRERY_TRY(MountAt(root, "dev/pts", "devpts",
                     {{"mode", "0620"},
                      {"ptmxmode", "0666"},
                      {"gid", "5"},
                      {"max", std::to_string(request.max_terminals)}},
                     MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC));
  ORRERY_TRY(MountAt(root, "dev/shm", "tmpfs",
                     {{"mode", "1777"}, {"size", std::to_string(request.shm_bytes)}}, kPlain));
  return MountAt(root, "dev/mqueue", "mqueue", {}, kPlain);
}

bool IsMissing(const Error& error) { return error.number == ENOENT || error.number == ENOTDIR; }

// Mounts a copy of what `from` names over `path`; fine where there is no such path.
Error Cover(int root, const char* path, int from, const char* from_path, unsigned attributes) {
  Descriptor target, mount;
  if (Error error = OpenTarget(root, path, target); error) {
    return IsMissing(error) ? Error{} : error;
  }
  ORRERY_TRY(CloneMount(from, from_path, mount));
  ORRERY_TRY(Restrict(mount.get(), -1, attributes));
  return Attach(mount.get(), target.get(), path);
}

}  // namespace

Error MakeDevices(Descriptor& mount) {
  ORRERY_TRY(MakeMount("tmpfs", {{"mode", "0755"}, {"size", "64k"}},
                       MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, mount));
  for (const Node& node : kNodes) {
    if (::mknodat(mount.get(), node.name, S_IFCHR | 0666, makedev(node.major, node.minor)) != 0 ||
        ::fchmodat(mount.get(), node.name, 0666, 0) != 0) {
      return LastError(std::string("mknod of ") + node.name);
    }
  }
  for (const Link& link : kLinks) {
    if (::symlinkat(link.target, mount.get(), link.name) != 0) return LastError("links in /dev");
  }
  for (const char* folder : {"pts", "shm", "mqueue"}) {
    if (::mkdirat(mount.get(), folder, 0755) != 0) return LastError("folders in /dev");
  }
  return {};
}

Error PivotTo(int root) {
  if (::fchdir(root) != 0 || system::PivotRoot(".", ".") != 0) return LastError("pivot_root");
  // The old root now lies above the new one at the same place.
  if (system::Unmount(".", system::kUnmountDetach) != 0)
    return LastError("unmounting the old root");
  return ::chdir("/") == 0 ? Error{} : LastError("chdir to the new root");
}

Error MakeBareTree() {
  Descriptor tree, place;
  ORRERY_TRY(MakeMount("tmpfs", {{"mode", "0755"}, {"size", "4k"}}, kPlain, tree));
  for (const char* folder : {"proc", "sys"}) {
    if (::mkdirat(tree.get(), folder, 0555) != 0) return LastError("folders of the bare tree");
  }
  place.Reset(::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!place.valid()) return LastError("opening /proc");
  ORRERY_TRY(Attach(tree.get(), place.get(), "/proc"));
  ORRERY_TRY(MountAt(tree.get(), "proc", "proc", {}, kPlain));
  ORRERY_TRY(MountAt(tree.get(), "sys", "sysfs", {}, kPlain));
  return PivotTo(tree.get());
}

Error MountInside(const CreateRequest& request, int root, int devices) {
  using system::kMountPrivate;
  using system::kMountRecursive;
  if (system::Mount(nullptr, "/", nullptr, kMountPrivate | kMountRecursive) != 0) {
    return LastError("making mounts private");
  }
  // Any folder that the sandbox's ids may reach serves as the place.
  Descriptor place(::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!place.valid()) return LastError("opening /proc");
  ORRERY_TRY(Attach(root, place.get(), "/proc"));
  Descriptor top(::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!top.valid()) return LastError("opening the new root");
  ORRERY_TRY(MountAt(top.get(), "proc", "proc", {}, kPlain));
  ORRERY_TRY(MountAt(top.get(), "sys", "sysfs", {}, kPlain | MOUNT_ATTR_RDONLY));
  ORRERY_TRY(MountDevices(top.get(), devices, request));
  return PivotTo(top.get());
}

Error SealKernelFiles() {
  Descriptor root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  Descriptor empty;
  ORRERY_TRY(MakeMount("tmpfs", {{"mode", "0555"}, {"size", "4k"}, {"nr_inodes", "2"}},
                       kPlain | MOUNT_ATTR_RDONLY, empty));
  bool attached = false;
  const char* first = nullptr;
  for (const char* path : kMaskedFiles) {
    ORRERY_TRY(Cover(root.get(), path, root.get(), "dev/null", MOUNT_ATTR_RDONLY));
  }
  for (const char* path : kMaskedFolders) {
    if (attached) {
      ORRERY_TRY(Cover(root.get(), path, root.get(), first, kPlain | MOUNT_ATTR_RDONLY));
      continue;
    }
    Descriptor target;
    if (OpenTarget(root.get(), path, target)) continue;
    ORRERY_TRY(Attach(empty.get(), target.get(), path));
    attached = true;
    first = path;
  }
  for (const char* path : kReadOnly) {
    ORRERY_TRY(Cover(root.get(), path, root.get(), path, kPlain | MOUNT_ATTR_RDONLY));
  }
  return {};
}

}  // namespace orrery::sandbox
