#include <algorithm>
#include <limits>
#include <optional>

#include "rollout/text/jinja_operators.h"
#include "rollout/text/jinja_text.h"

namespace orrery::rollout::jinja {

namespace {

Value MissingAttribute(const Value& object, std::string_view name) {
  return Value::Missing(fmt::format("'{} object' has no attribute '{}'", object.type_name(), name));
}

absl::StatusOr<Value> BindMethod(const Builtin& method, const Value& object) {
  if (object.depth() + 1 > kMaxValueDepth) return Exhausted("values nest too deep");
  auto callable = std::make_shared<Callable>();
  callable->builtin = &method;
  callable->self = object;
  return Value::Of(std::shared_ptr<const Callable>(std::move(callable)));
}

Value LoopAttribute(const Loop& loop, std::string_view name) {
  const auto size = static_cast<int64_t>(loop.items->items.size());
  const auto index = static_cast<int64_t>(loop.index);
  if (name == "index") return Value::Of(index + 1);
  if (name == "index0") return Value::Of(index);
  if (name == "revindex") return Value::Of(size - index);
  if (name == "revindex0") return Value::Of(size - index - 1);
  if (name == "first") return Value::Of(index == 0);
  if (name == "last") return Value::Of(index + 1 == size);
  if (name == "length") return Value::Of(size);
  if (name == "depth") return Value::Of(int64_t{1});  // of recursion, which is not there
  if (name == "depth0") return Value::Of(int64_t{0});
  if (name == "previtem") {
    return index > 0 ? loop.items->items[loop.index - 1]
                     : Value::Missing("there is no previous item");
  }
  if (name == "nextitem") {
    return index + 1 < size ? loop.items->items[loop.index + 1]
                            : Value::Missing("there is no next item");
  }
  return Value::Missing(fmt::format("'loop' has no attribute '{}'", name));
}

// Names that the sandbox of jinja2 hides: they would change the value.
bool IsMutator(const Value& object, std::string_view name) {
  static constexpr std::string_view kOfMaps[] = {"clear", "pop", "popitem", "setdefault", "update"};
  static constexpr std::string_view kOfLists[] = {"append", "clear",  "extend",  "insert",
                                                  "pop",    "remove", "reverse", "sort"};
  const auto among = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  return object.Is(Kind::kMap) ? among(kOfMaps) : object.Is(Kind::kList) && among(kOfLists);
}

Value FindKey(const Map& map, std::string_view key) {
  const Value* found = map.Find(key);
  if (found != nullptr) return *found;
  return Value::Missing(fmt::format("'dict object' has no attribute '{}'", key));
}

// The attribute that is no key: a method, a field of a loop; undefined where there is none.
absl::StatusOr<Value> OwnAttribute(const Value& object, std::string_view name) {
  if (object.Is(Kind::kLoop)) return LoopAttribute(object.loop(), name);
  if (IsMutator(object, name)) {
    return Value::Missing(fmt::format("'{}' would change a {}, which a chat template may not", name,
                                      object.type_name()));
  }
  if (const Builtin* method = FindMethod(object, name)) return BindMethod(*method, object);
  return MissingAttribute(object, name);
}

}  // namespace

absl::StatusOr<Value> GetAttribute(const Value& object, std::string_view name, Budget& budget) {
  RETURN_IF_ERROR(CheckDefined(object));
  if (object.Is(Kind::kNamespace)) {
    const Value* found = object.space().variables.Find(name);
    return found != nullptr ? *found : MissingAttribute(object, name);
  }
  if (object.Is(Kind::kMap) && FindMethod(object, name) == nullptr && !IsMutator(object, name)) {
    RETURN_IF_ERROR(budget.Step());
    return FindKey(object.map(), name);
  }
  return OwnAttribute(object, name);
}

namespace {

// Python's index: negative ones count from the end. -1 where it is outside.
int64_t ResolveIndex(int64_t index, size_t size) {
  const auto count = static_cast<int64_t>(size);
  if (index < 0) index += count;
  return index >= 0 && index < count ? index : -1;
}

absl::StatusOr<Value> Character(const Value& text, int64_t index, Budget& budget) {
  RETURN_IF_ERROR(budget.Scan(text.text().size() * 8));
  const std::vector<size_t> offsets = CodePointOffsets(text.text());
  const int64_t at = ResolveIndex(index, offsets.size() - 1);
  if (at < 0) return Value::Missing(fmt::format("the text has no character {}", index));
  const auto i = static_cast<size_t>(at);
  return Value::Of(text.text().substr(offsets[i], offsets[i + 1] - offsets[i]), text.markup());
}

absl::StatusOr<Value> ByIndex(const Value& object, int64_t index, Budget& budget) {
  if (object.Is(Kind::kText)) return Character(object, index, budget);
  if (IsPlainList(object)) {
    const std::vector<Value>& items = object.list().items;
    const int64_t at = ResolveIndex(index, items.size());
    if (at >= 0) return items[static_cast<size_t>(at)];
    return Value::Missing(
        fmt::format("the {} of {} has no element {}", object.type_name(), items.size(), index));
  }
  return MissingAttribute(object, fmt::to_string(index));
}

}  // namespace

absl::StatusOr<Value> GetItem(const Value& object, const Value& key, Budget& budget) {
  RETURN_IF_ERROR(CheckDefined(object));
  if (object.Is(Kind::kMap) && IsHashable(key)) {
    RETURN_IF_ERROR(budget.Step(static_cast<int64_t>(object.map().size() / 8)));
    const Value* found = object.map().Find(key);
    if (found != nullptr) return *found;
  }
  if (key.Is(Kind::kText)) {
    if (object.Is(Kind::kNamespace)) return GetAttribute(object, key.text(), budget);
    return OwnAttribute(object, key.text());
  }
  if (IsIntegral(key)) return ByIndex(object, ToInteger(key), budget);
  if (key.Is(Kind::kUndefined)) {
    return Value::Missing(fmt::format("the key is undefined: {}", key.hint()));
  }
  return Value::Missing(
      fmt::format("a {} has no element by a {}", object.type_name(), key.type_name()));
}

namespace {

absl::StatusOr<std::optional<int64_t>> Bound(const Value* value) {
  if (value == nullptr || value->Is(Kind::kNone)) return std::nullopt;
  RETURN_IF_ERROR(CheckDefined(*value));
  if (IsIntegral(*value)) return ToInteger(*value);
  return InvalidInput("the bounds of a slice are integers, not a {}", value->type_name());
}

// The positions start, start + step, ... (count of them): CPython's PySlice_AdjustIndices.
struct Positions {
  int64_t start;
  int64_t step;
  size_t count;
};

int64_t Clamp(int64_t bound, int64_t size, bool backwards) {
  if (bound < 0) return std::max<int64_t>(bound + size, backwards ? -1 : 0);
  return std::min(bound, backwards ? size - 1 : size);
}

Positions Resolve(std::optional<int64_t> start, std::optional<int64_t> stop, int64_t step,
                  size_t length) {
  const auto size = static_cast<int64_t>(length);
  const bool backwards = step < 0;
  const int64_t first = start ? Clamp(*start, size, backwards) : (backwards ? size - 1 : 0);
  const int64_t end = stop ? Clamp(*stop, size, backwards) : (backwards ? -1 : size);
  const int64_t distance = backwards ? first - end : end - first;
  // The step of -2^63 would overflow on negation; no list is that long.
  const int64_t stride = backwards ? -std::max(step, -std::numeric_limits<int64_t>::max()) : step;
  return {first, step, distance > 0 ? static_cast<size_t>((distance - 1) / stride + 1) : 0};
}

Value SliceText(const Value& text, const std::vector<size_t>& offsets, const Positions& positions) {
  std::string sliced;
  int64_t at = positions.start;
  for (size_t n = 0; n < positions.count; ++n, at += n < positions.count ? positions.step : 0) {
    const auto i = static_cast<size_t>(at);
    sliced.append(text.text(), offsets[i], offsets[i + 1] - offsets[i]);
  }
  return Value::Of(std::move(sliced), text.markup());
}

absl::StatusOr<Value> SliceList(const List& list, const Positions& positions, Budget& budget) {
  RETURN_IF_ERROR(budget.Allocate(positions.count * sizeof(Value)));
  std::vector<Value> items;
  items.reserve(positions.count);
  int64_t at = positions.start;
  for (size_t n = 0; n < positions.count; ++n, at += n < positions.count ? positions.step : 0) {
    items.push_back(list.items[static_cast<size_t>(at)]);
  }
  return MakeList(std::move(items), list.kind);
}

}  // namespace

absl::StatusOr<Value> GetSlice(const Value& object, const Value* start, const Value* stop,
                               const Value* step, Budget& budget) {
  RETURN_IF_ERROR(CheckDefined(object));
  ASSIGN_OR_RETURN(const auto first, Bound(start));
  ASSIGN_OR_RETURN(const auto end, Bound(stop));
  ASSIGN_OR_RETURN(const auto stride, Bound(step));
  if (stride == 0) return InvalidInput("the step of a slice cannot be 0");
  if (IsPlainList(object)) {
    const size_t size = object.list().items.size();
    return SliceList(object.list(), Resolve(first, end, stride.value_or(1), size), budget);
  }
  if (!object.Is(Kind::kText)) {
    return InvalidInput("expected a list or a text to slice, found a {}", object.type_name());
  }
  RETURN_IF_ERROR(budget.Allocate(object.text().size() * 8));
  const std::vector<size_t> offsets = CodePointOffsets(object.text());
  return SliceText(object, offsets, Resolve(first, end, stride.value_or(1), offsets.size() - 1));
}

}  // namespace orrery::rollout::jinja
