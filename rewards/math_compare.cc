#include "rewards/math_compare.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rewards/math_answer.h"
#include "rewards/math_relation.h"

namespace orrery::rewards {
namespace {

using Kind = Answer::Kind;
using Op = Expression::Op;

constexpr size_t kMaxItems = 64;  // matching without order is quadratic

// A decimal long enough to stand for an irrational or repeating value.
constexpr int kMinSignificantDigits = 10;

class Comparer {
 public:
  explicit Comparer(const MathOptions& options) : options_(options) {}

  bool Equal(const Answer& truth, const Answer& given) const {
    if (!truth.canonical.empty() && truth.canonical == given.canonical) return true;
    const bool same_words = !truth.words.empty() && truth.words == given.words;
    if (same_words && (truth.is_text || truth.words.size() > 1)) return true;
    if (truth.is_text) return false;
    return EqualStructure(truth, given);
  }

 private:
  bool EqualStructure(const Answer& truth, const Answer& given) const {
    if (truth.kind == Kind::kText || given.kind == Kind::kText) return false;
    if (truth.kind == Kind::kBase || given.kind == Kind::kBase) return EqualBase(truth, given);
    if (truth.kind == Kind::kRelation || given.kind == Kind::kRelation) {
      return EqualRelation(truth, given);
    }
    if (IsSeveral(truth) || IsSeveral(given)) {
      const std::optional<Answer> a = AsUnion(truth), b = AsUnion(given);
      if (a && b) return EqualWithoutOrder(a->items, b->items);
      return EqualSeveral(truth, given);
    }
    if (truth.kind != given.kind) return false;
    switch (truth.kind) {
      case Kind::kScalar:
        return EqualScalar(truth, given);
      case Kind::kTuple:
        return SameBrackets(truth, given) && EqualInOrder(truth.items, given.items);
      case Kind::kMatrix:
        return truth.brackets == given.brackets && truth.num_columns == given.num_columns &&
               EqualInOrder(truth.items, given.items);
      case Kind::kUnion:
        return EqualWithoutOrder(truth.items, given.items);
      default:
        return false;
    }
  }

  static bool SameBrackets(const Answer& a, const Answer& b) {
    const auto round = [](const std::string& s) { return s == "<>" ? std::string("()") : s; };
    return round(a.brackets) == round(b.brackets);
  }

  bool EqualInOrder(const std::vector<Answer>& a, const std::vector<Answer>& b) const {
    return a.size() == b.size() &&
           std::equal(a.begin(), a.end(), b.begin(),
                      [&](const Answer& x, const Answer& y) { return Equal(x, y); });
  }

  // Every item has a partner of its own. Equality is transitive up to rounding, so greedy is
  // enough.
  bool EqualWithoutOrder(const std::vector<Answer>& a, const std::vector<Answer>& b) const {
    if (a.size() != b.size() || a.size() > kMaxItems) return false;
    std::vector<bool> used(b.size());
    for (const Answer& x : a) {
      size_t j = 0;
      while (j < b.size() && (used[j] || !Equal(x, b[j]))) ++j;
      if (j == b.size()) return false;
      used[j] = true;
    }
    return true;
  }

  // --- several values
  // -----------------------------------------------------------------------------

  static bool IsPlusMinus(const Answer& a) {
    return a.kind == Kind::kScalar && HasPlusMinus(a.scalar);
  }
  static bool IsSeveral(const Answer& a) {
    return a.kind == Kind::kList || a.kind == Kind::kSet || IsPlusMinus(a);
  }

  // The values of a list or set, plus-minus as two.
  static std::vector<Answer> Values(const Answer& a) {
    const bool container = a.kind == Kind::kList || a.kind == Kind::kSet;
    std::vector<Answer> values;
    for (const Answer& item : container ? a.items : std::vector<Answer>{a}) {
      if (!IsPlusMinus(item)) {
        values.push_back(item);
        continue;
      }
      for (const int sign : {1, -1}) {
        values.push_back(item);
        Resolve(sign, &values.back().scalar);
        values.back().canonical.clear();
      }
    }
    return values;
  }

  static void Resolve(int sign, Expression* e) {
    for (Expression& arg : e->args) Resolve(sign, &arg);
    if (e->op != Op::kPlusMinus) return;
    e->op = Op::kNegate;
    if ((sign > 0) != (e->name == "mp")) {
      Expression inner = std::move(e->args[0]);
      *e = std::move(inner);
    }
  }

  bool EqualSeveral(const Answer& truth, const Answer& given) const {
    if (truth.kind == Kind::kTuple || given.kind == Kind::kTuple) return false;
    if (truth.kind == Kind::kMatrix || given.kind == Kind::kMatrix) return false;
    std::vector<Answer> a = Values(truth), b = Values(given);
    if (truth.kind == Kind::kSet || given.kind == Kind::kSet) {
      RemoveDuplicates(&a);
      RemoveDuplicates(&b);
    }
    const bool in_order =
        options_.ordered_lists && truth.kind == Kind::kList && given.kind == Kind::kList;
    return in_order ? EqualInOrder(a, b) : EqualWithoutOrder(a, b);
  }

  void RemoveDuplicates(std::vector<Answer>* values) const {
    if (values->size() > kMaxItems) return;
    std::vector<Answer> unique;
    for (Answer& value : *values) {
      const bool seen = std::any_of(unique.begin(), unique.end(),
                                    [&](const Answer& other) { return Equal(other, value); });
      if (!seen) unique.push_back(std::move(value));
    }
    *values = std::move(unique);
  }

  // --- scalars
  // ------------------------------------------------------------------------------------

  // 4210_5 was asked for in base 5: the digits without the base are it. No conversion between
  // bases.
  static bool EqualBase(const Answer& truth, const Answer& given) {
    if (truth.kind == Kind::kBase && given.kind == Kind::kBase) {
      return truth.digits == given.digits && truth.base == given.base;
    }
    const Answer& based = truth.kind == Kind::kBase ? truth : given;
    const Answer& plain = truth.kind == Kind::kBase ? given : truth;
    const bool may_drop = truth.kind == Kind::kBase || based.base == "10";
    return may_drop && plain.kind == Kind::kScalar && plain.scalar.op == Op::kNumber &&
           plain.unit.empty() && plain.scalar.num_decimals == 0 &&
           plain.scalar.number.ToString() == based.digits;
  }

  static bool EqualScalar(const Answer& truth, const Answer& given) {
    if (truth.unit_known && given.unit_known && truth.unit != given.unit) return false;
    if (EqualValues(truth.scalar, given.scalar)) return true;
    if (truth.percent == given.percent) return false;
    // 50% is 1/2; whether the question wanted 50 or 50% the caller cannot know, so both pass.
    const Answer& with = truth.percent ? truth : given;
    const Answer& without = truth.percent ? given : truth;
    return EqualValues(Expression::Binary(Op::kDivide, with.scalar, Expression::Number(100)),
                       without.scalar);
  }

  static bool EqualValues(const Expression& truth, const Expression& given) {
    const int infinity = InfinitySign(truth);
    if (infinity != 0 || InfinitySign(given) != 0) return infinity == InfinitySign(given);
    return EqualExpressions(truth, given) || IsRoundedTo(truth, given);
  }

  // 0.6666666667 for 2/3, 3.141592654 for pi: at least 10 digits, all right (rounded or cut off).
  // Never for a value with a finite decimal expansion, which can be written down.
  static bool IsRoundedTo(const Expression& truth, const Expression& given) {
    const bool negative = given.op == Op::kNegate;
    const Expression& literal = negative ? given.args[0] : given;
    if (literal.op != Op::kNumber || literal.num_decimals == 0) return false;
    if (literal.num_significant < kMinSignificantDigits || literal.num_significant > 15)
      return false;
    std::set<std::string> names;
    CollectVariables(truth, &names);
    if (!names.empty()) return false;
    const Evaluation value = Evaluate(truth, {});
    if (!value.known || (value.exact && HasFiniteDecimals(*value.exact))) return false;
    if (value.value.imag() != 0) return false;
    const double magnitude = negative ? -value.value.real() : value.value.real();
    const double unit = std::pow(10.0, -literal.num_decimals);
    const double difference = magnitude - literal.number.ToDouble();
    const double slack = value.error + unit * 1e-3;
    return std::abs(difference) <= unit / 2 + slack || (difference >= 0 && difference <= unit);
  }

  static bool HasFiniteDecimals(const Rational& value) {
    Integer rest = value.denominator();
    for (const int64_t prime : {2, 5}) {
      while (rest / Integer(prime) * Integer(prime) == rest) rest = rest / Integer(prime);
    }
    return rest == Integer(1);
  }

  // --- relations
  // ----------------------------------------------------------------------------------

  // The right side of "x = 5", "f(x) = 5", "x \in [0,1]", "(a,b) = (1,2)"; of a chain "x = 6/2 = 3"
  // the last, if all between agree. nullopt where the relation is no such definition.
  std::optional<Answer> Defined(const Answer& a) const {
    if (a.kind != Kind::kRelation) return std::nullopt;
    size_t first = IsName(a.items[0]) ? 1 : 0;
    for (size_t i = 0; i < a.operators.size(); ++i) {
      const std::string& op = a.operators[i];
      const bool definition = op == "=" || (op == "in" && i == 0 && first == 1);
      const bool approximation = op == "approx" && i + 1 == a.operators.size() && i + 1 > first;
      if (!definition && !approximation) return std::nullopt;
    }
    const bool approximate = a.operators.back() == "approx";
    const size_t last = a.items.size() - 1 - (approximate ? 1 : 0);
    for (size_t i = first; i < last; ++i) {
      if (!Equal(a.items[i], a.items[last])) return std::nullopt;
    }
    if (first > last) return std::nullopt;
    return a.items[last];
  }

  // A variable, f(x), or a tuple of variables.
  static bool IsName(const Answer& a) {
    if (a.kind == Kind::kTuple) return std::all_of(a.items.begin(), a.items.end(), IsName);
    if (a.kind != Kind::kScalar) return false;
    const Expression& e = a.scalar;
    if (e.op == Op::kVariable) return true;
    return e.op == Op::kMultiply && e.args.size() == 2 && e.args[0].op == Op::kVariable &&
           e.args[1].op == Op::kVariable;
  }

  bool EqualRelation(const Answer& truth, const Answer& given) const {
    if (truth.kind == Kind::kRelation && given.kind == Kind::kRelation) {
      if (EqualSystems(truth, given)) return true;
      const std::optional<Answer> a = Defined(truth), b = Defined(given);
      return a && b && SameName(truth, given) && Equal(*a, *b);
    }
    const Answer& relation = truth.kind == Kind::kRelation ? truth : given;
    const Answer& other = truth.kind == Kind::kRelation ? given : truth;
    if (const std::optional<Answer> defined = Defined(relation)) {
      return &relation == &truth ? Equal(*defined, other) : Equal(other, *defined);
    }
    const std::optional<Answer> interval = AsInterval(relation);
    return interval && Equal(*interval, other);
  }

  static bool SameName(const Answer& truth, const Answer& given) {
    if (!IsName(truth.items[0]) || !IsName(given.items[0])) return false;
    if (truth.items[0].kind != given.items[0].kind) return false;
    return truth.items[0].kind == Kind::kTuple ||
           EqualExpressions(truth.items[0].scalar, given.items[0].scalar);
  }

  const MathOptions& options_;
};

bool EqualOnce(std::string_view truth, std::string_view given, bool join,
               const MathOptions& options) {
  const Answer a = ReadAnswer(truth, {.join_thousands = true});
  const Answer b = ReadAnswer(given, {.join_thousands = join});
  return Comparer(options).Equal(a, b);
}

}  // namespace

bool EqualMath(std::string_view truth, std::string_view given, const MathOptions& options) {
  if (EqualOnce(truth, given, true, options)) return true;
  return given.find(',') != std::string_view::npos && EqualOnce(truth, given, false, options);
}

}  // namespace orrery::rewards
