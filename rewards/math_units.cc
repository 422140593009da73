#include "rewards/math_units.h"

#include <array>
#include <string_view>
#include <utility>

#include "rewards/text.h"

namespace orrery::rewards {
namespace {

constexpr auto kUnits = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"cm", "cm"},           {"centimeter", "cm"}, {"centimetre", "cm"}, {"mm", "mm"},
    {"millimeter", "mm"},   {"m", "m"},           {"meter", "m"},       {"metre", "m"},
    {"km", "km"},           {"kilometer", "km"},  {"kilometre", "km"},  {"in", "inch"},
    {"inch", "inch"},       {"inche", "inch"},    {"ft", "foot"},       {"foot", "foot"},
    {"feet", "foot"},       {"yd", "yard"},       {"yard", "yard"},     {"mi", "mile"},
    {"mile", "mile"},       {"mph", "mile/hour"}, {"kph", "km/hour"},   {"kmh", "km/hour"},
    {"sec", "second"},      {"second", "second"}, {"s", "second"},      {"min", "minute"},
    {"minute", "minute"},   {"h", "hour"},        {"hr", "hour"},       {"hour", "hour"},
    {"day", "day"},         {"week", "week"},     {"month", "month"},   {"year", "year"},
    {"g", "gram"},          {"gram", "gram"},     {"kg", "kg"},         {"kilogram", "kg"},
    {"mg", "mg"},           {"lb", "pound"},      {"pound", "pound"},   {"oz", "ounce"},
    {"ounce", "ounce"},     {"ton", "ton"},       {"l", "liter"},       {"liter", "liter"},
    {"litre", "liter"},     {"ml", "ml"},         {"milliliter", "ml"}, {"gallon", "gallon"},
    {"quart", "quart"},     {"pint", "pint"},     {"cup", "cup"},       {"dollar", "dollar"},
    {"usd", "dollar"},      {"cent", "cent"},     {"penny", "cent"},    {"pennie", "cent"},
    {"degree", "degree"},   {"deg", "degree"},    {"radian", "radian"}, {"rad", "radian"},
    {"percent", "percent"}, {"unit", "unit"},     {"acre", "acre"},     {"hz", "hertz"},
});

std::string_view Lookup(std::string_view word) {
  for (const auto& [name, canonical] : kUnits) {
    if (name == word) return canonical;
  }
  return {};
}

std::string_view OneUnit(const std::string& word) {
  const std::string lower = Lowercase(word);
  const std::string_view found = Lookup(lower);
  if (!found.empty() || !lower.ends_with('s') || lower.size() < 3) return found;
  return Lookup(std::string_view(lower).substr(0, lower.size() - 1));
}

}  // namespace

std::optional<std::string> CanonicalUnit(const std::vector<std::string>& words) {
  std::string unit;
  std::string power;  // from "square" and "cubic" before a unit
  for (const std::string& word : words) {
    const std::string lower = Lowercase(word);
    if (lower == "square" || lower == "sq") {
      power = "^2";
    } else if (lower == "cubic" || lower == "cu") {
      power = "^3";
    } else if (lower == "per") {
      unit += "/";
    } else if (lower == "squared" || lower == "cubed") {
      unit += lower == "squared" ? "^2" : "^3";
    } else if (word[0] == '^') {
      unit += word;
    } else {
      const std::string_view known = OneUnit(word);
      if (known.empty()) return std::nullopt;
      if (!unit.empty() && unit.back() != '/') unit += "*";
      unit.append(known).append(std::exchange(power, ""));
    }
  }
  return unit.empty() ? std::nullopt : std::optional(unit);
}

}  // namespace orrery::rewards
