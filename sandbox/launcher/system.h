// System calls that the C library has no wrapper for, or none in every release we build on.
#pragma once

#include <linux/mount.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdint>

#include "sandbox/protocol/descriptor.h"
#include "sandbox/protocol/error.h"

namespace orrery::sandbox::system {

inline int Mount(const char* from, const char* to, const char* type, unsigned long flags) {
  return static_cast<int>(::syscall(SYS_mount, from, to, type, flags, nullptr));
}
inline int Unmount(const char* path, int flags) {
  return static_cast<int>(::syscall(SYS_umount2, path, flags));
}
inline constexpr unsigned long kMountRecursive = 0x4000, kMountPrivate = 1 << 18,
                               kMountSlave = 1 << 19;
inline constexpr int kUnmountDetach = 2;

inline long Clone3(clone_args& args) { return ::syscall(SYS_clone3, &args, sizeof(args)); }

inline int FsOpen(const char* type) {
  return static_cast<int>(::syscall(SYS_fsopen, type, FSOPEN_CLOEXEC));
}
inline int FsConfig(int fs, unsigned command, const char* key, const void* value, int aux) {
  return static_cast<int>(::syscall(SYS_fsconfig, fs, command, key, value, aux));
}
inline int FsMount(int fs, unsigned attributes) {
  return static_cast<int>(::syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, attributes));
}
inline int OpenTree(int folder, const char* path, unsigned flags) {
  return static_cast<int>(::syscall(SYS_open_tree, folder, path, flags));
}
inline int MoveMount(int from, const char* from_path, int to, const char* to_path, unsigned flags) {
  return static_cast<int>(::syscall(SYS_move_mount, from, from_path, to, to_path, flags));
}
inline int MountSetAttr(int folder, const char* path, unsigned flags, mount_attr& attributes) {
  return static_cast<int>(
      ::syscall(SYS_mount_setattr, folder, path, flags, &attributes, sizeof(attributes)));
}
inline int OpenAt2(int folder, const char* path, uint64_t flags, uint64_t resolve) {
  open_how how{};
  how.flags = flags;
  how.resolve = resolve;
  return static_cast<int>(::syscall(SYS_openat2, folder, path, &how, sizeof(how)));
}
inline int PivotRoot(const char* new_root, const char* put_old) {
  return static_cast<int>(::syscall(SYS_pivot_root, new_root, put_old));
}
inline int CloseRange(unsigned first, unsigned last) {
  return static_cast<int>(::syscall(SYS_close_range, first, last, 0));
}
inline int ExecveAt(int fd, char* const argv[], char* const envp[]) {
  return static_cast<int>(::syscall(SYS_execveat, fd, "", argv, envp, 0x1000 /* AT_EMPTY_PATH */));
}

}  // namespace orrery::sandbox::system
