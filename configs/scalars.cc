#include "configs/scalars.h"

#include <charconv>
#include <cmath>
#include <string_view>
#include <system_error>

#include "orchestrator/base/status.h"
#include "orchestrator/base/utf8.h"

namespace orrery::configs {
namespace {

// `wanted` is "a text", "true or false" and so on.
absl::Status CheckScalar(const YamlNode& node, std::string_view wanted) {
  if (!node.tag.empty()) {
    return InvalidInput("the tag '{}' is not used here; remove it", ShortenUtf8(node.tag, 60));
  }
  if (node.kind == YamlNode::Kind::kNull) {
    return InvalidInput("has no value; write {}, or remove the line", wanted);
  }
  if (node.kind != YamlNode::Kind::kScalar) {
    const bool argument = node.place.line == 0;
    return InvalidInput("is {}, should be {}{}", node.Describe(), wanted,
                        argument ? "; put text that YAML would take apart in quotes: "
                                   "--set 'key=\"a: b\"'"
                                 : "");
  }
  return absl::OkStatus();
}

// Numbers and truth values stand without quotes.
absl::Status CheckPlain(const YamlNode& node, std::string_view wanted) {
  RETURN_IF_ERROR(CheckScalar(node, wanted));
  if (!node.quoted) return absl::OkStatus();
  if (node.text.empty()) return InvalidInput("is empty, should be {}", wanted);
  return InvalidInput("{} is a text in quotes, should be {}; remove the quotes", node.Describe(),
                      wanted);
}

bool IsDigits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string_view WithoutSign(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  return text;
}

// [sign] digits [. digits] [e [sign] digits], with a digit on either side of the point.
bool IsDecimal(std::string_view text) {
  text = WithoutSign(text);
  const size_t exponent = text.find_first_of("eE");
  if (exponent != std::string_view::npos) {
    if (!IsDigits(WithoutSign(text.substr(exponent + 1)))) return false;
    text = text.substr(0, exponent);
  }
  const size_t point = text.find('.');
  if (point == std::string_view::npos) return IsDigits(text);
  const std::string_view whole = text.substr(0, point);
  const std::string_view fraction = text.substr(point + 1);
  return (IsDigits(whole) || IsDigits(fraction)) && (whole.empty() || IsDigits(whole)) &&
         (fraction.empty() || IsDigits(fraction));
}

// YAML 1.1 reads 010 as 8, YAML 1.2 as 10: neither is what everybody expects.
bool LooksOctal(std::string_view text) {
  text = WithoutSign(text);
  return text.size() > 1 && text[0] == '0' && IsDigits(text);
}

absl::Status LeadingZero(const YamlNode& node) {
  return InvalidInput("{} begins with a zero, which some read as octal; write it without",
                      node.Describe());
}

absl::StatusOr<double> ParseDecimal(const YamlNode& node) {
  std::string_view text = node.text;
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) {
    return InvalidInput("{} does not fit a 64-bit floating-point number", node.Describe());
  }
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return InvalidInput("{} is not a number", node.Describe());
  }
  return value;
}

// The fix for a whole number written in another way: 1e3, 4096.0, 1_000.
std::string WholeNumberFix(const YamlNode& node) {
  std::string digits;
  for (const char c : node.text) {
    if (c != '_' && c != ',') digits += c;
  }
  YamlNode plain = node;
  plain.text = digits;
  if (!IsDecimal(digits)) return "";
  const absl::StatusOr<double> value = ParseDecimal(plain);
  if (!value.ok() || *value != std::floor(*value) || std::abs(*value) > 1e15) return "";
  return fmt::format("; write {}", static_cast<int64_t>(*value));
}

}  // namespace

absl::StatusOr<std::string> ReadText(const YamlNode& node) {
  RETURN_IF_ERROR(CheckScalar(node, "a text (\"\" for an empty one)"));
  return node.text;
}

absl::StatusOr<bool> ReadBool(const YamlNode& node) {
  constexpr std::string_view kWanted = "true or false";
  RETURN_IF_ERROR(CheckPlain(node, kWanted));
  if (node.text == "true" || node.text == "True" || node.text == "TRUE") return true;
  if (node.text == "false" || node.text == "False" || node.text == "FALSE") return false;
  return InvalidInput("{} should be {}", node.Describe(), kWanted);
}

absl::StatusOr<int64_t> ReadInteger(const YamlNode& node) {
  constexpr std::string_view kWanted = "a whole number";
  RETURN_IF_ERROR(CheckPlain(node, kWanted));
  if (LooksOctal(node.text)) return LeadingZero(node);
  if (!IsDigits(WithoutSign(node.text))) {
    return InvalidInput("{} should be {}{}", node.Describe(), kWanted, WholeNumberFix(node));
  }
  std::string_view text = node.text;
  if (text.starts_with('+')) text.remove_prefix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return InvalidInput("{} does not fit a 64-bit whole number", node.Describe());
  }
  return value;
}

absl::StatusOr<double> ReadNumber(const YamlNode& node) {
  constexpr std::string_view kWanted = "a number";
  RETURN_IF_ERROR(CheckPlain(node, kWanted));
  if (LooksOctal(node.text)) return LeadingZero(node);
  if (!IsDecimal(node.text)) {
    return InvalidInput("{} should be {}, finite and decimal, like 0.5 or 1e-6", node.Describe(),
                        kWanted);
  }
  return ParseDecimal(node);
}

}  // namespace orrery::configs
