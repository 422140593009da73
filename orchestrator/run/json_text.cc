#include "orchestrator/run/json_text.h"

#include <rapidjson/error/en.h>

#include <array>
#include <charconv>
#include <cmath>
#include <system_error>

#include "orchestrator/base/status.h"
#include "orchestrator/base/utf8.h"

namespace orrery::run {
namespace {

void AppendEscape(std::string* out, unsigned code) {
  fmt::format_to(std::back_inserter(*out), "\\u{:04x}", code);
}

// Characters at the begin of `text` that stand for themselves in JSON: the common case, in one go.
size_t PlainPrefix(std::string_view text, bool for_html) {
  size_t i = 0;
  for (; i < text.size(); ++i) {
    const char c = text[i];
    if (static_cast<signed char>(c) < 0x20 || c == 0x7f || c == '"' || c == '\\') break;
    if (for_html && (c == '<' || c == '>' || c == '&')) break;
  }
  return i;
}

// U+2028 and U+2029 end a line in scripts, U+FFFE and U+FFFF are no part of any page; 0: another.
unsigned UnfitForHtml(std::string_view sequence) {
  if (sequence == "\xe2\x80\xa8") return 0x2028;
  if (sequence == "\xe2\x80\xa9") return 0x2029;
  if (sequence == "\xef\xbf\xbe") return 0xfffe;
  return sequence == "\xef\xbf\xbf" ? 0xffff : 0;
}

void AppendAscii(std::string* out, char c, bool for_html) {
  switch (c) {
    case '"':
      *out += "\\\"";
      return;
    case '\\':
      *out += "\\\\";
      return;
    case '\n':
      *out += "\\n";
      return;
    case '\r':
      *out += "\\r";
      return;
    case '\t':
      *out += "\\t";
      return;
    default:
      break;
  }
  const bool markup = for_html && (c == '<' || c == '>' || c == '&');
  if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f || markup) {
    AppendEscape(out, static_cast<unsigned char>(c));
  } else {
    *out += c;
  }
}

template <typename T>
void AppendShortest(std::string* out, T value) {
  std::array<char, 40> buffer;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  out->append(buffer.data(), end);
}

template <typename T>
void AppendFloating(std::string* out, T value) {
  if (!std::isfinite(value)) *out += '"';
  AppendShortest(out, value);
  if (!std::isfinite(value)) *out += '"';
}

template <typename T>
absl::StatusOr<T> ParseNumber(const rapidjson::Value& value, const char* kind) {
  if (!value.IsString()) return InvalidInput("expected {}, found another kind of value", kind);
  const char* begin = value.GetString();
  const char* end = begin + value.GetStringLength();
  T number{};
  const auto [stop, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || stop != end) {
    return InvalidInput(
        "expected {}, found '{}'", kind,
        ToValidUtf8(std::string_view(begin, value.GetStringLength()).substr(0, 40)));
  }
  return number;
}

constexpr std::string_view kBase64Alphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string ToValidUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8CharacterSize(text, i);
    out += length == 0 ? std::string_view("\xef\xbf\xbd") : text.substr(i, length);
    i += length == 0 ? 1 : length;
  }
  return out;
}

void AppendJsonString(std::string* out, std::string_view text, bool for_html) {
  *out += '"';
  for (size_t i = 0; i < text.size();) {
    const size_t plain = PlainPrefix(text.substr(i), for_html);
    if (plain > 0) {
      out->append(text.substr(i, plain));
      i += plain;
      continue;
    }
    const size_t length = Utf8CharacterSize(text, i);
    const std::string_view sequence = text.substr(i, length);
    if (length == 1) {
      AppendAscii(out, text[i], for_html);
    } else if (length == 0) {
      *out += "\xef\xbf\xbd";
    } else if (const unsigned code = for_html ? UnfitForHtml(sequence) : 0) {
      AppendEscape(out, code);
    } else {
      *out += sequence;
    }
    i += length == 0 ? 1 : length;
  }
  *out += '"';
}

void AppendJsonBytes(std::string* out, std::string_view bytes) {
  if (FindInvalidUtf8(bytes) == std::string_view::npos) return AppendJsonString(out, bytes);
  *out += "{\"text\":";
  AppendJsonString(out, bytes);
  *out += ",\"base64\":\"" + Base64(bytes) + "\"}";
}

void AppendJsonNumber(std::string* out, double value) { AppendFloating(out, value); }
void AppendJsonNumber(std::string* out, float value) { AppendFloating(out, value); }
void AppendJsonNumber(std::string* out, int64_t value) { AppendShortest(out, value); }
void AppendJsonNumber(std::string* out, uint64_t value) { AppendShortest(out, value); }

std::string Base64(std::string_view bytes) {
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t word = 0;
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    for (size_t j = 0; j < 3; ++j) {
      word = word << 8 | (j < count ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    }
    for (size_t j = 0; j < 4; ++j) {
      out += j <= count ? kBase64Alphabet[word >> (18 - 6 * j) & 63] : '=';
    }
  }
  return out;
}

absl::StatusOr<std::string> FromBase64(std::string_view text) {
  if (text.size() % 4 != 0) return InvalidInput("base64 of {} characters is cut off", text.size());
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  std::string out;
  uint32_t word = 0;
  int bits = 0;
  for (const char c : text) {
    const size_t digit = kBase64Alphabet.find(c);
    if (digit == std::string_view::npos) {
      return InvalidInput("base64 has a byte of value {}", static_cast<int>(c) & 255);
    }
    word = word << 6 | static_cast<uint32_t>(digit);
    bits += 6;
    if (bits >= 8) {
      bits -= 8;
      out += static_cast<char>(word >> bits & 255);
    }
  }
  return out;
}

absl::StatusOr<rapidjson::Document> ParseJsonLine(std::string_view line) {
  rapidjson::Document document;
  document.Parse<rapidjson::kParseNumbersAsStringsFlag | rapidjson::kParseIterativeFlag |
                 rapidjson::kParseValidateEncodingFlag>(line.data(), line.size());
  if (document.HasParseError()) {
    return InvalidInput("byte {}: not JSON: {}", document.GetErrorOffset() + 1,
                        rapidjson::GetParseError_En(document.GetParseError()));
  }
  return document;
}

absl::StatusOr<double> JsonDouble(const rapidjson::Value& value) {
  return ParseNumber<double>(value, "a number");
}

absl::StatusOr<float> JsonFloat(const rapidjson::Value& value) {
  return ParseNumber<float>(value, "a number");
}

absl::StatusOr<int64_t> JsonInt(const rapidjson::Value& value) {
  return ParseNumber<int64_t>(value, "a whole number");
}

absl::StatusOr<uint64_t> JsonUint(const rapidjson::Value& value) {
  return ParseNumber<uint64_t>(value, "a whole number of at least 0");
}

absl::StatusOr<bool> JsonBool(const rapidjson::Value& value) {
  if (!value.IsBool()) return InvalidInput("expected true or false, found another kind of value");
  return value.GetBool();
}

absl::StatusOr<std::string> JsonBytes(const rapidjson::Value& value) {
  if (value.IsString()) return std::string(value.GetString(), value.GetStringLength());
  if (!value.IsObject()) return InvalidInput("expected a text, found another kind of value");
  ASSIGN_OR_RETURN(const rapidjson::Value* base64, JsonMember(value, "base64"));
  if (!base64->IsString()) return InvalidInput("base64 is not a text");
  return FromBase64({base64->GetString(), base64->GetStringLength()});
}

absl::StatusOr<const rapidjson::Value*> JsonMember(const rapidjson::Value& object,
                                                   const char* name) {
  if (!object.IsObject()) return InvalidInput("expected an object with '{}'", name);
  const auto member = object.FindMember(name);
  if (member == object.MemberEnd()) return InvalidInput("'{}' is missing", name);
  return &member->value;
}

}  // namespace orrery::run
