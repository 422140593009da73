#include "rewards/math_expression.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "orchestrator/base/hash.h"

namespace orrery::rewards {
namespace {

using Complex = std::complex<double>;
using Op = Expression::Op;

// A few units in the last place: what one libm call or one arithmetic step may be off by.
constexpr double kStep = 8 * std::numeric_limits<double>::epsilon();
constexpr int64_t kMaxFactorial = 1000;

Evaluation Unknown() { return {}; }

Evaluation Exact(std::optional<Rational> value) {
  if (!value) return Unknown();
  Evaluation result;
  result.known = true;  // the fraction is the value, whether or not a double can hold it
  result.value = value->ToDouble();
  result.error = kStep * std::abs(result.value);
  result.exact = std::move(value);
  return result;
}

// `error` is what the arguments' errors make of it; the step's own rounding is added here.
Evaluation Inexact(Complex value, double error) {
  Evaluation result;
  if (value.imag() == 0) value.imag(0.0);  // -0 would choose the other branch of a root
  result.value = value;
  result.error = error + kStep * std::abs(value);
  result.known =
      std::isfinite(value.real()) && std::isfinite(value.imag()) && std::isfinite(result.error);
  return result;
}

bool UsableAsDouble(const Evaluation& a) {
  return a.known && std::isfinite(a.value.real()) && std::isfinite(a.value.imag());
}

Evaluation Sum(const Evaluation& a, const Evaluation& b) {
  if (a.exact && b.exact) {
    if (Evaluation exact = Exact(Add(*a.exact, *b.exact)); exact.known) return exact;
  }
  if (!UsableAsDouble(a) || !UsableAsDouble(b)) return Unknown();
  // Cancellation shows in the error, which keeps the size of the operands.
  return Inexact(a.value + b.value, a.error + b.error);
}

Evaluation Product(const Evaluation& a, const Evaluation& b) {
  if (a.exact && b.exact) {
    if (Evaluation exact = Exact(Multiply(*a.exact, *b.exact)); exact.known) return exact;
  }
  if (!UsableAsDouble(a) || !UsableAsDouble(b)) return Unknown();
  return Inexact(a.value * b.value,
                 std::abs(a.value) * b.error + std::abs(b.value) * a.error + a.error * b.error);
}

Evaluation Quotient(const Evaluation& a, const Evaluation& b) {
  if (a.exact && b.exact) {
    if (b.exact->IsZero()) return Unknown();
    if (Evaluation exact = Exact(Divide(*a.exact, *b.exact)); exact.known) return exact;
  }
  if (!UsableAsDouble(a) || !UsableAsDouble(b)) return Unknown();
  const double size = std::abs(b.value);
  if (size <= 2 * b.error) return Unknown();  // may be zero
  const Complex value = a.value / b.value;
  return Inexact(value, (a.error + std::abs(value) * b.error) / (size - b.error));
}

Evaluation Negated(Evaluation a) {
  a.value = -a.value;
  if (a.exact) a.exact = Subtract(0, *a.exact);
  return a;
}

// f(a) with the derivative's size at a, which turns the argument's error into the result's.
Evaluation Apply(const Evaluation& a, Complex value, double slope) {
  if (!UsableAsDouble(a) || a.error > 0.01 * (1 + std::abs(a.value))) return Unknown();
  // Half as much again for the curvature over such a small interval.
  return Inexact(value, 1.5 * slope * a.error);
}

Evaluation NthRoot(const Evaluation& a, int64_t n) {
  if (a.exact) {
    if (const std::optional<Rational> root = Root(*a.exact, n)) return Exact(root);
  }
  if (!UsableAsDouble(a) || n == 0) return Unknown();
  const bool real = a.value.imag() == 0;
  const double size = std::abs(a.value);
  if (size <= 2 * a.error) return Unknown();
  const Complex value = real && a.value.real() < 0 && n % 2 != 0
                            ? Complex(-std::pow(size, 1.0 / static_cast<double>(n)))
                            : std::pow(a.value, 1.0 / static_cast<double>(n));
  return Apply(a, value, std::abs(value) / (size * std::abs(static_cast<double>(n))));
}

Evaluation IntegerPower(const Evaluation& base, int64_t exponent) {
  if (base.exact) {
    if (Evaluation exact = Exact(Power(*base.exact, exponent)); exact.known) return exact;
  }
  if (!UsableAsDouble(base) || std::abs(exponent) > 10000) return Unknown();
  const double size = std::abs(base.value);
  if (size <= 2 * base.error) return Unknown();
  const Complex value = std::pow(base.value, static_cast<double>(exponent));
  const double count = std::abs(static_cast<double>(exponent));
  Evaluation result = Apply(base, value, count * std::abs(value) / size);
  result.error += count * kStep * std::abs(value);
  return result;
}

Evaluation Raised(const Evaluation& base, const Evaluation& exponent) {
  if (!base.known || !exponent.known) return Unknown();
  if (exponent.exact) {
    const std::optional<int64_t> numerator = exponent.exact->numerator().ToInt64();
    const std::optional<int64_t> denominator = exponent.exact->denominator().ToInt64();
    if (numerator && denominator && *denominator == 1) return IntegerPower(base, *numerator);
    if (numerator && denominator && *denominator <= 64) {
      return IntegerPower(NthRoot(base, *denominator), *numerator);
    }
  }
  if (!UsableAsDouble(base) || !UsableAsDouble(exponent)) return Unknown();
  const double size = std::abs(base.value);
  if (size <= 2 * base.error) return Unknown();
  const Complex log = std::log(base.value);
  const Complex value = std::exp(exponent.value * log);
  const double relative = std::abs(exponent.value) * base.error / size +
                          std::abs(log) * exponent.error + kStep * std::abs(exponent.value * log);
  return Inexact(value, 1.5 * std::abs(value) * relative);
}

Evaluation Logarithm(const Evaluation& a) {
  if (a.exact && *a.exact == Rational(1)) return Exact(Rational(0));
  if (!UsableAsDouble(a) || std::abs(a.value) <= 2 * a.error) return Unknown();
  return Apply(a, std::log(a.value), 1 / std::abs(a.value));
}

Evaluation Factorial(const Evaluation& a) {
  if (!a.exact || !a.exact->IsInteger() || a.exact->IsNegative()) return Unknown();
  const std::optional<int64_t> n = a.exact->numerator().ToInt64();
  if (!n || *n > kMaxFactorial) return Unknown();
  Integer product(1);
  for (int64_t i = 2; i <= *n; ++i) product = product * Integer(i);
  return Exact(Rational::Make(std::move(product), 1));
}

Evaluation Binomial(const Evaluation& a, const Evaluation& b) {
  if (!a.exact || !b.exact || !a.exact->IsInteger() || !b.exact->IsInteger()) return Unknown();
  const std::optional<int64_t> n = a.exact->numerator().ToInt64();
  const std::optional<int64_t> k = b.exact->numerator().ToInt64();
  if (!n || !k || *k < 0 || *n < *k || *n > kMaxFactorial) return Unknown();
  Integer result(1);
  for (int64_t i = 1; i <= *k; ++i) result = result * Integer(*n - *k + i) / Integer(i);
  return Exact(Rational::Make(std::move(result), 1));
}

Evaluation Rounded(const Evaluation& a, bool up) {
  if (!a.exact) return Unknown();
  Integer whole = a.exact->numerator() / a.exact->denominator();  // towards zero
  const std::optional<Rational> rest = Subtract(*a.exact, *Rational::Make(whole, 1));
  if (up && !rest->IsZero() && !rest->IsNegative()) whole = whole + Integer(1);
  if (!up && rest->IsNegative()) whole = whole - Integer(1);
  return Exact(Rational::Make(std::move(whole), 1));
}

Evaluation Absolute(const Evaluation& a) {
  if (a.exact) return a.exact->IsNegative() ? Negated(a) : a;
  return UsableAsDouble(a) ? Inexact(std::abs(a.value), a.error) : Unknown();
}

Evaluation Trigonometric(const std::string& name, const Evaluation& a) {
  const Complex z = a.value;
  const Complex sine = std::sin(z), cosine = std::cos(z);
  const auto over = [&](Complex top, Complex bottom, double slope) {
    return std::abs(bottom) < 1e-8 ? Unknown() : Apply(a, top / bottom, slope);
  };
  const double s = std::abs(sine), c = std::abs(cosine);
  if (name == "sin") return Apply(a, sine, std::max(c, 1e-8) + a.error);
  if (name == "cos") return Apply(a, cosine, std::max(s, 1e-8) + a.error);
  if (name == "tan") return over(sine, cosine, 1 / (c * c));
  if (name == "cot") return over(cosine, sine, 1 / (s * s));
  if (name == "sec") return over(1.0, cosine, s / (c * c));
  if (name == "csc") return over(1.0, sine, c / (s * s));
  const double one_minus = std::sqrt(std::abs(1.0 - z * z));
  if (name == "arcsin" || name == "arccos") {
    if (one_minus < 1e-7) return Unknown();
    return Apply(a, name == "arcsin" ? std::asin(z) : std::acos(z), 1 / one_minus);
  }
  if (name == "arctan") return Apply(a, std::atan(z), 1 / std::abs(1.0 + z * z));
  if (name == "sinh") return Apply(a, std::sinh(z), std::abs(std::cosh(z)));
  if (name == "cosh") return Apply(a, std::cosh(z), std::abs(std::sinh(z)));
  if (name == "tanh") return Apply(a, std::tanh(z), 1);
  return Unknown();
}

// arcsin and arccos at their end points, where the slope is infinite but the value known.
std::optional<Evaluation> SpecialAngle(const std::string& name, const Evaluation& a) {
  if (!a.exact) return std::nullopt;
  constexpr double kHalfPi = std::numbers::pi / 2;
  if (a.exact->IsZero() &&
      (name == "sin" || name == "tan" || name == "arcsin" || name == "arctan")) {
    return Exact(Rational(0));
  }
  if (a.exact->IsZero() && (name == "cos" || name == "sec")) return Exact(Rational(1));
  if (*a.exact == Rational(1) && name == "arcsin") return Inexact(kHalfPi, 0);
  if (*a.exact == Rational(-1) && name == "arcsin") return Inexact(-kHalfPi, 0);
  if (*a.exact == Rational(1) && name == "arccos") return Exact(Rational(0));
  if (*a.exact == Rational(-1) && name == "arccos") return Inexact(std::numbers::pi, 0);
  return std::nullopt;
}

Evaluation FunctionValue(const Expression& e, const std::vector<Evaluation>& args) {
  const Evaluation& a = args[0];
  if (!a.known) return Unknown();
  if (e.name == "abs") return Absolute(a);
  if (e.name == "floor" || e.name == "ceil") return Rounded(a, e.name == "ceil");
  if (e.name == "factorial") return Factorial(a);
  if (e.name == "binom") return Binomial(a, args[1]);
  if (e.name == "ln") return Logarithm(a);
  if (e.name == "log") {
    const Evaluation base = args.size() > 1 ? args[1] : Exact(Rational(10));
    return Quotient(Logarithm(a), Logarithm(base));
  }
  if (e.name == "exp") return Raised(Inexact(std::numbers::e, 0), a);
  if (const std::optional<Evaluation> special = SpecialAngle(e.name, a)) return *special;
  return UsableAsDouble(a) ? Trigonometric(e.name, a) : Unknown();
}

Evaluation ConstantValue(const std::string& name) {
  if (name == "pi") return Inexact(std::numbers::pi, 0);
  if (name == "e") return Inexact(std::numbers::e, 0);
  return Inexact(Complex(0, 1), 0);
}

// A fraction of small parts, of both signs, away from 0 and 1, and hardly the same for two names.
Evaluation VariableValue(const std::string& name, int index) {
  uint64_t hash = HashSeed({static_cast<uint64_t>(index)});
  for (const char c : name) hash = Mix64(hash ^ static_cast<unsigned char>(c));
  const auto numerator = static_cast<int64_t>(hash % 89 + 11);
  const auto denominator = static_cast<int64_t>((hash >> 20) % 37 + 23);
  const bool negative = index >= kNumPoints / 2 && ((hash >> 40) & 1);
  return Exact(Rational::Make(negative ? -numerator : numerator, denominator));
}

Evaluation Combine(const Expression& e, const EvaluationPoint& point) {
  std::vector<Evaluation> args;
  for (const Expression& arg : e.args) {
    args.push_back(Evaluate(arg, point));
    if (!args.back().known) return Unknown();
  }
  switch (e.op) {
    case Op::kAdd:
    case Op::kMultiply: {
      Evaluation total = args[0];
      for (size_t i = 1; i < args.size(); ++i) {
        total = e.op == Op::kAdd ? Sum(total, args[i]) : Product(total, args[i]);
      }
      return total;
    }
    case Op::kDivide:
      return Quotient(args[0], args[1]);
    case Op::kNegate:
      return Negated(args[0]);
    case Op::kPlusMinus:
      return (point.sign > 0) == (e.name != "mp") ? args[0] : Negated(args[0]);
    case Op::kPower:
      return Raised(args[0], args[1]);
    case Op::kRoot: {
      const std::optional<int64_t> n = args[1].exact && args[1].exact->IsInteger()
                                           ? args[1].exact->numerator().ToInt64()
                                           : std::nullopt;
      return n && *n > 0 && *n <= 1000 ? NthRoot(args[0], *n)
                                       : Raised(args[0], Quotient(Exact(Rational(1)), args[1]));
    }
    case Op::kFunction:
      return FunctionValue(e, args);
    case Op::kDegrees:
      return Product(args[0], Inexact(std::numbers::pi / 180, 0));
    default:
      return Unknown();
  }
}

}  // namespace

Expression Expression::Number(Rational value) {
  Expression e;
  e.number = std::move(value);
  return e;
}

Expression Expression::Named(Op op, std::string name) {
  Expression e;
  e.op = op;
  e.name = std::move(name);
  return e;
}

Expression Expression::Unary(Op op, Expression arg) {
  Expression e;
  e.op = op;
  e.args.push_back(std::move(arg));
  return e;
}

Expression Expression::Binary(Op op, Expression a, Expression b) {
  Expression e = Unary(op, std::move(a));
  e.args.push_back(std::move(b));
  return e;
}

Evaluation Evaluate(const Expression& expression, const EvaluationPoint& point) {
  switch (expression.op) {
    case Op::kNumber:
      return Exact(expression.number);
    case Op::kVariable:
      return VariableValue(expression.name, point.index);
    case Op::kConstant:
      return ConstantValue(expression.name);
    case Op::kInfinity:
      return Unknown();
    default:
      return Combine(expression, point);
  }
}

void CollectVariables(const Expression& expression, std::set<std::string>* names) {
  if (expression.op == Op::kVariable) names->insert(expression.name);
  for (const Expression& arg : expression.args) CollectVariables(arg, names);
}

bool HasPlusMinus(const Expression& expression) {
  if (expression.op == Op::kPlusMinus) return true;
  return std::any_of(expression.args.begin(), expression.args.end(), HasPlusMinus);
}

int InfinitySign(const Expression& expression) {
  if (expression.op == Op::kInfinity) return 1;
  return expression.op == Op::kNegate ? -InfinitySign(expression.args[0]) : 0;
}

Comparison Compare(const Evaluation& a, const Evaluation& b) {
  if (!a.known || !b.known) return Comparison::kUnknown;
  if (a.exact && b.exact) return *a.exact == *b.exact ? Comparison::kEqual : Comparison::kDifferent;
  if (!UsableAsDouble(a) || !UsableAsDouble(b)) return Comparison::kUnknown;
  const double error = a.error + b.error;
  if (std::abs(a.value - b.value) > error) return Comparison::kDifferent;
  // Within the error; which says something only where the error is small itself.
  const double size = std::max(std::abs(a.value), std::abs(b.value));
  return error <= 1e-9 * std::max(size, 1e-3) ? Comparison::kEqual : Comparison::kUnknown;
}

bool EqualExpressions(const Expression& a, const Expression& b, int sign_a, int sign_b) {
  std::set<std::string> names;
  CollectVariables(a, &names);
  CollectVariables(b, &names);
  const int num_points = names.empty() ? 1 : kNumPoints;
  int num_equal = 0;
  for (int i = 0; i < num_points; ++i) {
    const Comparison result = Compare(Evaluate(a, {sign_a, i}), Evaluate(b, {sign_b, i}));
    if (result == Comparison::kDifferent) return false;
    if (result == Comparison::kEqual) ++num_equal;
  }
  return num_equal >= (names.empty() ? 1 : kMinKnownPoints);
}

}  // namespace orrery::rewards
