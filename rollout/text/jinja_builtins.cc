#include "rollout/text/jinja_builtins.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace orrery::rollout::jinja {

namespace {

const Builtin* FindIn(const std::vector<Builtin>& table, std::string_view name) {
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const Builtin& builtin) { return builtin.name == name; });
  return found == table.end() ? nullptr : &*found;
}

std::string NamesOf(const std::vector<Builtin>& table) {
  std::vector<std::string_view> names;
  for (const Builtin& builtin : table) names.push_back(builtin.name);
  std::sort(names.begin(), names.end());
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

const Builtin* FindFilter(std::string_view name) { return FindIn(Filters(), name); }
const Builtin* FindTest(std::string_view name) { return FindIn(Tests(), name); }
const Builtin* FindGlobal(std::string_view name) { return FindIn(Globals(), name); }

const Builtin* FindMethod(const Value& object, std::string_view name) {
  if (object.Is(Kind::kText)) return FindIn(TextMethods(), name);
  if (object.Is(Kind::kMap)) return FindIn(MapMethods(), name);
  return nullptr;
}

std::string NoSuchFilter(std::string_view name) {
  return fmt::format("there is no filter '{}'; known are {}", name, NamesOf(Filters()));
}

std::string NoSuchTest(std::string_view name) {
  return fmt::format("there is no test '{}'; known are {}", name, NamesOf(Tests()));
}

absl::StatusOr<std::vector<const Value*>> Bind(const Arguments& arguments,
                                               std::initializer_list<std::string_view> parameters,
                                               size_t required) {
  std::vector<const Value*> bound(parameters.size(), nullptr);
  if (arguments.positional.size() > parameters.size()) {
    return InvalidInput("takes at most {} arguments ({}), {} were given", parameters.size(),
                        fmt::join(parameters, ", "), arguments.positional.size());
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) bound[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(parameters.begin(), parameters.end(), name);
    if (found == parameters.end()) {
      return InvalidInput("has no parameter '{}'; it takes ({})", name,
                          fmt::join(parameters, ", "));
    }
    const auto i = static_cast<size_t>(found - parameters.begin());
    if (bound[i] != nullptr) return InvalidInput("the parameter '{}' is given twice", name);
    bound[i] = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (bound[i] == nullptr) {
      return InvalidInput("needs the argument '{}'", *(parameters.begin() + i));
    }
  }
  return bound;
}

}  // namespace orrery::rollout::jinja
