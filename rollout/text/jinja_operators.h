// Python's operators, attribute and item access on template values. Errors carry no place: the
// evaluator knows it.
#pragma once

#include <string_view>

#include "rollout/text/jinja_ast.h"
#include "rollout/text/jinja_builtins.h"

namespace orrery::rollout::jinja {

absl::StatusOr<Value> Compute(BinaryOperator op, const Value& left, const Value& right,
                              Budget& budget);
absl::StatusOr<Value> ApplySign(const Value& value, bool negative);
absl::StatusOr<bool> CompareValues(CompareOperator op, const Value& left, const Value& right,
                                   Budget& budget);
// left < right; numbers, texts, and lists or tuples of those.
absl::StatusOr<bool> IsLess(const Value& left, const Value& right, Budget& budget);

// object.name: a method before a key, as in Python. Not there: undefined. Of undefined: an error.
absl::StatusOr<Value> GetAttribute(const Value& object, std::string_view name, Budget& budget);
// object[key]: a key before a method.
absl::StatusOr<Value> GetItem(const Value& object, const Value& key, Budget& budget);
// object[start:stop:step]; bounds are integers, none or (as null) absent.
absl::StatusOr<Value> GetSlice(const Value& object, const Value* start, const Value* stop,
                               const Value* step, Budget& budget);

}  // namespace orrery::rollout::jinja
