// Methods of str and dict.
#include <algorithm>

#include "rollout/text/jinja_arguments.h"
#include "rollout/text/jinja_text.h"

namespace orrery::rollout::jinja {

namespace {

using Result = absl::StatusOr<Value>;

// A result made of the text `self`: it stays marked safe where self is.
Value Like(const Value& self, std::string_view text) {
  return Value::Of(std::string(text), self.markup());
}

Result StripSide(Runtime& runtime, const Value& self, const Arguments& arguments, Side side) {
  ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"chars"}));
  ASSIGN_OR_RETURN(const auto characters, OptionalText(bound[0], "chars"));
  const size_t choices = characters ? characters->size() : 1;
  RETURN_IF_ERROR(runtime.budget.Scan(self.text().size() * choices));
  RETURN_IF_ERROR(runtime.budget.Allocate(self.text().size()));
  return Like(self, Strip(self.text(), side, characters));
}

Result StripBoth(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return StripSide(runtime, self, arguments, Side::kBoth);
}
Result StripLeft(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return StripSide(runtime, self, arguments, Side::kLeft);
}
Result StripRight(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return StripSide(runtime, self, arguments, Side::kRight);
}

Result MapText(Runtime& runtime, const Value& self, const Arguments& arguments,
               std::string (*change)(std::string_view)) {
  RETURN_IF_ERROR(Bind(arguments, {}).status());
  RETURN_IF_ERROR(runtime.budget.Allocate(self.text().size() * 2));
  return Like(self, change(self.text()));
}

Result UpperMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return MapText(runtime, self, arguments, Upper);
}
Result LowerMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return MapText(runtime, self, arguments, Lower);
}
Result CapitalizeMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return MapText(runtime, self, arguments, Capitalize);
}
Result TitleMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return MapText(runtime, self, arguments, Title);
}

// The text or, in a tuple, the texts that startswith and endswith take.
absl::StatusOr<std::vector<std::string_view>> Affixes(const Value& value) {
  std::vector<std::string_view> affixes;
  if (!value.Is(Kind::kList) || value.list().kind != ListKind::kTuple) {
    ASSIGN_OR_RETURN(const std::string_view text, AsText(value, "prefix or suffix"));
    affixes.push_back(text);
    return affixes;
  }
  for (const Value& item : value.list().items) {
    ASSIGN_OR_RETURN(const std::string_view text, AsText(item, "prefix or suffix"));
    affixes.push_back(text);
  }
  return affixes;
}

Result StartsWith(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"prefix"}, 1));
  ASSIGN_OR_RETURN(const auto prefixes, Affixes(*bound[0]));
  const std::string_view text = self.text();
  for (const std::string_view prefix : prefixes) {
    RETURN_IF_ERROR(runtime.budget.Scan(prefix.size()));
    if (text.substr(0, prefix.size()) == prefix) return Value::Of(true);
  }
  return Value::Of(false);
}

Result EndsWith(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"suffix"}, 1));
  ASSIGN_OR_RETURN(const auto suffixes, Affixes(*bound[0]));
  const std::string_view text = self.text();
  for (const std::string_view suffix : suffixes) {
    RETURN_IF_ERROR(runtime.budget.Scan(suffix.size()));
    if (text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix) {
      return Value::Of(true);
    }
  }
  return Value::Of(false);
}

Result TextList(Runtime& runtime, const Value& self, const std::vector<std::string_view>& parts) {
  RETURN_IF_ERROR(runtime.budget.Allocate(parts.size() * sizeof(Value) * 2));
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string_view part : parts) items.push_back(Like(self, part));
  return MakeList(std::move(items));
}

Result SplitAs(Runtime& runtime, const Value& self, const Arguments& arguments, bool from_right) {
  ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"sep", "maxsplit"}));
  ASSIGN_OR_RETURN(const auto separator, OptionalText(bound[0], "sep"));
  ASSIGN_OR_RETURN(int64_t max_splits, IntegerOr(bound[1], -1, "maxsplit"));
  if (max_splits < 0) max_splits = kNoLimit;
  RETURN_IF_ERROR(runtime.budget.Allocate(self.text().size()));
  if (!separator) {
    if (from_right) return InvalidInput("needs a separator");
    return TextList(runtime, self, SplitSpace(self.text(), max_splits));
  }
  if (separator->empty()) return InvalidInput("the separator is empty");
  if (!from_right) return TextList(runtime, self, Split(self.text(), *separator, max_splits));
  // The search from the right is not linear.
  RETURN_IF_ERROR(runtime.budget.Scan(self.text().size() * separator->size()));
  return TextList(runtime, self, SplitFromRight(self.text(), *separator, max_splits));
}

Result SplitMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return SplitAs(runtime, self, arguments, false);
}
Result SplitRightMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return SplitAs(runtime, self, arguments, true);
}

Result SplitLinesMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  RETURN_IF_ERROR(Bind(arguments, {}).status());
  RETURN_IF_ERROR(runtime.budget.Allocate(self.text().size()));
  return TextList(runtime, self, SplitLines(self.text()));
}

Result ReplaceMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"old", "new", "count"}, 2));
  ASSIGN_OR_RETURN(const std::string_view old_text, AsText(*bound[0], "old"));
  ASSIGN_OR_RETURN(const std::string_view given, AsText(*bound[1], "new"));
  ASSIGN_OR_RETURN(int64_t count, IntegerOr(bound[2], -1, "count"));
  const std::string new_text =
      self.markup() && !bound[1]->markup() ? EscapeHtml(given) : std::string(given);
  const size_t found = CountText(self.text(), old_text);
  RETURN_IF_ERROR(runtime.budget.Allocate(self.text().size() + found * new_text.size()));
  return Like(self, Replace(self.text(), old_text, new_text, count < 0 ? kNoLimit : count));
}

Result JoinMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"iterable"}, 1));
  ASSIGN_OR_RETURN(const auto items, Iterate(*bound[0], runtime.budget));
  std::string joined;
  for (const Value& item : items->items) {
    ASSIGN_OR_RETURN(const std::string_view text, AsText(item, "an element of the list"));
    RETURN_IF_ERROR(runtime.budget.Allocate(text.size() + self.text().size()));
    if (&item != &items->items.front()) joined += self.text();
    joined += self.markup() && !item.markup() ? EscapeHtml(text) : std::string(text);
  }
  return Like(self, joined);
}

Result FindMethodOfText(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"sub"}, 1));
  ASSIGN_OR_RETURN(const std::string_view wanted, AsText(*bound[0], "sub"));
  RETURN_IF_ERROR(runtime.budget.Scan(self.text().size()));
  const size_t found = FindText(self.text(), wanted);
  if (found == std::string_view::npos) return Value::Of(int64_t{-1});
  const std::string_view before = std::string_view(self.text()).substr(0, found);
  return Value::Of(static_cast<int64_t>(CountCodePoints(before)));
}

Result CountMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"sub"}, 1));
  ASSIGN_OR_RETURN(const std::string_view wanted, AsText(*bound[0], "sub"));
  RETURN_IF_ERROR(runtime.budget.Scan(self.text().size()));
  return Value::Of(static_cast<int64_t>(CountText(self.text(), wanted)));
}

Result RemovePrefix(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"prefix"}, 1));
  ASSIGN_OR_RETURN(const std::string_view prefix, AsText(*bound[0], "prefix"));
  RETURN_IF_ERROR(runtime.budget.Allocate(self.text().size()));
  const std::string_view text = self.text();
  return Like(self, text.substr(0, prefix.size()) == prefix ? text.substr(prefix.size()) : text);
}

Result RemoveSuffix(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"suffix"}, 1));
  ASSIGN_OR_RETURN(const std::string_view suffix, AsText(*bound[0], "suffix"));
  RETURN_IF_ERROR(runtime.budget.Allocate(self.text().size()));
  const std::string_view text = self.text();
  const bool there =
      text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
  return Like(self, text.substr(0, text.size() - (there ? suffix.size() : 0)));
}

Result GetMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"key", "default"}, 1));
  RETURN_IF_ERROR(runtime.budget.Step());
  const Value* found = IsHashable(*bound[0]) ? self.map().Find(*bound[0]) : nullptr;
  if (found != nullptr) return *found;
  return bound[1] != nullptr ? *bound[1] : Value::OfNone();
}

Result ItemsMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  RETURN_IF_ERROR(Bind(arguments, {}).status());
  RETURN_IF_ERROR(runtime.budget.Allocate(self.map().size() * sizeof(Value) * 4));
  std::vector<Value> pairs;
  for (const auto& [key, value] : self.map().entries()) pairs.push_back(MakePair(key, value));
  return MakeView(std::move(pairs), "dict_items");
}

Result KeysMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  RETURN_IF_ERROR(Bind(arguments, {}).status());
  ASSIGN_OR_RETURN(const auto keys, Iterate(self, runtime.budget));
  return MakeView(keys->items, "dict_keys");
}

Result ValuesMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  RETURN_IF_ERROR(Bind(arguments, {}).status());
  RETURN_IF_ERROR(runtime.budget.Allocate(self.map().size() * sizeof(Value)));
  std::vector<Value> values;
  for (const auto& [key, value] : self.map().entries()) values.push_back(value);
  return MakeView(std::move(values), "dict_values");
}

Result CopyMethod(Runtime&, const Value& self, const Arguments& arguments) {
  RETURN_IF_ERROR(Bind(arguments, {}).status());
  return self;  // nothing changes a mapping
}

}  // namespace

const std::vector<Builtin>& TextMethods() {
  static const auto& table = *new std::vector<Builtin>{
      {"strip", StripBoth},
      {"lstrip", StripLeft},
      {"rstrip", StripRight},
      {"split", SplitMethod},
      {"rsplit", SplitRightMethod},
      {"splitlines", SplitLinesMethod},
      {"startswith", StartsWith},
      {"endswith", EndsWith},
      {"upper", UpperMethod},
      {"lower", LowerMethod},
      {"capitalize", CapitalizeMethod},
      {"title", TitleMethod},
      {"replace", ReplaceMethod},
      {"join", JoinMethod},
      {"find", FindMethodOfText},
      {"count", CountMethod},
      {"removeprefix", RemovePrefix},
      {"removesuffix", RemoveSuffix},
  };
  return table;
}

const std::vector<Builtin>& MapMethods() {
  static const auto& table = *new std::vector<Builtin>{
      {"get", GetMethod},       {"items", ItemsMethod}, {"keys", KeysMethod},
      {"values", ValuesMethod}, {"copy", CopyMethod},
  };
  return table;
}

}  // namespace orrery::rollout::jinja
