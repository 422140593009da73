// GgufCursor: reads a GGUF file from front to back and never past its end. Errors say where they
// are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "orchestrator/base/status.h"
#include "trainer/model/file_dtype.h"

namespace orrery::model {

class GgufCursor {
 public:
  // Both outlive the cursor.
  GgufCursor(std::string_view file, const std::string& path) : file_(file), path_(path) {}

  size_t position() const { return position_; }
  size_t remaining() const { return file_.size() - position_; }
  // What is being read, for messages: "key 'general.name'".
  void set_place(std::string place) { place_ = std::move(place); }

  absl::Status Error(std::string_view what) const {
    if (place_.empty()) return InvalidInput("{}: {}", path_, what);
    return InvalidInput("{}: {}: {}", path_, place_, what);
  }

  absl::StatusOr<std::string_view> Take(uint64_t size, std::string_view what) {
    if (size > remaining()) {
      return Error(
          fmt::format("the file ends within a {}: {} bytes wanted at {}, {} are left "
                      "(truncated: fetch it again)",
                      what, size, position_, remaining()));
    }
    const std::string_view taken = file_.substr(position_, size);
    position_ += size;
    return taken;
  }

  template <typename T>
  absl::StatusOr<T> Read(std::string_view what) {
    ASSIGN_OR_RETURN(const std::string_view bytes, Take(sizeof(T), what));
    return LoadLittle<T>(bytes.data());
  }

  absl::StatusOr<std::string_view> ReadString(std::string_view what) {
    ASSIGN_OR_RETURN(const uint64_t length, Read<uint64_t>(what));
    return Take(length, what);
  }

 private:
  std::string_view file_;
  const std::string& path_;
  std::string place_;
  size_t position_ = 0;
};

}  // namespace orrery::model
