#include "rollout/text/jinja_value.h"

#include <algorithm>

#include "rollout/text/jinja_text.h"

namespace orrery::rollout::jinja {

namespace {

constexpr size_t kIndexFrom = 16;  // mappings up to this size are searched from end to end

absl::Status TooDeep() {
  return Exhausted("lists and mappings nest deeper than {} levels", kMaxValueDepth);
}

}  // namespace

Value Value::Missing(std::string hint) {
  return Value(Undefined{std::make_shared<const std::string>(std::move(hint))});
}

Value Value::Of(std::string text, bool markup) {
  return Value(Text{std::make_shared<const std::string>(std::move(text)), markup});
}

Value Value::OfDigits(std::string digits) {
  return Value(BigInteger{std::make_shared<const std::string>(std::move(digits))});
}

std::string Value::hint() const {
  const auto& hint = std::get<Undefined>(data_).hint;
  return hint ? *hint : "the value is undefined";
}

const char* Value::type_name() const {
  switch (kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return "bool";
    case Kind::kInteger:
    case Kind::kBigInteger:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kText:
      return "str";
    case Kind::kMap:
      return "dict";
    case Kind::kNamespace:
      return "namespace";
    case Kind::kLoop:
      return "loop";
    case Kind::kCallable:
      return "function";
    case Kind::kList:
      break;
  }
  switch (list().kind) {
    case ListKind::kList:
      return "list";
    case ListKind::kTuple:
      return "tuple";
    case ListKind::kView:
      return "dict view";
    case ListKind::kGenerator:
      return "generator";
  }
  return "list";
}

int Value::depth() const {
  switch (kind()) {
    case Kind::kList:
      return list().depth;
    case Kind::kMap:
      return map().depth();
    case Kind::kLoop:
      return loop().items->depth + 1;
    case Kind::kCallable:
      return callable().self.depth() + 1;
    default:
      return 0;
  }
}

bool Value::SameObject(const Value& other) const {
  if (kind() != other.kind()) return false;
  switch (kind()) {
    case Kind::kList:
      return &list() == &other.list();
    case Kind::kMap:
      return &map() == &other.map();
    case Kind::kNamespace:
      return &space() == &other.space();
    case Kind::kLoop:
      return &loop() == &other.loop();
    case Kind::kCallable:
      return &callable() == &other.callable();
    default:
      return false;
  }
}

size_t Map::Position(std::string_view key) const {
  if (!index_.empty()) {
    const auto found = index_.find(std::string(key));
    return found == index_.end() ? entries_.size() : found->second;
  }
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.first.Is(Kind::kText) && entry.first.text() == key;
  });
  return static_cast<size_t>(found - entries_.begin());
}

size_t Map::Position(const Value& key) const {
  if (key.Is(Kind::kText)) return Position(std::string_view(key.text()));
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return ScalarEquals(entry.first, key);
  });
  return static_cast<size_t>(found - entries_.begin());
}

const Value* Map::Find(std::string_view key) const {
  const size_t at = Position(key);
  return at == entries_.size() ? nullptr : &entries_[at].second;
}

const Value* Map::Find(const Value& key) const {
  const size_t at = Position(key);
  return at == entries_.size() ? nullptr : &entries_[at].second;
}

void Map::Set(Value key, Value value) {
  depth_ = std::max(depth_, value.depth() + 1);
  const size_t at = Position(key);
  if (at < entries_.size()) {
    entries_[at].second = std::move(value);
    return;
  }
  if (!index_.empty() && key.Is(Kind::kText)) index_.emplace(key.text(), at);
  entries_.emplace_back(std::move(key), std::move(value));
  if (entries_.size() != kIndexFrom) return;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].first.Is(Kind::kText)) index_.emplace(entries_[i].first.text(), i);
  }
}

namespace {

std::shared_ptr<List> NewList(std::vector<Value> items, ListKind kind) {
  auto list = std::make_shared<List>();
  for (const Value& item : items) list->depth = std::max(list->depth, item.depth() + 1);
  list->items = std::move(items);
  list->kind = kind;
  return list;
}

}  // namespace

absl::StatusOr<Value> MakeList(std::vector<Value> items, ListKind kind) {
  auto list = NewList(std::move(items), kind);
  if (list->depth > kMaxValueDepth) return TooDeep();
  return Value::Of(std::shared_ptr<const List>(std::move(list)));
}

absl::StatusOr<Value> MakeView(std::vector<Value> items, const char* view_name) {
  auto list = NewList(std::move(items), ListKind::kView);
  list->view_name = view_name;
  if (list->depth > kMaxValueDepth) return TooDeep();
  return Value::Of(std::shared_ptr<const List>(std::move(list)));
}

absl::StatusOr<Value> MakeMap(Map map) {
  if (map.depth() > kMaxValueDepth) return TooDeep();
  return Value::Of(std::make_shared<const Map>(std::move(map)));
}

Value MakePair(Value first, Value second) {
  std::vector<Value> items;
  items.push_back(std::move(first));
  items.push_back(std::move(second));
  return Value::Of(std::shared_ptr<const List>(NewList(std::move(items), ListKind::kTuple)));
}

bool IsNumber(const Value& value) {
  return value.Is(Kind::kBool) || value.Is(Kind::kInteger) || value.Is(Kind::kFloat);
}

int64_t ToInteger(const Value& value) {
  return value.Is(Kind::kBool) ? (value.boolean() ? 1 : 0) : value.integer();
}

double ToDouble(const Value& value) {
  return value.Is(Kind::kFloat) ? value.floating() : static_cast<double>(ToInteger(value));
}

bool IsHashable(const Value& value) {
  return IsNumber(value) || value.Is(Kind::kText) || value.Is(Kind::kNone) ||
         value.Is(Kind::kBigInteger);
}

bool IsIntegral(const Value& value) { return value.Is(Kind::kInteger) || value.Is(Kind::kBool); }

bool IsPlainList(const Value& value) {
  return value.Is(Kind::kList) && value.list().kind <= ListKind::kTuple;
}

absl::Status CheckDefined(const Value& value) {
  if (!value.Is(Kind::kUndefined)) return absl::OkStatus();
  return InvalidInput("{}", value.hint());
}

bool IsTrue(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return value.boolean();
    case Kind::kInteger:
      return value.integer() != 0;
    case Kind::kFloat:
      return value.floating() != 0;
    case Kind::kText:
      return !value.text().empty();
    case Kind::kMap:
      return value.map().size() > 0;
    case Kind::kList:
      return value.list().kind == ListKind::kGenerator || !value.list().items.empty();
    default:
      return true;
  }
}

bool ScalarEquals(const Value& a, const Value& b) {
  if (IsNumber(a) && IsNumber(b)) {
    const bool floating = a.Is(Kind::kFloat) || b.Is(Kind::kFloat);
    return floating ? ToDouble(a) == ToDouble(b) : ToInteger(a) == ToInteger(b);
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kText:
      return a.text() == b.text();
    case Kind::kBigInteger:
      return a.digits() == b.digits();
    default:
      return a.SameObject(b);
  }
}

namespace {

bool Comparable(const List& a, const List& b) {
  const bool plain = a.kind == ListKind::kList || a.kind == ListKind::kTuple;
  return plain && a.kind == b.kind && a.items.size() == b.items.size();
}

absl::StatusOr<bool> ListsEqual(const List& a, const List& b, Budget& budget) {
  if (!Comparable(a, b)) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    ASSIGN_OR_RETURN(const bool equal, Equals(a.items[i], b.items[i], budget));
    if (!equal) return false;
  }
  return true;
}

absl::StatusOr<bool> MapsEqual(const Map& a, const Map& b, Budget& budget) {
  if (a.size() != b.size()) return false;
  for (const auto& [key, value] : a.entries()) {
    const Value* other = b.Find(key);
    if (other == nullptr) return false;
    ASSIGN_OR_RETURN(const bool equal, Equals(value, *other, budget));
    if (!equal) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<bool> Equals(const Value& a, const Value& b, Budget& budget) {
  RETURN_IF_ERROR(budget.Step());
  if (a.SameObject(b)) return true;
  if (a.Is(Kind::kList) && b.Is(Kind::kList)) return ListsEqual(a.list(), b.list(), budget);
  if (a.Is(Kind::kMap) && b.Is(Kind::kMap)) return MapsEqual(a.map(), b.map(), budget);
  if (a.Is(Kind::kText)) RETURN_IF_ERROR(budget.Scan(a.text().size()));
  return ScalarEquals(a, b);
}

namespace {

std::vector<Value> Characters(const std::string& text) {
  std::vector<Value> characters;
  for (size_t i = 0; i < text.size();) {
    const size_t size = DecodeAt(text, i).size;
    characters.push_back(Value::Of(text.substr(i, size)));
    i += size;
  }
  return characters;
}

std::shared_ptr<const List> TakeRest(const List& generator) {
  const auto from = generator.items.begin() + static_cast<ptrdiff_t>(generator.position);
  generator.position = generator.items.size();
  return NewList(std::vector<Value>(from, generator.items.end()), ListKind::kList);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const List>> Iterate(const Value& value, Budget& budget) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return std::make_shared<const List>();
    case Kind::kList:
      if (value.list().kind == ListKind::kGenerator) return TakeRest(value.list());
      return value.shared_list();
    case Kind::kText:
      RETURN_IF_ERROR(budget.Allocate(value.text().size() * sizeof(Value) * 2));
      return NewList(Characters(value.text()), ListKind::kList);
    case Kind::kMap: {
      RETURN_IF_ERROR(budget.Allocate(value.map().size() * sizeof(Value)));
      std::vector<Value> keys;
      for (const auto& [key, unused] : value.map().entries()) keys.push_back(key);
      return NewList(std::move(keys), ListKind::kList);
    }
    default:
      return InvalidInput(
          "a value of type {} cannot be walked: expected a list, a mapping or a text",
          value.type_name());
  }
}

}  // namespace orrery::rollout::jinja
