#include "rewards/math_expression_parser.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "rewards/math_units.h"
#include "rewards/text.h"

namespace orrery::rewards {
namespace {

constexpr auto kFunctions = std::to_array<std::string_view>({
    "sin",
    "cos",
    "tan",
    "cot",
    "sec",
    "csc",
    "ln",
    "log",
    "exp",
    "arcsin",
    "arccos",
    "arctan",
    "sinh",
    "cosh",
    "tanh",
});
constexpr auto kGreek = std::to_array<std::string_view>({
    "alpha",  "beta",  "gamma", "delta", "epsilon", "zeta",  "eta", "theta", "iota",  "kappa",
    "lambda", "mu",    "nu",    "xi",    "rho",     "sigma", "tau", "phi",   "chi",   "psi",
    "omega",  "Gamma", "Delta", "Theta", "Lambda",  "Sigma", "Phi", "Psi",   "Omega", "ell",
});
// Commands that with their argument name one thing.
constexpr auto kDecorations = std::to_array<std::string_view>({
    "overline",
    "overrightarrow",
    "vec",
    "hat",
    "bar",
    "tilde",
    "angle",
    "triangle",
    "widehat",
    "mathcal",
    "mathbb",
});

template <typename Table>
bool Contains(const Table& table, std::string_view name) {
  return std::find(table.begin(), table.end(), name) != table.end();
}

// The longest function name that `word` begins with, if what is left is a short argument: sinx,
// sqrtx.
std::string_view FunctionPrefix(std::string_view word) {
  std::string_view best;
  for (const std::string_view name : kFunctions) {
    if (word.starts_with(name) && name.size() > best.size()) best = name;
  }
  return word.size() - best.size() <= 2 ? best : std::string_view();
}

}  // namespace

bool ExpressionParser::Sum(Expression* out) {
  if (++depth_ > kMaxDepth) return Fail();
  std::vector<Expression> terms;
  while (true) {
    std::optional<Op> sign;
    std::string name;
    if (!TakeSign(!terms.empty(), &sign, &name)) break;
    Expression term;
    if (!Term(&term)) return false;
    if (sign) {
      term = Expression::Unary(*sign, std::move(term));
      term.name = name;
    }
    terms.push_back(std::move(term));
  }
  --depth_;
  if (terms.empty()) return Fail();
  if (terms.size() == 1) {
    *out = std::move(terms[0]);
  } else {
    out->op = Op::kAdd;
    out->args = std::move(terms);
  }
  return true;
}

bool ExpressionParser::TakeSign(bool required, std::optional<Op>* sign, std::string* name) {
  if (Accept("+")) {
    if (Accept("-")) *sign = Op::kNegate;  // "+ -3"; plain text also has "+/-", below
    return !Is("/");
  }
  if (Accept("-")) {
    *sign = Op::kNegate;
    return true;
  }
  if (IsCommand("pm") || IsCommand("mp")) {
    *name = tokens_[at_++].text;
    *sign = Op::kPlusMinus;
    return true;
  }
  return !required;
}

bool ExpressionParser::Term(Expression* out) {
  std::vector<Expression> factors(1);
  if (!Factor(&factors[0])) return false;
  while (true) {
    if (Accept("*")) {
      Expression next;
      if (!SignedFactor(&next)) return false;
      factors.push_back(std::move(next));
    } else if (Accept("/")) {
      Expression next;
      if (!SignedFactor(&next)) return false;
      Expression dividend = Product(std::move(factors));
      factors.clear();
      factors.push_back(Expression::Binary(Op::kDivide, std::move(dividend), std::move(next)));
    } else if (BeginsFactor()) {
      Expression next;
      if (!Factor(&next)) return false;
      factors.push_back(std::move(next));
    } else {
      break;
    }
  }
  *out = Product(std::move(factors));
  return true;
}

Expression ExpressionParser::Product(std::vector<Expression> factors) {
  if (factors.size() == 1) return std::move(factors[0]);
  Expression product;
  product.op = Op::kMultiply;
  product.args = std::move(factors);
  return product;
}

bool ExpressionParser::SignedFactor(Expression* out) {
  if (!Accept("-")) return Factor(out);
  Expression inner;
  if (!Factor(&inner)) return false;
  *out = Expression::Unary(Op::kNegate, std::move(inner));
  return true;
}

bool ExpressionParser::BeginsFactor() const {
  if (AtEnd()) return false;
  const Token& token = tokens_[at_];
  if (token.kind == Kind::kSymbol) return token.Is("(") || token.Is("{") || token.Is("[");
  if (token.kind == Kind::kNumber) return false;
  if (token.kind == Kind::kCommand) return BeginsCommandFactor(token.text);
  if (token.IsWord("and") || token.IsWord("or")) return false;
  return !IsUnitHere(token);
}

bool ExpressionParser::BeginsCommandFactor(std::string_view name) {
  return name == "frac" || name == "sqrt" || name == "binom" || name == "pi" || name == "infty" ||
         name == "lfloor" || name == "lceil" || Contains(kFunctions, name) ||
         Contains(kGreek, name) || Contains(kDecorations, name);
}

bool ExpressionParser::IsUnitHere(const Token& token) const {
  if (plain_) return false;
  const bool after_number = at_ > 0 && tokens_[at_ - 1].kind == Kind::kNumber;
  if (token.from_text) return token.text.size() > 1 || after_number;
  if (token.text.size() == 1 || Contains(kFunctions, token.text)) return false;
  if (token.text == "pi" || token.text == "sqrt" || !FunctionPrefix(token.text).empty())
    return false;
  const std::optional<std::string> known = CanonicalUnit({token.text});
  return token.text.size() >= 4 || (known.has_value() && (after_number || token.text.size() > 2));
}

bool ExpressionParser::Factor(Expression* out) {
  const bool number = IsKind(Kind::kNumber);
  if (!Power(out)) return false;
  const bool plain_integer =
      number && out->op == Op::kNumber && out->num_decimals == 0 && out->number.IsInteger();
  if (plain_integer && !plain_) MixedNumber(out);
  return !failed_;
}

bool ExpressionParser::Power(Expression* out) {
  if (failed_ || ++depth_ > kMaxDepth || !Primary(out) || !Postfix(out)) return Fail();
  --depth_;
  return true;
}

bool ExpressionParser::SignedPower(Expression* out) {
  if (!Accept("-")) return Power(out);
  Expression inner;
  if (!Power(&inner)) return false;
  *out = Expression::Unary(Op::kNegate, std::move(inner));
  return true;
}

void ExpressionParser::MixedNumber(Expression* whole) {
  const size_t begin = at_;
  Expression fraction;
  std::vector<Token> before;
  if (IsCommand("frac")) {
    before = tokens_;  // reading \frac12 takes its number apart
    if (!Primary(&fraction)) return;
  } else if (IsKind(Kind::kNumber) && tokens_[at_].space_before && Is("/", 1) &&
             IsKind(Kind::kNumber, 2)) {
    fraction = Expression::Binary(Op::kDivide, Expression::Number(tokens_[at_].value),
                                  Expression::Number(tokens_[at_ + 2].value));
    at_ += 3;
  } else {
    return;
  }
  if (IsProperFraction(fraction)) {
    *whole = Expression::Binary(Op::kAdd, std::move(*whole), std::move(fraction));
    return;
  }
  at_ = begin;
  split_number_ = kNone;
  if (!before.empty()) tokens_ = std::move(before);
}

bool ExpressionParser::IsProperFraction(const Expression& e) {
  const auto plain_integer = [](const Expression& part) {
    return part.op == Op::kNumber && part.num_decimals == 0 && part.number.IsInteger();
  };
  return e.op == Op::kDivide && plain_integer(e.args[0]) && plain_integer(e.args[1]) &&
         e.args[0].number < e.args[1].number;
}

bool ExpressionParser::Postfix(Expression* out) {
  while (true) {
    if (Is("!") && !Is("=", 1)) {
      ++at_;
      *out = Expression::Unary(Op::kFunction, std::move(*out));
      out->name = "factorial";
    } else if (Accept("deg")) {
      *out = Expression::Unary(Op::kDegrees, std::move(*out));
    } else if (Accept("^")) {
      if (DegreeSign()) {
        *out = Expression::Unary(Op::kDegrees, std::move(*out));
        continue;
      }
      Expression exponent;
      if (!Exponent(&exponent)) return false;
      *out = Expression::Binary(Op::kPower, std::move(*out), std::move(exponent));
      return true;  // towers are read inside the exponent
    } else {
      return true;
    }
  }
}

bool ExpressionParser::DegreeSign() {
  if (AcceptCommand("circ") || Accept("deg")) return true;
  if (!Is("{") || at_ + 2 >= tokens_.size() || !tokens_[at_ + 2].Is("}")) return false;
  if (!tokens_[at_ + 1].IsCommand("circ") && !tokens_[at_ + 1].Is("deg")) return false;
  at_ += 3;
  return true;
}

bool ExpressionParser::Exponent(Expression* out) {
  if (!Is("{")) return SignedPower(out);
  if (!Argument(out)) return false;
  if (!Accept("^")) return true;  // x^{a}^b is no LaTeX, but plain text has it
  Expression upper;
  if (++depth_ > kMaxDepth || !Exponent(&upper)) return Fail();
  --depth_;
  *out = Expression::Binary(Op::kPower, std::move(*out), std::move(upper));
  return true;
}

bool ExpressionParser::Argument(Expression* out) {
  if (Accept("{")) return Sum(out) && (Accept("}") || Fail());
  if (!IsKind(Kind::kNumber)) return !AtEnd() && Primary(out);
  Token& token = tokens_[at_];
  if (token.num_decimals > 0 || token.repeating) return Fail();
  *out = Expression::Number(Rational(token.text[0] - '0'));
  if (token.text.size() == 1) {
    ++at_;
  } else {
    token.text.erase(0, 1);
    token.space_before = false;
    token.value = *Rational::FromDecimal(token.text);
    split_number_ = at_;
  }
  return true;
}

bool ExpressionParser::Primary(Expression* out) {
  if (AtEnd()) return Fail();
  const Token& token = tokens_[at_];
  switch (token.kind) {
    case Kind::kNumber:
      return NumberPrimary(out);
    case Kind::kWord:
      return WordPrimary(out);
    case Kind::kCommand:
      return CommandPrimary(out);
    case Kind::kSymbol:
      break;
  }
  if (Accept("(")) return Sum(out) && (Accept(")") || Fail());
  if (Accept("[")) return Sum(out) && (Accept("]") || Fail());
  if (Accept("{")) return Sum(out) && (Accept("}") || Fail());
  if (Accept("|")) {
    Expression inner;
    if (!Sum(&inner) || !Accept("|")) return Fail();
    return Call("abs", std::move(inner), out);
  }
  return Fail();
}

bool ExpressionParser::Call(std::string name, Expression arg, Expression* out) {
  *out = Expression::Unary(Op::kFunction, std::move(arg));
  out->name = std::move(name);
  return true;
}

bool ExpressionParser::NumberPrimary(Expression* out) {
  if (split_number_ == at_) return Fail();  // digits left over from \sqrt13
  const Token& token = tokens_[at_++];
  *out = Expression::Number(token.value);
  out->num_decimals = token.num_decimals;
  out->num_significant = token.num_significant;
  return true;
}

bool ExpressionParser::WordPrimary(Expression* out) {
  Token& token = tokens_[at_];
  if (token.text == "sqrt") return ++at_, Root(out, /*latex=*/false);
  if (token.text == "pi") return ++at_, Constant("pi", out);
  if (!plain_ && (token.text == "inf" || token.text == "infinity" || token.text == "oo")) {
    ++at_;
    *out = Expression::Named(Op::kInfinity, "");
    return true;
  }
  if (Contains(kFunctions, token.text)) {
    const std::string name = token.text;
    ++at_;
    return Function(name, out);
  }
  const std::string_view prefix = FunctionPrefix(token.text);
  if (!prefix.empty() && !token.from_text) {
    const std::string name(prefix);
    token.text.erase(0, name.size());
    return Function(name, out);
  }
  if (token.text.size() > 1 && (token.from_text || (!plain_ && token.text.size() >= 4)))
    return Fail();
  if (!IsLetter(token.text[0])) return Fail();
  return Variable(TakeLetter(), out);
}

bool ExpressionParser::Constant(std::string name, Expression* out) {
  *out = Expression::Named(Op::kConstant, std::move(name));
  return true;
}

bool ExpressionParser::Variable(std::string name, Expression* out) {
  if (Accept("_")) {
    name += "_";
    if (!AppendArgument(&name)) return Fail();
  }
  while (Accept("'")) name += "'";
  if (!plain_ && (name == "e" || name == "i")) return Constant(name, out);
  *out = Expression::Named(Op::kVariable, std::move(name));
  return true;
}

bool ExpressionParser::AppendArgument(std::string* name) {
  if (AtEnd()) return false;
  if (!Is("{")) {
    *name += tokens_[at_++].text;
    return true;
  }
  const size_t close = Closing(at_);
  if (close == tokens_.size()) return false;
  for (++at_; at_ < close; ++at_) *name += tokens_[at_].text;
  ++at_;
  return true;
}

bool ExpressionParser::CommandPrimary(Expression* out) {
  const std::string name = tokens_[at_++].text;
  if (name == "frac") return Fraction(out);
  if (name == "binom") return Binomial(out);
  if (name == "sqrt") return Root(out, /*latex=*/true);
  if (name == "pi") return Constant("pi", out);
  if (name == "infty") {
    *out = Expression::Named(Op::kInfinity, "");
    return true;
  }
  if (name == "lfloor" || name == "lceil") return Rounding(name == "lceil", out);
  if (Contains(kFunctions, name)) return Function(name, out);
  if (Contains(kGreek, name)) return Variable("\\" + name, out);
  if (!Contains(kDecorations, name)) return Fail();
  std::string whole = "\\" + name + " ";
  if (!AppendArgument(&whole)) return Fail();
  return Variable(std::move(whole), out);
}

bool ExpressionParser::Fraction(Expression* out) {
  Expression numerator, denominator;
  if (!Argument(&numerator)) return Fail();
  split_number_ = kNone;  // \frac43: the 3 is the denominator
  if (!Argument(&denominator)) return Fail();
  *out = Expression::Binary(Op::kDivide, std::move(numerator), std::move(denominator));
  return true;
}

bool ExpressionParser::Binomial(Expression* out) {
  Expression n, k;
  if (!Argument(&n)) return Fail();
  split_number_ = kNone;
  if (!Argument(&k)) return Fail();
  *out = Expression::Binary(Op::kFunction, std::move(n), std::move(k));
  out->name = "binom";
  return true;
}

bool ExpressionParser::Rounding(bool up, Expression* out) {
  Expression inner;
  if (!Sum(&inner) || !AcceptCommand(up ? "rceil" : "rfloor")) return Fail();
  return Call(up ? "ceil" : "floor", std::move(inner), out);
}

bool ExpressionParser::Root(Expression* out, bool latex) {
  Expression index = Expression::Number(Rational(2));
  if (latex && Accept("[")) {
    if (!Sum(&index) || !Accept("]")) return Fail();
  }
  Expression radicand;
  if (latex ? !Argument(&radicand) : !Primary(&radicand)) return Fail();
  *out = Expression::Binary(Op::kRoot, std::move(radicand), std::move(index));
  return true;
}

bool ExpressionParser::Function(std::string name, Expression* out) {
  std::optional<Expression> base, power;
  if (name == "log" && Accept("_")) {
    base.emplace();
    if (!Argument(&*base)) return Fail();
  }
  if (Accept("^")) {
    power.emplace();
    if (Is("{") ? !Argument(&*power) : !SignedPower(&*power)) return Fail();
  }
  Expression arg;
  if (!FunctionArgument(&arg)) return Fail();
  const bool inverse = power && power->op == Op::kNegate && power->args[0].op == Op::kNumber &&
                       power->args[0].number == Rational(1);
  if (inverse && (name == "sin" || name == "cos" || name == "tan")) {
    name = "arc" + name;
    power.reset();
  }
  Call(std::move(name), std::move(arg), out);
  if (base) out->args.push_back(*std::move(base));
  if (power) *out = Expression::Binary(Op::kPower, std::move(*out), *std::move(power));
  return true;
}

bool ExpressionParser::FunctionArgument(Expression* out) {
  if (AtEnd()) return Fail();
  if (Is("(") || Is("{") || Is("[") || Is("|")) return Primary(out);
  std::vector<Expression> factors;
  do {
    Expression factor;
    if (!Factor(&factor)) return false;
    factors.push_back(std::move(factor));
  } while (BeginsFactor() && !Is("(") && !AtFunction());
  *out = Product(std::move(factors));
  if (Accept("/")) {  // \sin \pi/6
    Expression divisor;
    if (!Factor(&divisor)) return false;
    *out = Expression::Binary(Op::kDivide, std::move(*out), std::move(divisor));
  }
  return true;
}

bool ExpressionParser::AtFunction() const {
  const Token& token = tokens_[at_];
  return token.kind != Kind::kSymbol && Contains(kFunctions, token.text);
}

}  // namespace orrery::rewards
