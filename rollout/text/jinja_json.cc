#include "rollout/text/jinja_json.h"

#include <rapidjson/error/en.h>
#include <rapidjson/memorystream.h>
#include <rapidjson/reader.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "rollout/text/jinja_text.h"

namespace orrery::rollout::jinja {

namespace {

// Python's json module reads "1" as int and "1.0", "1e0" as float.
Value NumberFrom(std::string_view digits) {
  const char* end = digits.data() + digits.size();
  if (digits.find_first_of(".eE") == std::string_view::npos) {
    int64_t integer = 0;
    const auto parsed = std::from_chars(digits.data(), end, integer);
    return parsed.ec == std::errc() ? Value::Of(integer) : Value::OfDigits(std::string(digits));
  }
  double floating = 0;
  const auto parsed = std::from_chars(digits.data(), end, floating);
  if (parsed.ec == std::errc::result_out_of_range) {
    // Python rounds to infinity or zero; the sign of the exponent tells which.
    const bool tiny =
        digits.find("e-") != std::string_view::npos || digits.find("E-") != std::string_view::npos;
    floating = std::copysign(tiny ? 0.0 : HUGE_VAL, digits[0] == '-' ? -1.0 : 1.0);
  }
  return Value::Of(floating);
}

// Builds values from the events of RapidJSON's reader. An explicit stack, so that nesting is
// limited by kMaxValueDepth and not by the program's stack.
class Builder {
 public:
  bool Null() { return Add(Value::OfNone()); }
  bool Bool(bool value) { return Add(Value::Of(value)); }
  bool Int(int value) { return Add(Value::Of(int64_t{value})); }
  bool Uint(unsigned value) { return Add(Value::Of(int64_t{value})); }
  bool Int64(int64_t value) { return Add(Value::Of(value)); }
  bool Uint64(uint64_t value) { return Add(Value::OfDigits(fmt::to_string(value))); }
  bool Double(double value) { return Add(Value::Of(value)); }
  bool RawNumber(const char* digits, rapidjson::SizeType size, bool) {
    return Add(NumberFrom({digits, size}));
  }
  bool String(const char* text, rapidjson::SizeType size, bool) {
    return Add(Value::Of(std::string(text, size)));
  }
  bool Key(const char* text, rapidjson::SizeType size, bool) {
    levels_.back().key.assign(text, size);
    return true;
  }
  bool StartObject() { return Open(true); }
  bool StartArray() { return Open(false); }
  bool EndObject(rapidjson::SizeType) { return Close(); }
  bool EndArray(rapidjson::SizeType) { return Close(); }

  Value Take() { return std::move(root_); }

 private:
  struct Level {
    bool is_map = false;
    Map map;
    std::vector<Value> items;
    std::string key;
  };

  bool Open(bool is_map) {
    if (levels_.size() >= static_cast<size_t>(kMaxValueDepth)) return false;
    levels_.emplace_back().is_map = is_map;
    return true;
  }

  bool Close() {
    Level level = std::move(levels_.back());
    levels_.pop_back();
    auto value = level.is_map ? MakeMap(std::move(level.map)) : MakeList(std::move(level.items));
    return value.ok() && Add(*std::move(value));
  }

  bool Add(Value value) {
    if (levels_.empty()) {
      root_ = std::move(value);
    } else if (levels_.back().is_map) {
      levels_.back().map.Set(levels_.back().key, std::move(value));
    } else {
      levels_.back().items.push_back(std::move(value));
    }
    return true;
  }

  std::vector<Level> levels_;
  Value root_;
};

absl::Status JsonError(std::string_view what, std::string_view text, size_t offset,
                       std::string_view problem) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
  return InvalidInput("{}: line {}, column {}: {}", what, line, before.size() - line_start + 1,
                      problem);
}

}  // namespace

absl::StatusOr<Value> FromJson(std::string_view text, std::string_view what) {
  constexpr unsigned kFlags = rapidjson::kParseIterativeFlag |
                              rapidjson::kParseValidateEncodingFlag |
                              rapidjson::kParseNumbersAsStringsFlag;
  rapidjson::MemoryStream stream(text.data(), text.size());
  rapidjson::Reader reader;
  Builder builder;
  const rapidjson::ParseResult result = reader.Parse<kFlags>(stream, builder);
  if (result.IsError()) {
    const bool deep = result.Code() == rapidjson::kParseErrorTermination;
    return JsonError(what, text, result.Offset(),
                     deep ? fmt::format("nests deeper than {} levels", kMaxValueDepth)
                          : std::string(rapidjson::GetParseError_En(result.Code())));
  }
  if (stream.Tell() != text.size()) {
    return JsonError(what, text, stream.Tell(), "more after the end of the value");
  }
  return builder.Take();
}

namespace {

void AppendUnicodeEscape(uint32_t c, std::string& out) {
  if (c >= 0x10000) {
    fmt::format_to(std::back_inserter(out), "\\u{:04x}\\u{:04x}", 0xd800 + ((c - 0x10000) >> 10),
                   0xdc00 + ((c - 0x10000) & 0x3ff));
  } else {
    fmt::format_to(std::back_inserter(out), "\\u{:04x}", c);
  }
}

char ShortEscape(int32_t c) {
  switch (c) {
    case '"':
      return '"';
    case '\\':
      return '\\';
    case '\n':
      return 'n';
    case '\r':
      return 'r';
    case '\t':
      return 't';
    case '\f':
      return 'f';
    case '\b':
      return 'b';
    default:
      return 0;
  }
}

void AppendQuoted(std::string_view text, bool ensure_ascii, std::string& out) {
  out += '"';
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = DecodeAt(text, i);
    if (const char letter = ShortEscape(c.value)) {
      out += {'\\', letter};
    } else if ((c.value >= 0 && c.value < 0x20) || (ensure_ascii && c.value >= 0x7f)) {
      AppendUnicodeEscape(static_cast<uint32_t>(c.value), out);
    } else {
      out += text.substr(i, c.size);
    }
    i += c.size;
  }
  out += '"';
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  absl::Status Write(const Value& value) {
    RETURN_IF_ERROR(budget_.Step());
    const size_t before = out_.size();
    switch (value.kind()) {
      case Kind::kMap:
        return WriteMap(value.map());
      case Kind::kList:
        if (value.list().kind <= ListKind::kTuple) return WriteList(value.list());
        break;
      case Kind::kText:
        AppendQuoted(value.text(), style_.ensure_ascii, out_);
        break;
      default:
        break;
    }
    if (!value.Is(Kind::kText)) RETURN_IF_ERROR(WriteScalar(value));
    return budget_.Allocate(out_.size() - before);
  }

  std::string Take() { return std::move(out_); }

 private:
  absl::Status WriteScalar(const Value& value) {
    switch (value.kind()) {
      case Kind::kNone:
        out_ += "null";
        break;
      case Kind::kBool:
        out_ += value.boolean() ? "true" : "false";
        break;
      case Kind::kInteger:
        out_ += fmt::to_string(value.integer());
        break;
      case Kind::kBigInteger:
        out_ += value.digits();
        break;
      case Kind::kFloat:
        out_ += Float(value.floating());
        break;
      case Kind::kUndefined:
        return InvalidInput("cannot be written as JSON: {}", value.hint());
      default:
        return InvalidInput("a {} cannot be written as JSON", value.type_name());
    }
    return absl::OkStatus();
  }

  static std::string Float(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return ReprFloat(value);
  }

  absl::Status WriteList(const List& list) {
    if (list.items.empty()) return Append("[]");
    out_ += '[';
    ++level_;
    for (size_t i = 0; i < list.items.size(); ++i) {
      RETURN_IF_ERROR(Separate(i == 0));
      RETURN_IF_ERROR(Write(list.items[i]));
    }
    return End(']');
  }

  absl::Status WriteMap(const Map& map) {
    if (map.size() == 0) return Append("{}");
    out_ += '{';
    ++level_;
    ASSIGN_OR_RETURN(const std::vector<const Map::Entry*> entries, Ordered(map));
    for (size_t i = 0; i < entries.size(); ++i) {
      RETURN_IF_ERROR(Separate(i == 0));
      RETURN_IF_ERROR(WriteKey(entries[i]->first));
      RETURN_IF_ERROR(Append(style_.key_separator));
      RETURN_IF_ERROR(Write(entries[i]->second));
    }
    return End('}');
  }

  absl::StatusOr<std::vector<const Map::Entry*>> Ordered(const Map& map) const {
    std::vector<const Map::Entry*> entries;
    for (const Map::Entry& entry : map.entries()) {
      if (style_.sort_keys && !entry.first.Is(Kind::kText)) {
        return InvalidInput("sort_keys sorts texts, a key is a {}", entry.first.type_name());
      }
      entries.push_back(&entry);
    }
    if (style_.sort_keys) {
      std::sort(entries.begin(), entries.end(), [](const Map::Entry* a, const Map::Entry* b) {
        return a->first.text() < b->first.text();
      });
    }
    return entries;
  }

  // Keys are texts in JSON: True becomes "true", 1 becomes "1".
  absl::Status WriteKey(const Value& key) {
    if (key.Is(Kind::kText)) return Write(key);
    out_ += '"';
    RETURN_IF_ERROR(WriteScalar(key));
    out_ += '"';
    return absl::OkStatus();
  }

  absl::Status Separate(bool first) {
    if (!first) RETURN_IF_ERROR(Append(style_.item_separator));
    return NewLine();
  }

  absl::Status End(char bracket) {
    --level_;
    RETURN_IF_ERROR(NewLine());
    out_ += bracket;
    return absl::OkStatus();
  }

  absl::Status NewLine() {
    if (!style_.indent) return absl::OkStatus();
    RETURN_IF_ERROR(budget_.Allocate(1 + style_.indent->size() * static_cast<size_t>(level_)));
    out_ += '\n';
    for (int i = 0; i < level_; ++i) out_ += *style_.indent;
    return absl::OkStatus();
  }

  absl::Status Append(std::string_view text) {
    out_ += text;
    return budget_.Allocate(text.size());
  }

  const JsonStyle& style_;
  Budget& budget_;
  std::string out_;
  int level_ = 0;
};

}  // namespace

absl::StatusOr<std::string> ToJson(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter writer(style, budget);
  RETURN_IF_ERROR(writer.Write(value));
  return writer.Take();
}

}  // namespace orrery::rollout::jinja
