// JsonWriter: RapidJSON's writer with std::string_view keys and texts, and one call for a key with
// its value. The caller keeps objects and arrays balanced.
#pragma once

#include <fmt/format.h>
#include <rapidjson/prettywriter.h>
#include <rapidjson/stringbuffer.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace orrery::model {

class JsonWriter {
 public:
  explicit JsonWriter(bool pretty = false) : writer_(buffer_) {
    writer_.SetIndent(' ', pretty ? 2 : 0);
    if (!pretty) writer_.SetFormatOptions(rapidjson::kFormatSingleLineArray);
  }

  void StartObject() { writer_.StartObject(); }
  void EndObject() { writer_.EndObject(); }
  void StartArray() { writer_.StartArray(); }
  void EndArray() { writer_.EndArray(); }
  void Key(std::string_view key) { writer_.Key(key.data(), Size(key)); }
  void Null() { writer_.Null(); }

  void Value(std::string_view text) { writer_.String(text.data(), Size(text)); }
  void Value(const std::string& text) { Value(std::string_view(text)); }
  void Value(const char* text) { Value(std::string_view(text)); }
  void Value(bool value) { writer_.Bool(value); }
  void Value(int64_t value) { writer_.Int64(value); }
  void Value(uint64_t value) { writer_.Uint64(value); }
  void Value(int value) { writer_.Int(value); }
  // The shortest text that reads back as the same float32: 1e-05 and not 9.999999747378752e-06.
  void Value(float value) {
    const std::string text = FloatText(value);
    writer_.RawValue(text.data(), text.size(), rapidjson::kNumberType);
  }

  template <typename T>
  void Field(std::string_view key, const T& value) {
    Key(key);
    Value(value);
  }
  void NullField(std::string_view key) {
    Key(key);
    Null();
  }
  void Object(std::string_view key) {
    Key(key);
    StartObject();
  }
  void Array(std::string_view key) {
    Key(key);
    StartArray();
  }

  std::string text() const { return {buffer_.GetString(), buffer_.GetSize()}; }

 private:
  static rapidjson::SizeType Size(std::string_view text) {
    return static_cast<rapidjson::SizeType>(text.size());
  }
  static std::string FloatText(float value);

  rapidjson::StringBuffer buffer_;
  rapidjson::PrettyWriter<rapidjson::StringBuffer> writer_;
};

// REQUIRES: finite; JSON has no other numbers.
inline std::string JsonWriter::FloatText(float value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace orrery::model
