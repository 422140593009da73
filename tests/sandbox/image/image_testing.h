// For tests of the image store: scratch folders, tars made byte by byte (so that they may lie),
// other programs.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"
#include "sandbox/image/image.h"
#include "sandbox/image/tree.h"

namespace orrery::sandbox::image {

// On a disk, not in memory: /tmp may be a tmpfs, which has no user.* attributes. ORRERY_TEST_DISK
// names another place.
class TempFolder {
 public:
  TempFolder() {
    const char* disk = std::getenv("ORRERY_TEST_DISK");
    path_ = std::string(disk != nullptr ? disk : "/var/tmp") + "/orrery-image-XXXXXX";
    CHECK(::mkdtemp(path_.data()) != nullptr) << path_;
  }
  ~TempFolder() { RemoveTree(path_).IgnoreError(); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

#define SKIP_UNLESS_ROOT() \
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: owners, whiteouts, trusted attributes"

inline void WriteText(const std::string& path, std::string_view text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

struct ShellResult {
  int code = -1;
  std::string output;  // both streams
};

inline ShellResult Shell(const std::string& command) {
  FILE* pipe = ::popen(("{ " + command + "\n} 2>&1").c_str(), "r");
  CHECK(pipe != nullptr);
  ShellResult result;
  char buffer[4096];
  while (const size_t size = std::fread(buffer, 1, sizeof buffer, pipe)) {
    result.output.append(buffer, size);
  }
  const int status = ::pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

inline bool HaveTool(const std::string& name) { return Shell("command -v " + name).code == 0; }

#define SKIP_WITHOUT(tool) \
  if (!HaveTool(tool)) GTEST_SKIP() << tool << " is not installed: ./orrery setup --tests"

// A ustar archive; each method adds an entry. Pax records given before an entry belong to it.
class Tar {
 public:
  struct Options {
    char type = '0';
    std::string link;
    unsigned mode = 0644;
    uint64_t uid = 0, gid = 0, mtime = 1'000'000'000;
    unsigned major = 0, minor = 0;
    int64_t size = -1;  // -1: the content's
  };

  Tar& File(const std::string& name, std::string_view content, unsigned mode = 0644) {
    return Add(name, content, {.type = '0', .mode = mode});
  }
  Tar& Folder(const std::string& name, unsigned mode = 0755) {
    return Add(name, "", {.type = '5', .mode = mode});
  }
  Tar& Link(const std::string& name, const std::string& target) {
    return Add(name, "", {.type = '2', .link = target, .mode = 0777});
  }
  Tar& HardLink(const std::string& name, const std::string& target) {
    return Add(name, "", {.type = '1', .link = target});
  }
  Tar& Device(const std::string& name, unsigned major, unsigned minor, char type = '3') {
    return Add(name, "", {.type = type, .major = major, .minor = minor});
  }
  Tar& Xattr(const std::string& name, std::string_view value) {
    return Pax("SCHILY.xattr." + name, value);
  }
  Tar& Pax(const std::string& name, std::string_view value) {
    const std::string body = " " + name + "=" + std::string(value) + "\n";
    size_t length = body.size();
    while (std::to_string(length).size() + body.size() != length) {
      length = std::to_string(length).size() + body.size();
    }
    pax_ += std::to_string(length) + body;
    return *this;
  }
  Tar& Add(const std::string& name, std::string_view content, const Options& options) {
    if (!pax_.empty()) {
      const std::string records = std::exchange(pax_, "");
      AddRaw("pax", records, {.type = 'x'});
    }
    return AddRaw(name, content, options);
  }
  std::string Finish() const { return bytes_ + std::string(1024, '\0'); }
  std::string Bytes() const { return bytes_; }

 private:
  // Digits and a zero byte fill the field.
  static void Octal(char* field, size_t width, uint64_t value) {
    field[width - 1] = '\0';
    for (size_t i = width - 1; i-- > 0; value /= 8) field[i] = static_cast<char>('0' + value % 8);
  }

  Tar& AddRaw(const std::string& name, std::string_view content, const Options& options) {
    CHECK(name.size() <= 100 && options.link.size() <= 100) << name;
    char header[512] = {};
    std::memcpy(header, name.data(), name.size());
    Octal(header + 100, 8, options.mode);
    Octal(header + 108, 8, options.uid);
    Octal(header + 116, 8, options.gid);
    Octal(header + 124, 12,
          options.size >= 0 ? static_cast<uint64_t>(options.size) : content.size());
    Octal(header + 136, 12, options.mtime);
    std::memset(header + 148, ' ', 8);
    header[156] = options.type;
    std::memcpy(header + 157, options.link.data(), options.link.size());
    std::memcpy(header + 257,
                "ustar\0"
                "00",
                8);
    Octal(header + 329, 8, options.major);
    Octal(header + 337, 8, options.minor);
    unsigned sum = 0;
    for (const char c : header) sum += static_cast<unsigned char>(c);
    Octal(header + 148, 7, sum);
    bytes_.append(header, sizeof header);
    bytes_ += content;
    bytes_.append((512 - content.size() % 512) % 512, '\0');
    return *this;
  }

  std::string bytes_, pax_;
};

inline std::string Gzip(std::string_view data, int level = 6) {
  z_stream stream = {};
  CHECK(deflateInit2(&stream, level, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&stream, data.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
  stream.avail_in = static_cast<uInt>(data.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline std::string Zstd(std::string_view data) {
  std::string out(ZSTD_compressBound(data.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), data.data(), data.size(), 3));
  return out;
}

inline bool Exists(const std::string& path) {
  struct stat status;
  return ::lstat(path.c_str(), &status) == 0;
}

inline struct stat StatOf(const std::string& path) {
  struct stat status = {};
  EXPECT_EQ(::lstat(path.c_str(), &status), 0) << path;
  return status;
}

inline std::unique_ptr<ImageStore> OpenStore(const std::string& root) {
  auto store = ImageStore::Open(root);
  CHECK(store.ok()) << store.status().ToString();
  return *std::move(store);
}

inline void ExpectVerified(const ImageStore& store) {
  const auto report = store.Verify();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->problems, testing::IsEmpty());
}

// Every entry below a folder: type, mode, owner, size, time, link or content hash, attributes.
inline std::string Listing(const std::string& folder) {
  return Shell("cd '" + folder +
               "' && find . -mindepth 1 -printf '%y %m %U %G %T@ %n %p %l\\n' | sort -k7 && "
               "find . -type f -print0 | sort -z | xargs -0 -r sha256sum")
      .output;
}

}  // namespace orrery::sandbox::image
