#include "rewards/math_relation.h"

#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace orrery::rewards {
namespace {

using Kind = Answer::Kind;
using Op = Expression::Op;

// One comparison as "difference OP 0" with OP one of = ne < le.
struct Condition {
  Expression difference;
  std::string op;
};

std::optional<std::vector<Condition>> Conditions(const Answer& a) {
  std::vector<Condition> conditions;
  for (size_t i = 0; i < a.operators.size(); ++i) {
    if (a.items[i].kind != Kind::kScalar || a.items[i + 1].kind != Kind::kScalar)
      return std::nullopt;
    const Expression* left = &a.items[i].scalar;
    const Expression* right = &a.items[i + 1].scalar;
    std::string op = a.operators[i];
    if (op == "in" || op == "approx") return std::nullopt;
    if (op == ">" || op == "ge") {
      std::swap(left, right);
      op = op == ">" ? "<" : "le";
    }
    Expression difference;
    difference.op = Op::kAdd;
    difference.args = {*left, Expression::Unary(Op::kNegate, *right)};
    conditions.push_back({std::move(difference), std::move(op)});
  }
  return conditions;
}

Evaluation Ratio(const Evaluation& a, const Evaluation& b) {
  Evaluation result;
  if (!a.known || !b.known) return result;
  if (a.exact && b.exact) {
    if (a.exact->IsZero() || b.exact->IsZero()) return result;
    result.exact = Divide(*a.exact, *b.exact);
    if (!result.exact) return result;
    result.value = result.exact->ToDouble();
    result.known = true;
    return result;
  }
  const double size_a = std::abs(a.value), size_b = std::abs(b.value);
  if (size_a <= 2 * a.error || size_b <= 2 * b.error) return result;
  result.value = a.value / b.value;
  result.error = 2 * std::abs(result.value) * (a.error / size_a + b.error / size_b) +
                 1e-15 * std::abs(result.value);
  result.known = std::isfinite(result.value.real()) && std::isfinite(result.value.imag());
  return result;
}

bool EqualConditions(const Condition& a, const Condition& b) {
  if (a.op != b.op) return false;
  std::set<std::string> names_a, names_b;
  CollectVariables(a.difference, &names_a);
  CollectVariables(b.difference, &names_b);
  if (names_a != names_b || names_a.empty()) return false;
  std::optional<Evaluation> ratio;
  int num_equal = 0;
  for (int i = 0; i < kNumPoints; ++i) {
    const Evaluation next = Ratio(Evaluate(a.difference, {1, i}), Evaluate(b.difference, {1, i}));
    if (!next.known) continue;
    if (!ratio) {
      ratio = next;
      continue;
    }
    const Comparison result = Compare(*ratio, next);
    if (result == Comparison::kDifferent) return false;
    if (result == Comparison::kEqual) ++num_equal;
  }
  if (num_equal < kMinKnownPoints) return false;
  const bool inequality = a.op == "<" || a.op == "le";
  return !inequality || (ratio->value.real() > 0 && ratio->value.imag() == 0);
}

bool EqualRatio(const Answer& truth, const Answer& given) {
  if (given.operators.size() != 1 || given.operators[0] != ":") return false;
  for (const Answer* side : {&truth.items[0], &truth.items[1], &given.items[0], &given.items[1]}) {
    if (side->kind != Kind::kScalar) return false;
  }
  return EqualExpressions(
      Expression::Binary(Op::kDivide, truth.items[0].scalar, truth.items[1].scalar),
      Expression::Binary(Op::kDivide, given.items[0].scalar, given.items[1].scalar));
}

}  // namespace

bool EqualSystems(const Answer& truth, const Answer& given) {
  if (truth.operators.size() == 1 && truth.operators[0] == ":") return EqualRatio(truth, given);
  const auto a = Conditions(truth), b = Conditions(given);
  if (!a || !b || a->size() != b->size()) return false;
  std::vector<bool> used(b->size());
  for (const Condition& x : *a) {
    size_t j = 0;
    while (j < b->size() && (used[j] || !EqualConditions(x, (*b)[j]))) ++j;
    if (j == b->size()) return false;
    used[j] = true;
  }
  return true;
}

std::optional<Answer> AsInterval(const Answer& a) {
  Answer interval;
  interval.kind = Kind::kTuple;
  interval.items.resize(2);
  for (Answer& end : interval.items) end.kind = Kind::kScalar;
  Expression infinity = Expression::Named(Op::kInfinity, "");
  interval.items[0].scalar = Expression::Unary(Op::kNegate, infinity);
  interval.items[1].scalar = infinity;
  interval.brackets = "()";
  bool has[2] = {false, false};
  std::string variable;
  for (size_t i = 0; i < a.operators.size(); ++i) {
    const Answer *left = &a.items[i], *right = &a.items[i + 1];
    const std::string& op = a.operators[i];
    const bool less = op == "<" || op == "le";
    if (!less && op != ">" && op != "ge") return std::nullopt;
    if (!less) std::swap(left, right);
    if (left->kind != Kind::kScalar || right->kind != Kind::kScalar) return std::nullopt;
    const bool upper = left->scalar.op == Op::kVariable;
    const Expression& name = upper ? left->scalar : right->scalar;
    const Expression& bound = upper ? right->scalar : left->scalar;
    std::set<std::string> names;
    CollectVariables(bound, &names);
    if (name.op != Op::kVariable || !names.empty() || has[upper]) return std::nullopt;
    if (!variable.empty() && variable != name.name) return std::nullopt;
    variable = name.name;
    has[upper] = true;
    interval.items[upper].scalar = bound;
    if (op == "le" || op == "ge") interval.brackets[upper] = upper ? ']' : '[';
  }
  return interval;
}

std::optional<Answer> AsUnion(const Answer& a) {
  if (a.kind == Kind::kUnion) return a;
  if (a.kind != Kind::kList || !a.alternatives) return std::nullopt;
  Answer whole;
  whole.kind = Kind::kUnion;
  for (const Answer& item : a.items) {
    if (item.kind != Kind::kRelation) return std::nullopt;
    std::optional<Answer> part = AsInterval(item);
    if (!part) return std::nullopt;
    whole.items.push_back(*std::move(part));
  }
  return whole;
}

}  // namespace orrery::rewards
