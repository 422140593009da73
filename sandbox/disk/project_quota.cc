#include "sandbox/disk/project_quota.h"

#include <fcntl.h>
#include <linux/dqblk_xfs.h>
#include <linux/fs.h>
#include <linux/quota.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <random>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "sandbox/disk/remove_tree.h"

namespace orrery::sandbox {
namespace {

// What a folder and the overlay's own folders in it take.
constexpr int64_t kOwnInodes = 8, kOwnBytes = kOwnInodes * 4096;
constexpr int64_t kQuotaBlock = 1024;  // the unit of dqb_bhardlimit
constexpr int kAttempts = 1000;
constexpr const char* kUnclaimed = ".new";

Descriptor OpenFolder(const std::string& path) {
  return Descriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

int QuotaControl(int folder, int command, uint32_t project, void* data) {
  return static_cast<int>(
      ::syscall(SYS_quotactl_fd, folder, QCMD(command, PRJQUOTA), project, data));
}

// Zeros where nobody has had the project yet.
bool ReadUse(int folder, uint32_t project, if_dqblk& use) {
  use = {};
  return QuotaControl(folder, Q_GETQUOTA, project, &use) == 0 || errno == ENOENT;
}

bool IsFree(const if_dqblk& use) {
  return use.dqb_curinodes == 0 && use.dqb_curspace == 0 && use.dqb_bhardlimit == 0 &&
         use.dqb_ihardlimit == 0;
}

// 0, 0: none, and the file system forgets the project once it is empty.
bool SetLimits(int folder, uint32_t project, int64_t bytes, int64_t inodes) {
  if_dqblk limits{};
  limits.dqb_bhardlimit = static_cast<uint64_t>((bytes + kQuotaBlock - 1) / kQuotaBlock);
  limits.dqb_ihardlimit = static_cast<uint64_t>(inodes);
  limits.dqb_valid = QIF_LIMITS;
  return QuotaControl(folder, Q_SETQUOTA, project, &limits) == 0;
}

bool SetProject(int folder, uint32_t project) {
  fsxattr attributes{};
  if (::ioctl(folder, FS_IOC_FSGETXATTR, &attributes) != 0) return false;
  attributes.fsx_projid = project;
  attributes.fsx_xflags |= FS_XFLAG_PROJINHERIT;
  return ::ioctl(folder, FS_IOC_FSSETXATTR, &attributes) == 0;
}

// Gives back what a folder that was claimed has; fine where it has none.
void Release(const std::string& path) {
  const Descriptor folder = OpenFolder(path);
  fsxattr attributes{};
  if (!folder.valid() || ::ioctl(folder.get(), FS_IOC_FSGETXATTR, &attributes) != 0) return;
  const uint32_t project = attributes.fsx_projid;
  if (project - ProjectQuota::kFirstProject >= ProjectQuota::kProjects) return;
  SetLimits(folder.get(), project, 0, 0);
}

absl::Status Unsupported(const std::string& folder, const char* what) {
  return Precondition(
      "{} has no project quota ({}): give it an ext4 file system (tune2fs -O quota,project -Q "
      "prjquota DEVICE while it is unmounted) or XFS, mounted with -o prjquota, or take another "
      "disk back end (loop, tmpfs)",
      folder, what);
}

}  // namespace

uint32_t ProjectQuota::RandomFirst() { return std::random_device()(); }

absl::StatusOr<std::unique_ptr<ProjectQuota>> ProjectQuota::Open(const std::string& folder,
                                                                 uint32_t first) {
  const Descriptor here = OpenFolder(folder);
  if (!here.valid()) return ErrnoStatus("cannot open", folder, errno);
  // ext4 counts without the mount option too, and limits only with it.
  fs_quota_stat state{};
  if (QuotaControl(here.get(), Q_XGETQSTAT, 0, &state) != 0) {
    return Unsupported(folder, errno == EPERM ? "root is required" : "its file system keeps none");
  }
  if ((state.qs_flags & FS_QUOTA_PDQ_ENFD) == 0) {
    return Unsupported(folder, "its file system enforces none as it is mounted");
  }
  return std::unique_ptr<ProjectQuota>(new ProjectQuota(first));
}

// True where the folder is made and the only one of its project.
absl::StatusOr<bool> ProjectQuota::Claim(const std::string& path, uint32_t project) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoStatus("cannot make", path, errno);
  }
  const Descriptor folder = OpenFolder(path);
  if (!folder.valid()) return ErrnoStatus("cannot open", path, errno);
  if_dqblk use{};
  if (!ReadUse(folder.get(), project, use)) return ErrnoStatus("no project quota of", path, errno);
  if (!IsFree(use)) return false;
  if (!SetProject(folder.get(), project)) {
    return ErrnoStatus("cannot give a project to", path, errno);
  }
  // Of two that came at once each sees two, and both go on to another.
  return ReadUse(folder.get(), project, use) && use.dqb_curinodes == 1;
}

absl::Status ProjectQuota::Make(const std::string& path, int64_t bytes, int64_t inodes) {
  const std::string unclaimed = path + kUnclaimed;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const uint32_t project = kFirstProject + next_++ % kProjects;
    const absl::StatusOr<bool> claimed = Claim(unclaimed, project);
    if (claimed.ok() && !*claimed) continue;
    const auto undo = [&](absl::Status status) {
      RemoveTree(unclaimed).IgnoreError();
      return status;
    };
    if (!claimed.ok()) return undo(claimed.status());
    if (::rename(unclaimed.c_str(), path.c_str()) != 0) {
      return undo(ErrnoStatus("cannot make", path, errno));
    }
    const Descriptor folder = OpenFolder(path);
    if (folder.valid() &&
        SetLimits(folder.get(), project, bytes + kOwnBytes, inodes + kOwnInodes)) {
      return absl::OkStatus();
    }
    const absl::Status status = ErrnoStatus("cannot limit the project of", path, errno);
    Remove(path).IgnoreError();
    return status;
  }
  RemoveTree(unclaimed).IgnoreError();
  return Exhausted("{} project ids in turn are taken on the file system of {}", kAttempts, path);
}

absl::Status ProjectQuota::Remove(const std::string& path) {
  // While the folder says whose it is.
  Release(path);
  return RemoveTree(path);
}

void ReleaseProjects(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string path = entry.path().string();
    if (!path.ends_with(kUnclaimed)) Release(path);
  }
}

}  // namespace orrery::sandbox
