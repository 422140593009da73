// Values to bytes and back, for the messages between host, launcher and init. Little-endian, fixed
// width; strings and lists carry a length of 32 bits. Shared with the static helper: no Abseil.
//
// A Reader never reads past its bytes and never reserves more memory than they could fill: the
// bytes may come from a process that was taken over. After the first mistake every value is zero
// and ok() is false.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace orrery::sandbox {

class Writer {
 public:
  template <typename T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void Put(T value) {
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    bytes_.append(bytes, sizeof(T));
  }
  void Put(std::string_view text) {
    Put(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
  }
  void Put(const std::string& text) { Put(std::string_view(text)); }
  template <typename T>
  void Put(const std::vector<T>& values) {
    Put(static_cast<uint32_t>(values.size()));
    for (const T& value : values) Put(value);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void Get(T& value) {
    value = T{};
    if (!Take(sizeof(T))) return;
    std::memcpy(&value, bytes_.data() + offset_ - sizeof(T), sizeof(T));
  }
  void Get(bool& value) {
    uint8_t byte = 0;
    Get(byte);
    value = byte != 0;
  }
  void Get(std::string& text) {
    uint32_t size = 0;
    Get(size);
    text.clear();
    if (Take(size)) text.assign(bytes_.substr(offset_ - size, size));
  }
  template <typename T>
  void Get(std::vector<T>& values) {
    uint32_t count = 0;
    Get(count);
    values.clear();
    // An element takes a byte at least, so a longer list is a lie.
    if (count > bytes_.size() - offset_) ok_ = false;
    for (uint32_t i = 0; ok_ && i < count; ++i) Get(values.emplace_back());
  }

  bool ok() const { return ok_; }
  // Everything was read, and nothing is left.
  bool done() const { return ok_ && offset_ == bytes_.size(); }

 private:
  bool Take(size_t size) {
    if (!ok_ || size > bytes_.size() - offset_) return ok_ = false;
    offset_ += size;
    return true;
  }

  std::string_view bytes_;
  size_t offset_ = 0;
  bool ok_ = true;
};

}  // namespace orrery::sandbox
