#include "configs/fields.h"

#include <fmt/format.h>

#include <algorithm>

namespace orrery::configs {

bool Contains(const Range& range, double value) {
  const bool above = range.min_excluded ? value > range.min : value >= range.min;
  const bool below = range.max_excluded ? value < range.max : value <= range.max;
  return above && below;
}

std::string RangeText(const Range& range) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::string text;
  if (range.min != -kInfinity) {
    text = fmt::format("{} {}", range.min_excluded ? "more than" : "at least", range.min);
  }
  if (range.max != kInfinity) {
    if (!text.empty()) text += " and ";
    // Exact figures: 1e+09 is no way to name a limit.
    const std::string max =
        range.max >= 1e6 ? fmt::format("{:.0f}", range.max) : fmt::format("{}", range.max);
    text += fmt::format("{} {}", range.max_excluded ? "less than" : "at most", max);
  }
  return text;
}

bool IsName(std::string_view text) {
  const auto allowed = [](unsigned char c) {
    return (c < 0x80 && std::isalnum(c)) || c == '-' || c == '_' || c == '.';
  };
  return !text.empty() && text[0] != '.' && text.size() <= 200 &&
         std::all_of(text.begin(), text.end(), allowed);
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> previous(b.size() + 1), current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({replaced, previous[j] + 1, current[j - 1] + 1});
    }
    std::swap(previous, current);
  }
  return previous[b.size()];
}

std::string Nearest(std::string_view word, const std::vector<std::string_view>& candidates) {
  constexpr size_t kLongest = 64;  // longer ones are no typing error of any key
  if (word.size() > kLongest) return "";
  std::string_view nearest;
  size_t smallest = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string_view candidate : candidates) {
    size_t distance = EditDistance(word, candidate);
    // top-p and TOP_P, and a key cut short, are nearer than their letters say.
    if (word.size() >= 3 && candidate.starts_with(word)) distance = std::min<size_t>(distance, 2);
    if (distance < smallest && distance < candidate.size()) {
      smallest = distance;
      nearest = candidate;
    }
  }
  return std::string(nearest);
}

}  // namespace orrery::configs
