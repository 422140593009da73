#include "sandbox/init/file_commands.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "sandbox/protocol/descriptor.h"

namespace orrery::sandbox {
namespace {

constexpr size_t kChunk = 256 << 10;

Error WriteAll(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t n = ::write(fd, data, size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return LastError("writing");
    data += n;
    size -= static_cast<size_t>(n);
  }
  return {};
}

Error Copy(int from, int to, uint64_t most) {
  std::string buffer(kChunk, '\0');
  while (most > 0) {
    const ssize_t n = ::read(from, buffer.data(), std::min<uint64_t>(kChunk, most));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return LastError("reading");
    if (n == 0) return {};
    ORRERY_TRY(WriteAll(to, buffer.data(), static_cast<size_t>(n)));
    most -= static_cast<uint64_t>(n);
  }
  return {};
}

const char* TypeName(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFDIR:
      return "a directory";
    case S_IFIFO:
      return "a FIFO";
    case S_IFSOCK:
      return "a socket";
    case S_IFCHR:
    case S_IFBLK:
      return "a device";
    default:
      return "no regular file";
  }
}

// A file of /proc says that it is empty and may have no end.
Error GetFile(const StartRequest& request) {
  Descriptor file(::open(request.path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file.valid()) return LastError(request.path);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return LastError(request.path);
  if (!S_ISREG(info.st_mode)) {
    return {EINVAL, request.path + " is " + TypeName(info.st_mode) + ", not a regular file"};
  }
  // A file that grows while it is read is read as long as it was at first.
  return Copy(file.get(), 1, static_cast<uint64_t>(info.st_size));
}

Error MakeParents(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    if (::mkdir(path.substr(0, slash).c_str(), 0755) != 0 && errno != EEXIST && errno != EROFS) {
      return LastError("making the folders of " + path);
    }
  }
  return {};
}

// The new file takes the place of whatever has the name; nothing is written through a link.
Error PutFile(const StartRequest& request) {
  ORRERY_TRY(MakeParents(request.path));
  const std::string temporary = request.path + ".new-" + std::to_string(::getpid());
  Descriptor file(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.valid()) return LastError(request.path);
  Error error = Copy(0, file.get(), ~uint64_t{0});
  if (!error && ::fchmod(file.get(), request.mode & 07777) != 0) error = LastError(request.path);
  if (!error && ::rename(temporary.c_str(), request.path.c_str()) != 0) {
    error = LastError(request.path);
  }
  if (error) ::unlink(temporary.c_str());
  return error;
}

// A new link takes the place of whatever file has the name.
Error MakeLink(const StartRequest& request) {
  ORRERY_TRY(MakeParents(request.path));
  const std::string temporary = request.path + ".new-" + std::to_string(::getpid());
  if (::symlink(request.target.c_str(), temporary.c_str()) != 0) return LastError(request.path);
  if (::rename(temporary.c_str(), request.path.c_str()) == 0) return {};
  const Error error = LastError(request.path);
  ::unlink(temporary.c_str());
  return error;
}

// Folders with all that is in them, as deep as descriptors reach; links are not followed.
Error RemoveBelow(int parent, const char* name) {
  if (::unlinkat(parent, name, 0) == 0 || errno == ENOENT) return {};
  if (errno != EISDIR && errno != EPERM) return LastError(name);
  Descriptor folder(::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  DIR* stream = folder.valid() ? ::fdopendir(::dup(folder.get())) : nullptr;
  if (stream == nullptr) return LastError(name);
  Error error;
  while (const dirent* item = error ? nullptr : ::readdir(stream)) {
    const std::string_view entry = item->d_name;
    if (entry != "." && entry != "..") error = RemoveBelow(folder.get(), item->d_name);
  }
  ::closedir(stream);
  if (!error && ::unlinkat(parent, name, AT_REMOVEDIR) != 0) error = LastError(name);
  return error;
}

Error Describe(int folder, const char* path, FileEntry& entry) {
  struct stat info {};
  if (::fstatat(folder, path, &info, AT_SYMLINK_NOFOLLOW) != 0) return LastError(path);
  entry.name = path;
  entry.mode = info.st_mode;
  entry.uid = info.st_uid;
  entry.gid = info.st_gid;
  entry.size = static_cast<uint64_t>(info.st_size);
  entry.modified_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  if (S_ISLNK(info.st_mode)) {
    char target[4096];
    const ssize_t n = ::readlinkat(folder, path, target, sizeof(target));
    if (n > 0) entry.target.assign(target, static_cast<size_t>(n));
  }
  return {};
}

Error Emit(const FileEntry& entry) {
  Writer writer;
  writer.Put(Encode(entry));
  return WriteAll(1, writer.bytes().data(), writer.bytes().size());
}

Error StatFile(const StartRequest& request) {
  FileEntry entry;
  ORRERY_TRY(Describe(AT_FDCWD, request.path.c_str(), entry));
  return Emit(entry);
}

Error ListFolder(const StartRequest& request) {
  DIR* folder = ::opendir(request.path.c_str());
  if (folder == nullptr) return LastError(request.path);
  while (const dirent* item = ::readdir(folder)) {
    const std::string_view name = item->d_name;
    if (name == "." || name == "..") continue;
    FileEntry entry;
    // It may have gone since.
    if (Describe(::dirfd(folder), item->d_name, entry)) continue;
    if (!request.any_type && !S_ISREG(entry.mode) && !S_ISDIR(entry.mode) && !S_ISLNK(entry.mode)) {
      continue;
    }
    ORRERY_TRY(Emit(entry));
  }
  ::closedir(folder);
  return {};
}

}  // namespace

Error RunFileCommand(const StartRequest& request) {
  if (request.path.empty()) return {EINVAL, "no path is named"};
  switch (request.kind) {
    case CommandKind::kGet:
      return GetFile(request);
    case CommandKind::kPut:
      return PutFile(request);
    case CommandKind::kStat:
      return StatFile(request);
    case CommandKind::kList:
      return ListFolder(request);
    case CommandKind::kLink:
      return MakeLink(request);
    case CommandKind::kRemove:
      return RemoveBelow(AT_FDCWD, request.path.c_str());
    case CommandKind::kProgram:
      break;
  }
  return {EINVAL, "an unknown file operation"};
}

}  // namespace orrery::sandbox
