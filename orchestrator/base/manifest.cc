#include "orchestrator/base/manifest.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <map>

#include "orchestrator/base/checksum.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

constexpr char kOpenFile[] = ".checksums";

std::string Header() {
  return fmt::format(
      "# checksum, bytes and name of every file; the checksum: XXH3-64 of the XXH3-64s of its "
      "pieces of {} bytes\n",
      kChecksumPieceBytes);
}

std::string Line(const ManifestEntry& entry) {
  return fmt::format("{} {} {}\n", ChecksumText(entry.checksum), entry.bytes, entry.name);
}

// Without its newline.
std::optional<ManifestEntry> ParseLine(std::string_view line) {
  ManifestEntry entry;
  const auto number = [&line](uint64_t* value, int base) {
    const size_t length = line.find(' ');
    if (length == std::string_view::npos) return false;
    const auto [end, error] = std::from_chars(line.data(), line.data() + length, *value, base);
    const bool whole = error == std::errc() && end == line.data() + length;
    line.remove_prefix(length + 1);
    return whole;
  };
  if (!number(&entry.checksum, 16) || !number(&entry.bytes, 10) || line.empty()) {
    return std::nullopt;
  }
  entry.name = line;
  return entry;
}

// Of whole lines; nothing where one of them is not an entry's.
std::optional<Manifest> ParseLines(std::string_view lines) {
  Manifest entries;
  for (size_t begin = 0, end; (end = lines.find('\n', begin)) != std::string_view::npos;
       begin = end + 1) {
    const std::optional<ManifestEntry> entry = ParseLine(lines.substr(begin, end - begin));
    if (!entry) return std::nullopt;
    entries.push_back(*entry);
  }
  return entries;
}

std::string PathOf(const std::string& folder, std::string_view name) {
  return fmt::format("{}/{}", folder, name);
}

// Names of the regular files below, without the manifest's own, sorted.
absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    if (!it->is_regular_file(error)) continue;
    names.push_back(fs::path(it->path()).lexically_relative(folder).string());
  }
  if (error) return ErrnoStatus("cannot list", folder, error.value());
  std::erase_if(names, [](const auto& name) { return name == kOpenFile || name == kManifestFile; });
  std::sort(names.begin(), names.end());
  return names;
}

// What was noted so far; a file that was written again counts as it was written last.
absl::StatusOr<std::map<std::string, ManifestEntry>> ReadNotes(const std::string& folder) {
  const std::string path = PathOf(folder, kOpenFile);
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const std::optional<Manifest> entries = ParseLines(text);
  if (!entries) return Failed("{}: a line of it is not one of ours", path);
  std::map<std::string, ManifestEntry> notes;
  for (const ManifestEntry& entry : *entries) notes[entry.name] = entry;
  return notes;
}

absl::Status CheckSize(const std::string& path, uint64_t expected) {
  std::error_code error;
  const uint64_t found = fs::file_size(path, error);
  if (error == std::errc::no_such_file_or_directory) {
    return InvalidInput("{}: is missing, {} names it", path, kManifestFile);
  }
  if (error) return ErrnoStatus("cannot find the size of", path, error.value());
  if (found == expected) return absl::OkStatus();
  return InvalidInput("{}: has {} bytes, {} says {}: it was cut or exchanged", path, found,
                      kManifestFile, expected);
}

absl::Status CheckSum(const std::string& path, uint64_t found, uint64_t expected) {
  if (found == expected) return absl::OkStatus();
  return InvalidInput("{}: is damaged: its checksum is {}, {} says {}", path, ChecksumText(found),
                      kManifestFile, ChecksumText(expected));
}

absl::Status BadManifest(const std::string& path, std::string_view why) {
  return InvalidInput("{}: is damaged: {}", path, why);
}

}  // namespace

absl::Status BeginManifest(const std::string& folder) {
  return WriteFileAtomically(PathOf(folder, kOpenFile), "");
}

bool KeepsManifest(const std::string& file) {
  std::error_code error;
  return fs::exists(fs::path(file).parent_path() / kOpenFile, error);
}

absl::Status NoteChecksum(const std::string& file, uint64_t bytes, uint64_t checksum) {
  const fs::path path(file);
  const std::string notes = (path.parent_path() / kOpenFile).string();
  const int fd = ::open(notes.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT ? absl::OkStatus() : ErrnoStatus("cannot open", notes, errno);
  const std::string line = Line({path.filename().string(), bytes, checksum});
  const ssize_t written = ::write(fd, line.data(), line.size());
  const int error_number = errno;
  ::close(fd);
  if (written == static_cast<ssize_t>(line.size())) return absl::OkStatus();
  return ErrnoStatus("cannot write", notes, written < 0 ? error_number : ENOSPC);
}

absl::Status FinishManifest(const std::string& folder) {
  ASSIGN_OR_RETURN(auto entries, ReadNotes(folder));
  ASSIGN_OR_RETURN(const std::vector<std::string> names, FilesOf(folder));
  std::vector<std::string> unread, paths;
  for (const std::string& name : names) {
    const auto note = entries.find(name);
    if (note != entries.end()) {
      RETURN_IF_ERROR(CheckSize(PathOf(folder, name), note->second.bytes));
    } else {
      unread.push_back(name);
      paths.push_back(PathOf(folder, name));
    }
  }
  ASSIGN_OR_RETURN(const std::vector<FileChecksum> read, ChecksumsOfFiles(paths));
  for (size_t i = 0; i < unread.size(); ++i) {
    entries[unread[i]] = {unread[i], read[i].bytes, read[i].checksum};
  }
  std::string text = Header();
  for (const std::string& name : names) text += Line(entries[name]);
  text += Line({kManifestFile, text.size(), ChecksumOf(text)});
  RETURN_IF_ERROR(WriteFileAtomically(PathOf(folder, kManifestFile), text));
  std::error_code error;
  fs::remove(PathOf(folder, kOpenFile), error);
  if (error) return ErrnoStatus("cannot remove", PathOf(folder, kOpenFile), error.value());
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Manifest>> ReadManifest(const std::string& folder) {
  const std::string path = PathOf(folder, kManifestFile);
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (absl::IsNotFound(text.status())) return std::nullopt;
  RETURN_IF_ERROR(text.status());
  // The last line first: what it answers for is then as it was written.
  const std::string_view whole(*text);
  if (!whole.ends_with('\n')) return BadManifest(path, "its last line has no end");
  const size_t last = whole.rfind('\n', whole.size() - 2) + 1;  // 0 where there is one line alone
  const uint64_t found = ChecksumOf(whole.substr(0, last));
  const std::string expected = Line({kManifestFile, last, found});
  if (whole.substr(last) != expected) {
    return BadManifest(path,
                       fmt::format("its last line is not \"{}\", the checksum of the {} bytes "
                                   "of lines above it",
                                   expected.substr(0, expected.size() - 1), last));
  }
  if (!whole.starts_with(Header())) {
    return InvalidInput("{}: its first line is of another version of the program", path);
  }
  std::optional<Manifest> manifest =
      ParseLines(whole.substr(Header().size(), last - Header().size()));
  if (!manifest) return BadManifest(path, "a line is not checksum, bytes and name");
  return manifest;
}

absl::Status CheckFiles(const std::string& folder, const Manifest& manifest) {
  std::vector<std::string> paths;
  for (const ManifestEntry& entry : manifest) {  // what costs nothing, for all of them, first
    paths.push_back(PathOf(folder, entry.name));
    RETURN_IF_ERROR(CheckSize(paths.back(), entry.bytes));
  }
  ASSIGN_OR_RETURN(const std::vector<FileChecksum> found, ChecksumsOfFiles(paths));
  for (size_t i = 0; i < paths.size(); ++i) {
    RETURN_IF_ERROR(CheckSum(paths[i], found[i].checksum, manifest[i].checksum));
  }
  return absl::OkStatus();
}

}  // namespace orrery
