// A place in a JSON document that knows its path, so that every mistake in a tokenizer.json is told
// with its key and value: "pre_tokenizer.pretokenizers[1].behavior: 'Both' is not ...".
//
// Borrows the document, which must outlive it. Any thread may read.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rapidjson/document.h"

namespace orrery::rollout {

// Parses without recursion (no nesting overflows the stack) and checks UTF-8. Errors say where.
absl::Status ParseJson(std::string_view text, rapidjson::Document* document);

class JsonCursor {
 public:
  JsonCursor(const rapidjson::Value& value, std::string path)
      : value_(&value), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  const rapidjson::Value& value() const { return *value_; }
  bool is_null() const { return value_->IsNull(); }
  bool is_object() const { return value_->IsObject(); }
  bool is_string() const { return value_->IsString(); }

  // A member; an absent key gives a null. REQUIRES nothing: a cursor that is no object has none.
  JsonCursor operator[](const char* key) const;
  absl::StatusOr<std::vector<JsonCursor>> Elements() const;  // of an array

  absl::StatusOr<std::string> String() const;
  absl::StatusOr<std::string> StringOr(std::string_view fallback) const;  // for null
  absl::StatusOr<bool> Bool() const;
  absl::StatusOr<bool> BoolOr(bool fallback) const;
  absl::StatusOr<int64_t> IntBetween(int64_t least, int64_t most) const;
  // A string that is one of `choices`; its index.
  absl::StatusOr<int> Choice(std::initializer_list<std::string_view> choices) const;

  absl::Status RequireObject() const;

  // "PATH: found VALUE, expected WHAT", the value shortened.
  absl::Status Expected(std::string_view what) const;

 private:
  const rapidjson::Value* value_;
  std::string path_;
};

}  // namespace orrery::rollout
