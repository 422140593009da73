// Any bytes as a safetensors file: parsed or refused, and what is accepted can be read to the last
// byte.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "trainer/model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto header = orrery::model::ParseSafetensors(
      std::string_view(reinterpret_cast<const char*>(data), size), "fuzz.safetensors");
  if (!header.ok()) return 0;
  size_t total = 0;
  unsigned sum = 0;
  for (const std::string& name : header->names) {
    const orrery::model::FileTensor& tensor = header->tensors.at(name);
    total += tensor.data.size();
    for (const std::byte byte : tensor.data) sum += std::to_integer<unsigned>(byte);
    std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
    orrery::model::ToFloat32(tensor, values).IgnoreError();
  }
  if (total > size || sum == 1u << 31) std::abort();
  return 0;
}
