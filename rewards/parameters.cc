#include "rewards/parameters.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "orchestrator/base/status.h"

namespace orrery::rewards {
namespace {

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replace});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string_view Nearest(std::string_view name, const std::vector<std::string_view>& candidates) {
  constexpr size_t kLongestName = 64;  // of what somebody typed; longer is no typing mistake
  if (name.size() > kLongestName) return {};
  std::string_view best;
  size_t best_distance = std::max<size_t>(2, name.size() / 2) + 1;
  for (const std::string_view candidate : candidates) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string DidYouMean(std::string_view name, const std::vector<std::string_view>& candidates) {
  const std::string_view nearest = Nearest(name, candidates);
  return nearest.empty() ? std::string() : fmt::format(", did you mean '{}'?", nearest);
}

const std::string* Parameters::Find(std::string_view key) {
  known_.emplace(key);
  const auto it = values_.find(std::string(key));
  return it == values_.end() ? nullptr : &it->second;
}

void Parameters::Fail(absl::Status error) {
  if (error_.ok()) error_ = std::move(error);
}

std::string Parameters::String(std::string_view key, std::string_view fallback) {
  const std::string* value = Find(key);
  return value ? *value : std::string(fallback);
}

std::string Parameters::Required(std::string_view key) {
  const std::string* value = Find(key);
  if (value && !value->empty()) return *value;
  Fail(InvalidInput("reward '{}': parameter '{}' must be given", owner_, key));
  return {};
}

std::string Parameters::Choice(std::string_view key, const std::vector<std::string_view>& choices) {
  const std::string* value = Find(key);
  if (!value) return std::string(choices.front());
  if (std::find(choices.begin(), choices.end(), *value) == choices.end()) {
    Fail(InvalidInput("reward '{}': parameter '{}' is '{}', must be one of: {}", owner_, key,
                      *value, fmt::join(choices, ", ")));
  }
  return *value;
}

bool Parameters::Flag(std::string_view key, bool fallback) {
  const std::string* value = Find(key);
  if (!value) return fallback;
  if (*value == "true" || *value == "false") return *value == "true";
  Fail(InvalidInput("reward '{}': parameter '{}' is '{}', must be true or false", owner_, key,
                    *value));
  return fallback;
}

int64_t Parameters::Integer(std::string_view key, int64_t fallback, int64_t low, int64_t high) {
  const std::string* value = Find(key);
  if (!value) return fallback;
  int64_t parsed = 0;
  const char* end = value->data() + value->size();
  const auto [stop, error] = std::from_chars(value->data(), end, parsed);
  if (error == std::errc() && stop == end && parsed >= low && parsed <= high) return parsed;
  Fail(InvalidInput("reward '{}': parameter '{}' is '{}', must be an integer from {} to {}", owner_,
                    key, *value, low, high));
  return fallback;
}

double Parameters::Number(std::string_view key, double fallback, double low, double high) {
  const std::string* value = Find(key);
  if (!value) return fallback;
  char* end = nullptr;
  const double parsed = std::strtod(value->c_str(), &end);
  const bool whole = !value->empty() && end == value->c_str() + value->size();
  if (whole && std::isfinite(parsed) && parsed >= low && parsed <= high) return parsed;
  Fail(InvalidInput("reward '{}': parameter '{}' is '{}', must be a number from {} to {}", owner_,
                    key, *value, low, high));
  return fallback;
}

absl::Status Parameters::status() const {
  if (!error_.ok()) return error_;
  std::vector<std::string_view> known(known_.begin(), known_.end());
  for (const auto& [key, value] : values_) {
    if (known_.contains(key)) continue;
    if (known.empty()) {
      return InvalidInput("reward '{}' takes no parameters, '{}' was given", owner_, key);
    }
    return InvalidInput("reward '{}': unknown parameter '{}'{} It takes: {}", owner_, key,
                        DidYouMean(key, known).empty() ? "." : DidYouMean(key, known),
                        fmt::join(known, ", "));
  }
  return absl::OkStatus();
}

}  // namespace orrery::rewards
