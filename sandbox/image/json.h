// JSON documents of images and of the store: read with every mistake as an error that says where,
// whatever the bytes are (nesting does not recurse), written by RapidJSON's writer.
#pragma once

#include <rapidjson/document.h>
#include <rapidjson/stringbuffer.h>
#include <rapidjson/writer.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace orrery::sandbox::image {

using JsonWriter = rapidjson::Writer<rapidjson::StringBuffer>;

// An object, or an array where `array`. `what` is for messages.
absl::StatusOr<rapidjson::Document> ParseJson(std::string_view text, const std::string& what,
                                              bool array = false);

// A member, or null where the object has none (or it is null, or `value` is no object).
const rapidjson::Value* Member(const rapidjson::Value& value, const char* name);
// Empty (0) where absent or of another type.
std::string StringOf(const rapidjson::Value& value, const char* name);
int64_t NumberOf(const rapidjson::Value& value, const char* name);
// The strings of an array; others in it are an error, absence is none.
absl::StatusOr<std::vector<std::string>> StringsOf(const rapidjson::Value& value, const char* name,
                                                   const std::string& what);

void WriteString(JsonWriter* json, const char* name, std::string_view value);
void WriteStrings(JsonWriter* json, const char* name, const std::vector<std::string>& values);

}  // namespace orrery::sandbox::image
