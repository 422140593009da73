#include "sandbox/launcher/volume.h"

#include <fcntl.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "sandbox/launcher/mounts.h"
#include "sandbox/launcher/system.h"

namespace orrery::sandbox {
namespace {

constexpr unsigned kAttributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;

Error MakeTmpfs(const CreateRequest& request, Descriptor& mount) {
  return MakeMount("tmpfs",
                   {{"size", std::to_string(request.upper_bytes)},
                    {"nr_inodes", std::to_string(request.upper_inodes)},
                    {"mode", "0700"}},
                   kAttributes, mount);
}

Error CloneFolder(const CreateRequest& request, Descriptor& mount) {
  ORRERY_TRY(CloneMount(AT_FDCWD, request.upper_path, mount));
  return Restrict(mount.get(), -1, kAttributes);
}

// The loop device that a file is attached to goes with its last user (LO_FLAGS_AUTOCLEAR).
Error AttachLoop(const std::string& image, Descriptor& device, std::string& path) {
  Descriptor control(::open("/dev/loop-control", O_RDWR | O_CLOEXEC));
  Descriptor file(::open(image.c_str(), O_RDWR | O_CLOEXEC));
  if (!control.valid()) return LastError("opening /dev/loop-control");
  if (!file.valid()) return LastError("opening " + image);
  loop_config config{};
  config.fd = static_cast<uint32_t>(file.get());
  config.block_size = 4096;
  config.info.lo_flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO;
  for (int attempt = 0; attempt < 100; ++attempt) {  // others take free devices too
    const int number = ::ioctl(control.get(), LOOP_CTL_GET_FREE);
    if (number < 0) return LastError("a free loop device");
    path = "/dev/loop" + std::to_string(number);
    device.Reset(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!device.valid()) return LastError("opening " + path);
    if (::ioctl(device.get(), LOOP_CONFIGURE, &config) == 0) return {};
    if (errno != EBUSY) return LastError("attaching " + image + " to " + path);
  }
  return {EBUSY, "a free loop device: others took each of them"};
}

Error MountLoop(const CreateRequest& request, Descriptor& mount) {
  Descriptor device;
  std::string path;
  ORRERY_TRY(AttachLoop(request.upper_path, device, path));
  return MakeMount("ext4", {{"source", path}}, kAttributes, mount);
}

Error MakeFolder(int parent, const char* name, mode_t mode) {
  if (::mkdirat(parent, name, mode) != 0 && errno != EEXIST) return LastError("mkdir of upper");
  if (::fchownat(parent, name, kUpperIdBase, kUpperIdBase, AT_SYMLINK_NOFOLLOW) != 0 ||
      ::fchmodat(parent, name, mode, 0) != 0) {
    return LastError("giving the upper layer to its range of ids");
  }
  return {};
}

}  // namespace

Error MakeVolume(const CreateRequest& request, const std::string& layer_root, Stage& stage,
                 Volume& volume) {
  Descriptor mount;
  switch (request.upper) {
    case UpperKind::kTmpfs:
      ORRERY_TRY(MakeTmpfs(request, mount));
      break;
    case UpperKind::kFolder:
      ORRERY_TRY(CloneFolder(request, mount));
      break;
    case UpperKind::kLoop:
      ORRERY_TRY(MountLoop(request, mount));
      break;
  }
  ORRERY_TRY(stage.Keep(std::move(mount), volume.mount));
  // Owners outside of the range are shown as nobody's, and even root may not pass them.
  if (::fchownat(volume.mount.get(), "", kUpperIdBase, kUpperIdBase, AT_EMPTY_PATH) != 0) {
    return LastError("giving the upper layer to its range of ids");
  }
  struct stat root {};
  if (::stat(layer_root.c_str(), &root) != 0) return LastError("the image layer " + layer_root);
  ORRERY_TRY(MakeFolder(volume.mount.get(), "upper", root.st_mode & 07777));
  ORRERY_TRY(MakeFolder(volume.mount.get(), "work", 0700));
  volume.upper.Reset(::openat(volume.mount.get(), "upper", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return volume.upper.valid() ? Error{} : LastError("opening the upper layer");
}

}  // namespace orrery::sandbox
