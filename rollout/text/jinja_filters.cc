// What may stand behind `|`, as jinja2 3.1 defines them (tojson: as transformers does).
#include <algorithm>
#include <charconv>
#include <cmath>

#include "rollout/text/jinja_arguments.h"
#include "rollout/text/jinja_json.h"
#include "rollout/text/jinja_operators.h"
#include "rollout/text/jinja_text.h"

namespace orrery::rollout::jinja {

namespace {

using Result = absl::StatusOr<Value>;

// soft_str: a text as it is (safe or not), anything else as it prints.
Result SoftText(Runtime& runtime, const Value& value) {
  if (value.Is(Kind::kText)) return value;
  ASSIGN_OR_RETURN(std::string text, ToText(value, runtime.budget));
  return Value::Of(std::move(text));
}

bool Flag(const Value* value, bool standard) {
  return value == nullptr ? standard : IsTrue(*value);
}

// The method of texts by that name, applied to what the value prints.
Result ByMethod(Runtime& runtime, const Value& input, const Arguments& arguments,
                std::string_view name) {
  ASSIGN_OR_RETURN(const Value text, SoftText(runtime, input));
  return FindMethod(text, name)->function(runtime, text, arguments);
}

Result Trim(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return ByMethod(runtime, input, arguments, "strip");
}
Result UpperFilter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return ByMethod(runtime, input, arguments, "upper");
}
Result LowerFilter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return ByMethod(runtime, input, arguments, "lower");
}
Result CapitalizeFilter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return ByMethod(runtime, input, arguments, "capitalize");
}

Result StringFilter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(Bind(arguments, {}).status());
  return SoftText(runtime, input);
}

Result SafeFilter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(Bind(arguments, {}).status());
  ASSIGN_OR_RETURN(std::string text, ToText(input, runtime.budget));
  return Value::Of(std::move(text), true);
}

// str() forgets what was marked safe.
Result ReplaceFilter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"old", "new", "count"}, 2));
  ASSIGN_OR_RETURN(std::string text, ToText(input, runtime.budget));
  Arguments texts;
  for (size_t i = 0; i < 2; ++i) {
    ASSIGN_OR_RETURN(std::string argument, ToText(*bound[i], runtime.budget));
    texts.positional.push_back(Value::Of(std::move(argument)));
  }
  texts.positional.push_back(bound[2] == nullptr ? Value::OfNone() : *bound[2]);
  const Value plain = Value::Of(std::move(text));
  return FindMethod(plain, "replace")->function(runtime, plain, texts);
}

Result ToJsonFilter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound,
                   Bind(arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ensure_ascii = Flag(bound[0], false);
  style.sort_keys = Flag(bound[3], false);
  if (!IsAbsent(bound[1])) {
    style.item_separator = ",";
    if (bound[1]->Is(Kind::kText)) {
      style.indent = bound[1]->text();
    } else {
      ASSIGN_OR_RETURN(const int64_t spaces, IntegerOr(bound[1], 0, "indent"));
      if (spaces > 1000) return InvalidInput("'indent' is {}, at most 1000", spaces);
      style.indent = std::string(static_cast<size_t>(std::max<int64_t>(spaces, 0)), ' ');
    }
  }
  if (!IsAbsent(bound[2])) {
    ASSIGN_OR_RETURN(const auto separators, Iterate(*bound[2], runtime.budget));
    if (separators->items.size() != 2) return InvalidInput("'separators' must be two texts");
    ASSIGN_OR_RETURN(style.item_separator, AsText(separators->items[0], "separators"));
    ASSIGN_OR_RETURN(style.key_separator, AsText(separators->items[1], "separators"));
  }
  ASSIGN_OR_RETURN(std::string json, ToJson(input, style, runtime.budget));
  return Value::Of(std::move(json));
}

Result Length(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(Bind(arguments, {}).status());
  const bool generator = input.Is(Kind::kList) && input.list().kind == ListKind::kGenerator;
  if (input.Is(Kind::kText)) {
    RETURN_IF_ERROR(runtime.budget.Scan(input.text().size() * 8));
    return Value::Of(static_cast<int64_t>(CountCodePoints(input.text())));
  }
  if (input.Is(Kind::kList) && !generator)
    return Value::Of(static_cast<int64_t>(input.list().items.size()));
  if (input.Is(Kind::kMap)) return Value::Of(static_cast<int64_t>(input.map().size()));
  if (input.Is(Kind::kLoop))
    return Value::Of(static_cast<int64_t>(input.loop().items->items.size()));
  if (input.Is(Kind::kUndefined)) return Value::Of(int64_t{0});
  return InvalidInput("a {} has no length", input.type_name());
}

Result Default(Runtime&, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"default_value", "boolean"}));
  const bool replace = input.Is(Kind::kUndefined) || (Flag(bound[1], false) && !IsTrue(input));
  if (!replace) return input;
  return bound[0] != nullptr ? *bound[0] : Value::Of("");
}

Result Items(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(Bind(arguments, {}).status());
  if (input.Is(Kind::kUndefined)) return MakeList({}, ListKind::kGenerator);
  if (!input.Is(Kind::kMap)) {
    return InvalidInput("pairs are taken from a mapping, not from a {}", input.type_name());
  }
  RETURN_IF_ERROR(runtime.budget.Allocate(input.map().size() * sizeof(Value) * 4));
  std::vector<Value> pairs;
  for (const auto& [key, value] : input.map().entries()) pairs.push_back(MakePair(key, value));
  return MakeList(std::move(pairs), ListKind::kGenerator);
}

Result ListFilter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(Bind(arguments, {}).status());
  ASSIGN_OR_RETURN(const auto items, Iterate(input, runtime.budget));
  RETURN_IF_ERROR(runtime.budget.Allocate(items->items.size() * sizeof(Value)));
  return MakeList(items->items);
}

Result First(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(Bind(arguments, {}).status());
  if (input.Is(Kind::kList) && input.list().kind == ListKind::kGenerator) {
    const List& list = input.list();
    if (list.position < list.items.size()) return list.items[list.position++];
    return Value::Missing("there is no first element");
  }
  ASSIGN_OR_RETURN(const auto items, Iterate(input, runtime.budget));
  return items->items.empty() ? Value::Missing("there is no first element") : items->items.front();
}

Result Last(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(Bind(arguments, {}).status());
  if (input.Is(Kind::kList) && input.list().kind == ListKind::kGenerator) {
    return InvalidInput("a generator has no last element; make it a list first");
  }
  ASSIGN_OR_RETURN(const auto items, Iterate(input, runtime.budget));
  return items->items.empty() ? Value::Missing("there is no last element") : items->items.back();
}

Result Reverse(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(Bind(arguments, {}).status());
  const Value backwards = Value::Of(int64_t{-1});
  if (input.Is(Kind::kText)) return GetSlice(input, nullptr, nullptr, &backwards, runtime.budget);
  ASSIGN_OR_RETURN(const auto items, Iterate(input, runtime.budget));
  RETURN_IF_ERROR(runtime.budget.Allocate(items->items.size() * sizeof(Value)));
  return MakeList({items->items.rbegin(), items->items.rend()}, ListKind::kGenerator);
}

// value.a.0.b, as map(attribute="a.0.b") walks it: items before attributes.
Result FollowPath(Runtime& runtime, Value value, const Value& path) {
  if (!path.Is(Kind::kText)) return GetItem(value, path, runtime.budget);
  for (const std::string_view part : Split(path.text(), ".", kNoLimit)) {
    int64_t index = 0;
    const auto parsed = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = !part.empty() && part[0] != '-' && parsed.ec == std::errc() &&
                        parsed.ptr == part.data() + part.size();
    const Value key = number ? Value::Of(index) : Value::Of(std::string(part));
    ASSIGN_OR_RETURN(value, GetItem(value, key, runtime.budget));
  }
  return value;
}

Result Join(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"d", "attribute"}));
  std::string separator;
  if (bound[0] != nullptr) {
    ASSIGN_OR_RETURN(separator, ToText(*bound[0], runtime.budget));
  }
  ASSIGN_OR_RETURN(const auto items, Iterate(input, runtime.budget));
  std::string joined;
  for (size_t i = 0; i < items->items.size(); ++i) {
    Value item = items->items[i];
    if (!IsAbsent(bound[1])) {
      ASSIGN_OR_RETURN(item, FollowPath(runtime, std::move(item), *bound[1]));
    }
    ASSIGN_OR_RETURN(const std::string text, ToText(item, runtime.budget));
    RETURN_IF_ERROR(runtime.budget.Allocate(text.size() + separator.size()));
    if (i > 0) joined += separator;
    joined += text;
  }
  return Value::Of(std::move(joined));
}

// The first of the positional arguments by position `from` on, with the named ones.
Arguments Rest(const Arguments& arguments, size_t from) {
  Arguments rest;
  if (arguments.positional.size() > from) {
    rest.positional.assign(arguments.positional.begin() + static_cast<ptrdiff_t>(from),
                           arguments.positional.end());
  }
  rest.named = arguments.named;
  return rest;
}

// select and map of jinja2 ask `if seq` before they walk it: none and 0 count as empty.
absl::StatusOr<std::shared_ptr<const List>> IterateIfTrue(const Value& value, Budget& budget) {
  return IsTrue(value) ? Iterate(value, budget) : std::make_shared<const List>();
}

// Keeps the elements of which the named test (by default their truth) says `wanted`. With
// `by_attribute` the first argument is the path that is tested.
Result Select(Runtime& runtime, const Value& input, const Arguments& arguments, bool by_attribute,
              bool wanted) {
  const size_t skip = by_attribute ? 1 : 0;
  if (arguments.positional.size() < skip) return InvalidInput("needs the name of an attribute");
  const Builtin* test = nullptr;
  if (arguments.positional.size() > skip) {
    ASSIGN_OR_RETURN(const std::string_view name, AsText(arguments.positional[skip], "the test"));
    test = FindTest(name);
    if (test == nullptr) return InvalidInput("{}", NoSuchTest(name));
  }
  const Arguments rest = Rest(arguments, skip + 1);
  ASSIGN_OR_RETURN(const auto items, IterateIfTrue(input, runtime.budget));
  std::vector<Value> kept;
  for (const Value& item : items->items) {
    RETURN_IF_ERROR(runtime.budget.Step());
    Value tested = item;
    if (by_attribute) {
      ASSIGN_OR_RETURN(tested, FollowPath(runtime, item, arguments.positional[0]));
    }
    if (test != nullptr) {
      ASSIGN_OR_RETURN(tested, test->function(runtime, tested, rest));
    }
    if (IsTrue(tested) == wanted) kept.push_back(item);
  }
  RETURN_IF_ERROR(runtime.budget.Allocate(kept.size() * sizeof(Value)));
  return MakeList(std::move(kept), ListKind::kGenerator);
}

template <bool by_attribute, bool wanted>
Result SelectFilter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return Select(runtime, input, arguments, by_attribute, wanted);
}

Result MapAttribute(Runtime& runtime, const Value& item, const Value& path, const Value* standard) {
  ASSIGN_OR_RETURN(Value value, FollowPath(runtime, item, path));
  if (standard != nullptr && value.Is(Kind::kUndefined)) return *standard;
  return value;
}

Result MapElement(Runtime& runtime, const Value& item, const Arguments& arguments) {
  if (arguments.positional.empty()) {
    ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"attribute", "default"}, 1));
    return MapAttribute(runtime, item, *bound[0], bound[1]);
  }
  ASSIGN_OR_RETURN(const std::string_view name, AsText(arguments.positional[0], "the filter"));
  const Builtin* filter = FindFilter(name);
  if (filter == nullptr) return InvalidInput("{}", NoSuchFilter(name));
  return filter->function(runtime, item, Rest(arguments, 1));
}

Result MapFilter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Budget::Nested nested(runtime.budget);  // map('map', 'map', ...)
  RETURN_IF_ERROR(nested.Check());
  ASSIGN_OR_RETURN(const auto items, IterateIfTrue(input, runtime.budget));
  RETURN_IF_ERROR(runtime.budget.Allocate(items->items.size() * sizeof(Value)));
  std::vector<Value> mapped;
  for (const Value& item : items->items) {
    RETURN_IF_ERROR(runtime.budget.Step(1 + static_cast<int64_t>(arguments.positional.size())));
    ASSIGN_OR_RETURN(Value value, MapElement(runtime, item, arguments));
    mapped.push_back(std::move(value));
  }
  return MakeList(std::move(mapped), ListKind::kGenerator);
}

// Texts are compared without case unless asked.
Value SortKey(const Value& value, bool case_sensitive) {
  return value.Is(Kind::kText) && !case_sensitive ? Value::Of(Lower(value.text())) : value;
}

Result DictSort(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"case_sensitive", "by", "reverse"}));
  ASSIGN_OR_RETURN(const auto by, OptionalText(bound[1], "by"));
  if (by && *by != "key" && *by != "value")
    return InvalidInput("'by' is \"key\" or \"value\", not \"{}\"", *by);
  if (!input.Is(Kind::kMap)) return WrongType("the value", "a mapping", input);
  const bool by_value = by && *by == "value";
  std::vector<std::pair<Value, const Map::Entry*>> entries;
  RETURN_IF_ERROR(runtime.budget.Allocate(input.map().size() * sizeof(Value) * 8));
  for (const Map::Entry& entry : input.map().entries()) {
    const Value& key = by_value ? entry.second : entry.first;
    if (key.Is(Kind::kText)) RETURN_IF_ERROR(runtime.budget.Allocate(key.text().size()));
    entries.emplace_back(SortKey(key, Flag(bound[0], false)), &entry);
  }
  absl::Status failure;
  const bool reverse = Flag(bound[2], false);
  std::stable_sort(entries.begin(), entries.end(), [&](const auto& a, const auto& b) {
    const auto less = reverse ? IsLess(b.first, a.first, runtime.budget)
                              : IsLess(a.first, b.first, runtime.budget);
    if (!less.ok()) failure.Update(less.status());
    return less.ok() && *less;
  });
  RETURN_IF_ERROR(failure);
  std::vector<Value> pairs;
  for (const auto& [key, entry] : entries) pairs.push_back(MakePair(entry->first, entry->second));
  return MakeList(std::move(pairs));
}

// Python's int(text) and float(text) skip white space around the number; underscores are left out.
template <typename Number>
std::optional<Number> ReadNumber(std::string_view text) {
  text = Strip(text, Side::kBoth);
  if (!text.empty() && text[0] == '+' && text.substr(1, 1) != "-") text.remove_prefix(1);
  Number number{};
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) {
    return std::nullopt;
  }
  return number;
}

std::optional<int64_t> Truncate(double value) {
  if (!(std::fabs(value) < 9.2e18)) return std::nullopt;
  return static_cast<int64_t>(value);
}

Result IntFilter(Runtime&, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"default"}));
  if (input.Is(Kind::kUndefined)) return InvalidInput("{}", input.hint());
  std::optional<int64_t> number;
  if (input.Is(Kind::kBigInteger)) return input;
  if (input.Is(Kind::kFloat)) number = Truncate(input.floating());
  if (input.Is(Kind::kInteger) || input.Is(Kind::kBool)) number = ToInteger(input);
  if (input.Is(Kind::kText)) {
    number = ReadNumber<int64_t>(input.text());
    if (!number) {
      const auto floating = ReadNumber<double>(input.text());
      if (floating) number = Truncate(*floating);
    }
  }
  if (number) return Value::Of(*number);
  return bound[0] != nullptr ? *bound[0] : Value::Of(int64_t{0});
}

Result FloatFilter(Runtime&, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"default"}));
  if (input.Is(Kind::kUndefined)) return InvalidInput("{}", input.hint());
  if (IsNumber(input)) return Value::Of(ToDouble(input));
  if (input.Is(Kind::kText)) {
    if (const auto number = ReadNumber<double>(input.text())) return Value::Of(*number);
  }
  return bound[0] != nullptr ? *bound[0] : Value::Of(0.0);
}

absl::StatusOr<std::string> IndentWidth(const Value* width) {
  if (width != nullptr && width->Is(Kind::kText)) return width->text();
  ASSIGN_OR_RETURN(const int64_t spaces, IntegerOr(width, 4, "width"));
  if (spaces > 1000) return InvalidInput("'width' is {}, at most 1000", spaces);
  return std::string(static_cast<size_t>(std::max<int64_t>(spaces, 0)), ' ');
}

Result Indent(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"width", "first", "blank"}));
  ASSIGN_OR_RETURN(const std::string indent, IndentWidth(bound[0]));
  ASSIGN_OR_RETURN(const std::string_view text, AsText(input, "the value"));
  const std::string ended = std::string(text) + "\n";  // keeps a last empty line, as jinja2 does
  const std::vector<std::string_view> lines = SplitLines(ended);
  RETURN_IF_ERROR(runtime.budget.Allocate(text.size() + lines.size() * (indent.size() + 1)));
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    const bool indented =
        i == 0 ? Flag(bound[1], false) : Flag(bound[2], false) || !lines[i].empty();
    if (i > 0) out += '\n';
    if (indented) out += indent;
    out += lines[i];
  }
  return Value::Of(std::move(out), input.markup());
}

}  // namespace

const std::vector<Builtin>& Filters() {
  static const auto& table = *new std::vector<Builtin>{
      {"tojson", ToJsonFilter},
      {"trim", Trim},
      {"length", Length},
      {"count", Length},
      {"items", Items},
      {"string", StringFilter},
      {"safe", SafeFilter},
      {"default", Default},
      {"d", Default},
      {"join", Join},
      {"first", First},
      {"last", Last},
      {"upper", UpperFilter},
      {"lower", LowerFilter},
      {"capitalize", CapitalizeFilter},
      {"replace", ReplaceFilter},
      {"select", SelectFilter<false, true>},
      {"reject", SelectFilter<false, false>},
      {"selectattr", SelectFilter<true, true>},
      {"rejectattr", SelectFilter<true, false>},
      {"map", MapFilter},
      {"list", ListFilter},
      {"reverse", Reverse},
      {"dictsort", DictSort},
      {"int", IntFilter},
      {"float", FloatFilter},
      {"indent", Indent},
  };
  return table;
}

}  // namespace orrery::rollout::jinja
