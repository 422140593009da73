// Scalar expressions of answers and their values. Values are exact fractions as long as they are
// small enough, and complex doubles with a running error bound beyond; so equality needs no tuned
// tolerance, and towers of exponents cost nothing (they become "unknown").
#pragma once

#include <complex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rewards/rational.h"

namespace orrery::rewards {

struct Expression {
  enum class Op {
    kNumber,    // number
    kVariable,  // name
    kConstant,  // name: pi, e, i
    kInfinity,
    kAdd,       // args, any number
    kMultiply,  // args, any number
    kDivide,    // args[0] / args[1]
    kNegate,
    kPlusMinus,  // +args[0] under the upper sign, -args[0] under the lower; name "mp": the reverse
    kPower,      // args[0] ^ args[1]
    kRoot,       // the args[1]-th root of args[0], real for odd roots of negative numbers
    kFunction,   // name of args[0]; "log" may have its base as args[1]; "binom" takes two
    kDegrees,    // args[0] with a degree sign
  };
  Op op = Op::kNumber;
  Rational number;
  std::string name;
  std::vector<Expression> args;
  int num_decimals = 0;  // kNumber as written
  int num_significant = 0;

  static Expression Number(Rational value);
  static Expression Named(Op op, std::string name);
  static Expression Unary(Op op, Expression arg);
  static Expression Binary(Op op, Expression a, Expression b);
};

// One evaluation: which sign stands for plus-minus, and where the free variables are.
struct EvaluationPoint {
  int sign = 1;
  int index = 0;  // of the point; a variable's value is a fixed fraction of (name, index)
};

// exact, or value within `error`; neither known where `known` is false (too large, division by
// zero, infinity, a function outside its domain).
struct Evaluation {
  bool known = false;
  std::optional<Rational> exact;
  std::complex<double> value;
  double error = 0;
};

Evaluation Evaluate(const Expression& expression, const EvaluationPoint& point);

void CollectVariables(const Expression& expression, std::set<std::string>* names);
bool HasPlusMinus(const Expression& expression);
// +1 or -1 for a signed infinity, 0 for anything else.
int InfinitySign(const Expression& expression);

enum class Comparison { kEqual, kDifferent, kUnknown };
Comparison Compare(const Evaluation& a, const Evaluation& b);

// Equal at every point tried, with enough points that said something. Plus-minus takes the same
// sign on both sides.
bool EqualExpressions(const Expression& a, const Expression& b, int sign_a = 1, int sign_b = 1);

inline constexpr int kNumPoints = 8;
inline constexpr int kMinKnownPoints = 4;

}  // namespace orrery::rewards
