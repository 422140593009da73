// Any bytes as a layer (tar, gzip, zstd): unpacked or refused, within its bounds, and nothing
// outside its folder is touched. Without root only the decoder and the tar reader are tried.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "sandbox/image/file_set.h"
#include "sandbox/image/settle.h"
#include "sandbox/image/tree_index.h"
#include "sandbox/image/unpack.h"

namespace {

using namespace orrery::sandbox;         // NOLINT
using namespace orrery::sandbox::image;  // NOLINT

// FOLDER/tree is where layers go; FOLDER/canary must stay, and nothing may join them.
std::string MakeFolder() {
  std::string folder = "/dev/shm/orrery-unpack-fuzz-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) std::abort();
  const Fd canary(::open((folder + "/canary").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  static std::string to_remove = folder;
  std::atexit([] { RemoveTree(to_remove).IgnoreError(); });
  return folder;
}

size_t EntriesIn(const std::string& folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string folder = MakeFolder();
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  UnpackOptions options;
  options.limits.max_bytes = 4 << 20;
  options.limits.max_image_bytes = 4 << 20;
  options.limits.max_entries = 300;
  options.threads = 1;
  IsImageArchive(ReadFrom(bytes), options.limits).IgnoreError();
  if (::geteuid() != 0) return 0;
  const std::string tree = folder + "/tree";
  if (::mkdir(tree.c_str(), 0755) != 0) std::abort();
  {
    const auto root = OpenFolder(tree);
    if (!root.ok()) std::abort();
    const auto facts = UnpackLayer(ReadFrom(bytes), root->get(), options);
    if (facts.ok() && SettleLayer(root->get(), {}, facts->tree).ok()) {
      const auto known = IndexTree(root->get(), &facts->tree.hashes);
      const auto read = IndexTree(root->get(), nullptr);
      if (!known.ok() || !read.ok() || known->text != read->text) std::abort();
    }
  }
  if (!RemoveTree(tree).ok() || EntriesIn(folder) != 1) std::abort();
  return 0;
}
