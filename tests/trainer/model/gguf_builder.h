// Builds GGUF files byte by byte, right ones and wrong ones.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/model/gguf.h"

namespace orrery::model {

class GgufBuilder {
 public:
  uint32_t version = 3;
  size_t alignment = 32;
  int64_t extra_keys = 0;     // added to the stated number of keys
  int64_t extra_tensors = 0;  // added to the stated number of tensors

  template <typename T>
  static std::string Raw(T value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
  }
  static std::string Text(std::string_view text) {
    return Raw<uint64_t>(text.size()) + std::string(text);
  }

  GgufBuilder& Key(std::string_view name, uint32_t type, const std::string& value) {
    keys_.push_back(Text(name) + Raw(type) + value);
    return *this;
  }
  GgufBuilder& Str(std::string_view name, std::string_view text) {
    return Key(name, 8, Text(text));
  }
  GgufBuilder& U32(std::string_view name, uint32_t value) { return Key(name, 4, Raw(value)); }
  GgufBuilder& F32(std::string_view name, float value) { return Key(name, 6, Raw(value)); }
  GgufBuilder& Bool(std::string_view name, bool value) { return Key(name, 7, Raw(value)); }
  GgufBuilder& Strings(std::string_view name, const std::vector<std::string>& texts) {
    std::string value = Raw<uint32_t>(8) + Raw<uint64_t>(texts.size());
    for (const std::string& text : texts) value += Text(text);
    return Key(name, 9, value);
  }
  GgufBuilder& Ints(std::string_view name, const std::vector<int32_t>& numbers) {
    std::string value = Raw<uint32_t>(5) + Raw<uint64_t>(numbers.size());
    for (const int32_t number : numbers) value += Raw(number);
    return Key(name, 9, value);
  }
  GgufBuilder& Floats(std::string_view name, const std::vector<float>& numbers) {
    std::string value = Raw<uint32_t>(6) + Raw<uint64_t>(numbers.size());
    for (const float number : numbers) value += Raw(number);
    return Key(name, 9, value);
  }

  // `dims` with the fastest first, as in the file; the offset is that of the data given.
  GgufBuilder& Tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                      const std::string& data) {
    const uint64_t offset = data_.size();
    data_ += data;
    while (data_.size() % alignment != 0) data_ += '\0';
    return TensorAt(name, dims, type, offset);
  }
  GgufBuilder& TensorAt(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                        uint64_t offset) {
    std::string info = Text(name) + Raw(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) info += Raw(dim);
    tensors_.push_back(info + Raw(type) + Raw(offset));
    return *this;
  }
  // A float32 tensor, shape with the slowest first, filled with `value`.
  GgufBuilder& Fill(std::string_view name, const std::vector<int64_t>& shape, float value) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    std::string data;
    for (int64_t i = 0; i < count; ++i) data += Raw(value);
    return Tensor(name, {shape.rbegin(), shape.rend()}, 0, data);
  }

  std::string Build() const {
    std::string file = "GGUF" + Raw(version) +
                       Raw<uint64_t>(tensors_.size() + static_cast<uint64_t>(extra_tensors)) +
                       Raw<uint64_t>(keys_.size() + static_cast<uint64_t>(extra_keys));
    for (const std::string& key : keys_) file += key;
    for (const std::string& tensor : tensors_) file += tensor;
    while (file.size() % alignment != 0) file += '\0';
    return file + data_;
  }

 private:
  std::vector<std::string> keys_;
  std::vector<std::string> tensors_;
  std::string data_;
};

}  // namespace orrery::model
