// The values of a template: Python's, as far as chat templates see them.
//
// A Value is small and cheap to copy; strings, lists and mappings are shared and never change once
// made (only a Namespace and a Loop do, both of one rendering). Values made outside a rendering may
// therefore be read by several threads. Lists and mappings know how deep they nest, at most
// kMaxValueDepth, so that everything which recurses over them is bounded.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "rollout/text/jinja_budget.h"

namespace orrery::rollout::jinja {

class Value;
class Map;
struct Builtin;
struct List;
struct Loop;
struct Macro;
struct Namespace;
struct Scope;
struct Callable;

// A name or attribute that is not there. Prints as nothing; using it in earnest is an error, whose
// text is the hint.
struct Undefined {
  std::shared_ptr<const std::string> hint;
};

struct None {};

// UTF-8 by intent; bytes that are not pass through unchanged and count as one character each.
struct Text {
  std::shared_ptr<const std::string> bytes;
  bool markup = false;  // came through the filter `safe`: joined with another text, escapes it
};

// An integer of Python beyond 64 bits: kept and printed, but not computed with.
struct BigInteger {
  std::shared_ptr<const std::string> digits;
};

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInteger,
  kFloat,
  kBigInteger,
  kText,
  kList,
  kMap,
  kNamespace,
  kLoop,
  kCallable,
};

class Value {
 public:
  Value() = default;  // undefined, without a hint

  static Value Missing(std::string hint);
  static Value OfNone() { return Value(None{}); }
  static Value Of(bool value) { return Value(value); }
  static Value Of(int64_t value) { return Value(value); }
  static Value Of(double value) { return Value(value); }
  static Value Of(std::string text, bool markup = false);
  static Value Of(const char* text) { return Of(std::string(text)); }
  static Value OfDigits(std::string digits);
  static Value Of(std::shared_ptr<const List> list) { return Value(std::move(list)); }
  static Value Of(std::shared_ptr<const Map> map) { return Value(std::move(map)); }
  static Value Of(std::shared_ptr<Namespace> space) { return Value(std::move(space)); }
  static Value Of(std::shared_ptr<Loop> loop) { return Value(std::move(loop)); }
  static Value Of(std::shared_ptr<const Callable> callable) { return Value(std::move(callable)); }

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool Is(Kind kind) const { return this->kind() == kind; }

  // REQUIRES: the kind.
  bool boolean() const { return std::get<bool>(data_); }
  int64_t integer() const { return std::get<int64_t>(data_); }
  double floating() const { return std::get<double>(data_); }
  const std::string& text() const { return *std::get<Text>(data_).bytes; }
  bool markup() const { return std::get<Text>(data_).markup; }
  const std::string& digits() const { return *std::get<BigInteger>(data_).digits; }
  const List& list() const { return *std::get<std::shared_ptr<const List>>(data_); }
  const Map& map() const { return *std::get<std::shared_ptr<const Map>>(data_); }
  Namespace& space() const { return *std::get<std::shared_ptr<Namespace>>(data_); }
  Loop& loop() const { return *std::get<std::shared_ptr<Loop>>(data_); }
  const Callable& callable() const { return *std::get<std::shared_ptr<const Callable>>(data_); }
  std::shared_ptr<const List> shared_list() const {
    return std::get<std::shared_ptr<const List>>(data_);
  }

  // Why the value is undefined: "'tools' is undefined". REQUIRES: kUndefined.
  std::string hint() const;
  // The Python name of the type: "str", "dict".
  const char* type_name() const;
  // 0 for what does not contain values, 1 for a list of those.
  int depth() const;
  // True for the same list, mapping, namespace, loop or callable (not an equal one).
  bool SameObject(const Value& other) const;

 private:
  using Data = std::variant<Undefined, None, bool, int64_t, double, BigInteger, Text,
                            std::shared_ptr<const List>, std::shared_ptr<const Map>,
                            std::shared_ptr<Namespace>, std::shared_ptr<Loop>,
                            std::shared_ptr<const Callable>>;
  template <typename T>
  explicit Value(T data) : data_(std::in_place_type<T>, std::move(data)) {}

  Data data_;
};

// Python's kinds of sequences differ where templates look: a generator is true although empty, has
// no length and can be walked once; a view (dict.items()) has a length but no positions.
enum class ListKind : uint8_t { kList, kTuple, kView, kGenerator };

struct List {
  std::vector<Value> items;
  ListKind kind = ListKind::kList;
  int depth = 1;
  mutable size_t position = 0;  // kGenerator: what has been taken
  const char* view_name = "";   // kView: how it prints, e.g. dict_items
};

// Keeps the order of insertion. Keys are texts, numbers, booleans or none.
class Map {
 public:
  using Entry = std::pair<Value, Value>;

  const Value* Find(std::string_view key) const;
  const Value* Find(const Value& key) const;
  // Replaces the value of an equal key in its place, or appends.
  void Set(Value key, Value value);
  void Set(std::string_view key, Value value) {
    Set(Value::Of(std::string(key)), std::move(value));
  }

  const std::vector<Entry>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  int depth() const { return depth_; }

 private:
  size_t Position(const Value& key) const;
  size_t Position(std::string_view key) const;

  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> index_;  // text keys, once there are many
  int depth_ = 1;
};

// namespace(a=1): the one value that templates can change. Owned by the rendering, which empties it
// at the end, so that a namespace holding itself does not leak.
struct Namespace {
  Map variables;
};

// `loop` inside a for.
struct Loop {
  std::shared_ptr<const List> items;
  size_t index = 0;
};

// A built-in function, a method bound to its object, or a macro bound to where it was defined.
struct Callable {
  const Builtin* builtin = nullptr;
  Value self;
  const Macro* macro = nullptr;
  Scope* scope = nullptr;  // of the macro; owned by the rendering
};

// Error where the list or mapping would nest deeper than kMaxValueDepth.
absl::StatusOr<Value> MakeList(std::vector<Value> items, ListKind kind = ListKind::kList);
absl::StatusOr<Value> MakeView(std::vector<Value> items, const char* view_name);
absl::StatusOr<Value> MakeMap(Map map);

// A pair such as dict.items() yields. REQUIRES: the values come out of one mapping or are shallow.
Value MakePair(Value first, Value second);

bool IsNumber(const Value& value);      // bool, integer, float; not a big integer
double ToDouble(const Value& value);    // REQUIRES: IsNumber
int64_t ToInteger(const Value& value);  // REQUIRES: bool or integer
bool IsIntegral(const Value& value);    // bool or integer
bool IsPlainList(const Value& value);   // list or tuple
bool IsHashable(const Value& value);    // can be a key

// The hint of an undefined value as an error; OK for every other value.
absl::Status CheckDefined(const Value& value);

// Python's truth value.
bool IsTrue(const Value& value);

// Python's ==, for scalars; false for everything else unless it is the same object.
bool ScalarEquals(const Value& a, const Value& b);
// Python's ==.
absl::StatusOr<bool> Equals(const Value& a, const Value& b, Budget& budget);

// What a for loop walks: the elements of a list, the keys of a mapping, the characters of a text;
// nothing for undefined. A generator is used up.
absl::StatusOr<std::shared_ptr<const List>> Iterate(const Value& value, Budget& budget);

// str(value): what {{ value }} prints.
absl::StatusOr<std::string> ToText(const Value& value, Budget& budget);

}  // namespace orrery::rollout::jinja
