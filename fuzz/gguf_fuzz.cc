// Any bytes as a GGUF file: parsed or refused; what is accepted is dequantised, and goes through
// the import's configuration, tokenizer and tensor plan.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/model/gguf.h"
#include "trainer/model/import_gguf_parts.h"

namespace {

using namespace orrery::model;

// The importer takes files by name; this one lives in memory.
void Import(const uint8_t* data, size_t size) {
  const int fd = ::memfd_create("fuzz.gguf", MFD_CLOEXEC);
  if (fd < 0 || ::write(fd, data, size) != static_cast<ssize_t>(size)) std::abort();
  const auto file = GgufFile::Open("/proc/self/fd/" + std::to_string(fd));
  ::close(fd);
  if (!file.ok()) return;
  TokenizerFromGguf(**file).status().IgnoreError();
  const auto config = ConfigFromGguf(**file);
  if (!config.ok()) return;
  const auto sources = TensorsFromGguf(**file, *config, FileDtype::kBF16);
  if (!sources.ok()) return;
  for (const TensorSource& source : *sources) {
    source.write([](std::span<const std::byte>) { return absl::OkStatus(); }).IgnoreError();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto content = orrery::model::ParseGguf(
      std::string_view(reinterpret_cast<const char*>(data), size), "fuzz.gguf");
  if (!content.ok()) return 0;
  for (const GgufTensor& tensor : content->tensors) {
    std::vector<float> row(static_cast<size_t>(tensor.row_size()));
    for (int64_t i = 0; i < tensor.num_rows(); ++i) DequantizeRow(tensor, i, row);
  }
  Import(data, size);
  return 0;
}
