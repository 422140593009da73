// JSON as the run directory writes and reads it: compact, bytes equal for equal content, numbers in
// the shortest form that parses back to the same bits, and strings that are always valid UTF-8
// whatever a model wrote.
//
// A string that is not valid UTF-8 is written as {"text": shown, "base64": exact}: tools see the
// text with U+FFFD in it, our reader gets the bytes back.
#pragma once

#include <rapidjson/document.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orrery::run {

// Invalid bytes become U+FFFD, one each.
std::string ToValidUtf8(std::string_view text);

// "text" with quotes; invalid UTF-8 becomes U+FFFD. With `for_html`, the characters with which a
// <script> element could be left or a line ended (<, >, &, U+2028, U+2029), and U+FFFE and U+FFFF,
// are escaped too.
void AppendJsonString(std::string* out, std::string_view text, bool for_html = false);
// As AppendJsonString, or the object of above where `bytes` is not valid UTF-8.
void AppendJsonBytes(std::string* out, std::string_view bytes);

// Shortest form that std::from_chars reads back to the same value. What JSON has no number for is
// written as the strings "nan", "-nan", "inf", "-inf".
void AppendJsonNumber(std::string* out, double value);
void AppendJsonNumber(std::string* out, float value);
void AppendJsonNumber(std::string* out, int64_t value);
void AppendJsonNumber(std::string* out, uint64_t value);
inline void AppendJsonNumber(std::string* out, int32_t value) {
  AppendJsonNumber(out, static_cast<int64_t>(value));
}

std::string Base64(std::string_view bytes);
absl::StatusOr<std::string> FromBase64(std::string_view text);

// Parsed so that numbers keep their digits (they arrive as strings: a float read through a double
// could be rounded twice). Any depth of nesting is safe. The error says what is wrong and at which
// byte.
absl::StatusOr<rapidjson::Document> ParseJsonLine(std::string_view line);

// Values out of a document of ParseJsonLine; the error names the value and what was expected.
absl::StatusOr<double> JsonDouble(const rapidjson::Value& value);
absl::StatusOr<float> JsonFloat(const rapidjson::Value& value);
absl::StatusOr<int64_t> JsonInt(const rapidjson::Value& value);
absl::StatusOr<uint64_t> JsonUint(const rapidjson::Value& value);
absl::StatusOr<bool> JsonBool(const rapidjson::Value& value);
absl::StatusOr<std::string> JsonBytes(const rapidjson::Value& value);
// The member of an object; an error naming it where it is missing.
absl::StatusOr<const rapidjson::Value*> JsonMember(const rapidjson::Value& object,
                                                   const char* name);

}  // namespace orrery::run
