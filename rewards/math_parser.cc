// Recursive descent over the tokens of an answer (math_answer.h). Depth is limited; the number of
// steps is linear in the tokens, but for the search of closing brackets.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "rewards/math_answer.h"
#include "rewards/math_units.h"
#include "rewards/text.h"

namespace orrery::rewards {
namespace {

using Op = Expression::Op;
using Kind = Token::Kind;

constexpr int kMaxDepth = 48;

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

class Parser {
 public:
  Parser(std::vector<Token> tokens, bool plain) : tokens_(std::move(tokens)), plain_(plain) {}

  bool ReadAll(Answer* answer) {
    TrimPunctuation();
    return List(answer) && at_ == tokens_.size();
  }

  bool ReadExpressionOnly(Expression* expression) {
    return Sum(expression) && at_ == tokens_.size() && !failed_;
  }

 private:
  // --- tokens
  // -------------------------------------------------------------------------------------

  bool AtEnd() const { return at_ >= tokens_.size(); }
  bool Is(std::string_view symbol, size_t ahead = 0) const {
    return at_ + ahead < tokens_.size() && tokens_[at_ + ahead].Is(symbol);
  }
  bool IsCommand(std::string_view name) const { return !AtEnd() && tokens_[at_].IsCommand(name); }
  bool IsKind(Kind kind, size_t ahead = 0) const {
    return at_ + ahead < tokens_.size() && tokens_[at_ + ahead].kind == kind;
  }
  bool Accept(std::string_view symbol) {
    if (!Is(symbol)) return false;
    ++at_;
    return true;
  }
  bool AcceptCommand(std::string_view name) {
    if (!IsCommand(name)) return false;
    ++at_;
    return true;
  }
  bool Fail() {
    failed_ = true;
    return false;
  }

  void TrimPunctuation() {
    while (!tokens_.empty() && (tokens_.back().Is(",") || tokens_.back().Is(";") ||
                                tokens_.back().Is(":") || tokens_.back().Is("*"))) {
      tokens_.pop_back();
    }
    while (at_ < tokens_.size() && (Is("*") || Is(":"))) ++at_;
  }

  // Leaves the rest of a word of letters behind its first.
  std::string TakeLetter() {
    Token& token = tokens_[at_];
    std::string letter = token.text.substr(0, 1);
    if (token.text.size() == 1) {
      ++at_;
    } else {
      token.text.erase(0, 1);
      token.space_before = false;
    }
    return letter;
  }

  // Index of the token that closes the bracket at `open`; tokens_.size() where none does.
  size_t Closing(size_t open) const {
    int depth = 0;
    for (size_t i = open; i < tokens_.size(); ++i) {
      const Token& t = tokens_[i];
      if (t.Is("(") || t.Is("[") || t.Is("{") || t.Is("set{") || t.IsCommand("langle")) ++depth;
      if (t.Is(")") || t.Is("]") || t.Is("}") || t.Is("set}") || t.IsCommand("rangle")) {
        if (--depth == 0) return i;
      }
    }
    return tokens_.size();
  }

  bool HasTopLevelComma(size_t open, size_t close) const {
    int depth = 0;
    for (size_t i = open + 1; i < close; ++i) {
      const Token& t = tokens_[i];
      if (t.Is("(") || t.Is("[") || t.Is("{") || t.Is("set{")) ++depth;
      if (t.Is(")") || t.Is("]") || t.Is("}") || t.Is("set}")) --depth;
      if (depth == 0 && (t.Is(",") || t.Is(";"))) return true;
    }
    return false;
  }

  // --- structures
  // ---------------------------------------------------------------------------------

  bool List(Answer* answer) {
    if (++depth_ > kMaxDepth) return Fail();
    Answer list;
    list.kind = Answer::Kind::kList;
    do {
      Answer item;
      if (!Relation(&item)) return false;
      list.items.push_back(std::move(item));
    } while (Separator(&list.alternatives));
    --depth_;
    *answer = list.items.size() == 1 ? std::move(list.items[0]) : std::move(list);
    return true;
  }

  // "," ";" "and" "or" ", and"
  bool Separator(bool* alternatives) {
    bool found = Accept(",") || Accept(";");
    if (!AtEnd() && (tokens_[at_].IsWord("and") || tokens_[at_].IsWord("or"))) {
      *alternatives |= tokens_[at_].IsWord("or");
      ++at_;
      found = true;
    }
    return found;
  }

  std::string RelationOperator() {
    for (const std::string_view symbol : {"=", "<", ">", ":"}) {
      if (Is(symbol)) {
        ++at_;
        const bool or_equal = symbol != "=" && symbol != ":" && Accept("=");  // "<="
        return or_equal ? (symbol == "<" ? "le" : "ge") : std::string(symbol);
      }
    }
    if (Is("!") && Is("=", 1)) {
      at_ += 2;
      return "ne";
    }
    for (const std::string_view name : {"le", "ge", "ne", "in", "approx"}) {
      if (AcceptCommand(name)) return std::string(name);
    }
    return "";
  }

  bool Relation(Answer* answer) {
    Answer relation;
    relation.kind = Answer::Kind::kRelation;
    while (true) {
      Answer side;
      if (!Union(&side)) return false;
      relation.items.push_back(std::move(side));
      std::string op = RelationOperator();
      if (op.empty()) break;
      relation.operators.push_back(std::move(op));
    }
    *answer = relation.items.size() == 1 ? std::move(relation.items[0]) : std::move(relation);
    return true;
  }

  bool Union(Answer* answer) {
    Answer whole;
    whole.kind = Answer::Kind::kUnion;
    do {
      Answer part;
      if (!Structure(&part)) return false;
      whole.items.push_back(std::move(part));
    } while (AcceptCommand("cup"));
    *answer = whole.items.size() == 1 ? std::move(whole.items[0]) : std::move(whole);
    return true;
  }

  bool Structure(Answer* answer) {
    if (AtEnd()) return Fail();
    if (AcceptCommand("emptyset")) {
      answer->kind = Answer::Kind::kSet;
      return true;
    }
    if (AcceptCommand("begin")) return Matrix(answer);
    const size_t close = Closing(at_);
    const bool comma = close < tokens_.size() && HasTopLevelComma(at_, close);
    if (Is("set{") || (Is("{") && comma)) return Set(answer);
    if ((Is("(") || Is("[") || IsCommand("langle")) && comma) return Tuple(answer, close);
    return Scalar(answer);
  }

  bool Set(Answer* answer) {
    answer->kind = Answer::Kind::kSet;
    ++at_;
    if (Accept("set}")) return true;
    Answer inside;
    if (!List(&inside) || !(Accept("set}") || Accept("}"))) return Fail();
    if (inside.kind == Answer::Kind::kList) {
      answer->items = std::move(inside.items);
    } else {
      answer->items.push_back(std::move(inside));
    }
    return true;
  }

  bool Tuple(Answer* answer, size_t close) {
    answer->kind = Answer::Kind::kTuple;
    answer->brackets = IsCommand("langle") ? "<" : tokens_[at_].text;
    answer->brackets += tokens_[close].IsCommand("rangle") ? ">" : tokens_[close].text;
    ++at_;
    Answer inside;
    if (!List(&inside) || at_ != close || inside.kind != Answer::Kind::kList) return Fail();
    ++at_;
    answer->items = std::move(inside.items);
    return true;
  }

  // "{pmatrix}" already begun: rows of cells up to \end{...}.
  bool Matrix(Answer* answer) {
    std::string name;
    if (!Accept("{") || !IsKind(Kind::kWord)) return Fail();
    name = tokens_[at_++].text;
    if (!Accept("}")) return Fail();
    if (name == "array" && Accept("{")) {
      while (!AtEnd() && !Accept("}")) ++at_;
    }
    if (!name.ends_with("matrix") && name != "array") return Fail();
    answer->kind = Answer::Kind::kMatrix;
    answer->brackets = name == "vmatrix" ? "v" : "m";
    return Cells(answer) && Accept("{") && IsKind(Kind::kWord) && ++at_ && Accept("}");
  }

  bool Cells(Answer* answer) {
    size_t columns = 0;
    size_t row_begin = 0;
    while (true) {
      Answer cell;
      if (++depth_ > kMaxDepth || !Relation(&cell)) return Fail();
      --depth_;
      answer->items.push_back(std::move(cell));
      if (Accept("&")) continue;
      const size_t width = answer->items.size() - row_begin;
      if (columns != 0 && width != columns) return Fail();
      columns = width;
      row_begin = answer->items.size();
      const bool next_row = Accept("\\");
      if (AcceptCommand("end")) break;
      if (!next_row) return Fail();
    }
    answer->num_columns = static_cast<int>(columns);
    return true;
  }

  bool Scalar(Answer* answer) {
    if (BaseNumber(answer)) return true;
    answer->kind = Answer::Kind::kScalar;
    const bool currency = Accept("currency");
    if (!Sum(&answer->scalar)) return false;
    if (StripDegrees(&answer->scalar)) SetUnit(answer, "degree", true);
    if (currency || Accept("currency")) SetUnit(answer, "dollar", true);
    if (Accept("%")) answer->percent = true;
    return Unit(answer);
  }

  // 52_8 and 52_{8}; the digits stay digits.
  bool BaseNumber(Answer* answer) {
    if (!IsKind(Kind::kNumber) || !Is("_", 1) || tokens_[at_].num_decimals > 0) return false;
    const bool braced = Is("{", 2);
    const size_t base = at_ + (braced ? 3 : 2);
    if (base >= tokens_.size() || tokens_[base].kind != Kind::kNumber) return false;
    if (braced && (base + 1 >= tokens_.size() || !tokens_[base + 1].Is("}"))) return false;
    answer->kind = Answer::Kind::kBase;
    answer->digits = tokens_[at_].text;
    answer->base = tokens_[base].text;
    at_ = base + (braced ? 2 : 1);
    return true;
  }

  static void SetUnit(Answer* answer, std::string name, bool known) {
    answer->unit = std::move(name);
    answer->unit_known = known;
  }

  // Degree signs outside of functions say the unit of the whole.
  static bool StripDegrees(Expression* e) {
    if (e->op == Op::kFunction) return false;
    bool found = false;
    if (e->op == Op::kDegrees) {
      Expression inner = std::move(e->args[0]);
      *e = std::move(inner);
      found = true;
    }
    for (Expression& arg : e->args) found |= StripDegrees(&arg);
    return found;
  }

  // Words behind a value: "cm^2", "square inches", "miles per hour", "apples".
  bool Unit(Answer* answer) {
    std::vector<std::string> words;
    while (!AtEnd()) {
      const Token& token = tokens_[at_];
      if (token.kind == Kind::kWord && (token.IsWord("and") || token.IsWord("or"))) break;
      if (token.kind == Kind::kWord) {
        words.push_back(token.text);
        ++at_;
      } else if (!words.empty() && (Accept("^") || Is("/"))) {
        if (Accept("/")) {
          words.push_back("per");
          continue;
        }
        const bool braced = Accept("{");
        if (!IsKind(Kind::kNumber)) return Fail();
        words.push_back("^" + tokens_[at_++].text);
        if (braced && !Accept("}")) return Fail();
      } else {
        break;
      }
    }
    if (words.empty()) return true;
    const std::optional<std::string> known = CanonicalUnit(words);
    if (answer->percent || (!answer->unit.empty() && known != answer->unit)) return Fail();
    SetUnit(answer, known.value_or("?"), known.has_value());
    if (known == "percent") {
      SetUnit(answer, "", false);
      answer->percent = true;
    }
    return true;
  }

  // --- expressions
  // --------------------------------------------------------------------------------

  bool Sum(Expression* out) {
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

  // The sign before a term; false where no further term begins.
  bool TakeSign(bool required, std::optional<Op>* sign, std::string* name) {
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

  bool Term(Expression* out) {
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

  static Expression Product(std::vector<Expression> factors) {
    if (factors.size() == 1) return std::move(factors[0]);
    Expression product;
    product.op = Op::kMultiply;
    product.args = std::move(factors);
    return product;
  }

  bool SignedFactor(Expression* out) {
    if (!Accept("-")) return Factor(out);
    Expression inner;
    if (!Factor(&inner)) return false;
    *out = Expression::Unary(Op::kNegate, std::move(inner));
    return true;
  }

  // Whether what follows can be multiplied without a sign. A number cannot: "2 3" is no product.
  bool BeginsFactor() const {
    if (AtEnd()) return false;
    const Token& token = tokens_[at_];
    if (token.kind == Kind::kSymbol) return token.Is("(") || token.Is("{") || token.Is("[");
    if (token.kind == Kind::kNumber) return false;
    if (token.kind == Kind::kCommand) return BeginsCommandFactor(token.text);
    if (token.IsWord("and") || token.IsWord("or")) return false;
    return !IsUnitHere(token);
  }

  static bool BeginsCommandFactor(std::string_view name) {
    return name == "frac" || name == "sqrt" || name == "binom" || name == "pi" || name == "infty" ||
           name == "lfloor" || name == "lceil" || Contains(kFunctions, name) ||
           Contains(kGreek, name) || Contains(kDecorations, name);
  }

  // A word that is a unit or a remark rather than variables.
  bool IsUnitHere(const Token& token) const {
    if (plain_) return false;
    const bool after_number = at_ > 0 && tokens_[at_ - 1].kind == Kind::kNumber;
    if (token.from_text) return token.text.size() > 1 || after_number;
    if (token.text.size() == 1 || Contains(kFunctions, token.text)) return false;
    if (token.text == "pi" || token.text == "sqrt" || !FunctionPrefix(token.text).empty())
      return false;
    const std::optional<std::string> known = CanonicalUnit({token.text});
    return token.text.size() >= 4 || (known.has_value() && (after_number || token.text.size() > 2));
  }

  bool Factor(Expression* out) {
    const bool number = IsKind(Kind::kNumber);
    if (!Power(out)) return false;
    const bool plain_integer =
        number && out->op == Op::kNumber && out->num_decimals == 0 && out->number.IsInteger();
    if (plain_integer && !plain_) MixedNumber(out);
    return !failed_;
  }

  bool Power(Expression* out) {
    if (failed_ || ++depth_ > kMaxDepth || !Primary(out) || !Postfix(out)) return Fail();
    --depth_;
    return true;
  }

  bool SignedPower(Expression* out) {
    if (!Accept("-")) return Power(out);
    Expression inner;
    if (!Power(&inner)) return false;
    *out = Expression::Unary(Op::kNegate, std::move(inner));
    return true;
  }

  // "3 1/2" and 3\frac{1}{2} behind the 3: a proper fraction of plain integers.
  void MixedNumber(Expression* whole) {
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

  static bool IsProperFraction(const Expression& e) {
    const auto plain_integer = [](const Expression& part) {
      return part.op == Op::kNumber && part.num_decimals == 0 && part.number.IsInteger();
    };
    return e.op == Op::kDivide && plain_integer(e.args[0]) && plain_integer(e.args[1]) &&
           e.args[0].number < e.args[1].number;
  }

  bool Postfix(Expression* out) {
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

  // \circ or {\circ} behind "^".
  bool DegreeSign() {
    if (AcceptCommand("circ") || Accept("deg")) return true;
    if (!Is("{") || at_ + 2 >= tokens_.size() || !tokens_[at_ + 2].Is("}")) return false;
    if (!tokens_[at_ + 1].IsCommand("circ") && !tokens_[at_ + 1].Is("deg")) return false;
    at_ += 3;
    return true;
  }

  bool Exponent(Expression* out) {
    if (!Is("{")) return SignedPower(out);
    if (!Argument(out)) return false;
    if (!Accept("^")) return true;  // x^{a}^b is no LaTeX, but plain text has it
    Expression upper;
    if (++depth_ > kMaxDepth || !Exponent(&upper)) return Fail();
    --depth_;
    *out = Expression::Binary(Op::kPower, std::move(*out), std::move(upper));
    return true;
  }

  // A group, or one token as LaTeX takes it; of a number without braces only the first digit, so
  // that \frac43 is 4/3 and \sqrt13 (whose writer may have meant 13) is refused.
  bool Argument(Expression* out) {
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

  bool Primary(Expression* out) {
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

  static bool Call(std::string name, Expression arg, Expression* out) {
    *out = Expression::Unary(Op::kFunction, std::move(arg));
    out->name = std::move(name);
    return true;
  }

  bool NumberPrimary(Expression* out) {
    if (split_number_ == at_) return Fail();  // digits left over from \sqrt13
    const Token& token = tokens_[at_++];
    *out = Expression::Number(token.value);
    out->num_decimals = token.num_decimals;
    out->num_significant = token.num_significant;
    return true;
  }

  bool WordPrimary(Expression* out) {
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

  bool Constant(std::string name, Expression* out) {
    *out = Expression::Named(Op::kConstant, std::move(name));
    return true;
  }

  bool Variable(std::string name, Expression* out) {
    if (Accept("_")) {
      name += "_";
      if (!AppendArgument(&name)) return Fail();
    }
    while (Accept("'")) name += "'";
    if (!plain_ && (name == "e" || name == "i")) return Constant(name, out);
    *out = Expression::Named(Op::kVariable, std::move(name));
    return true;
  }

  // The spelling of a group or token, for names: x_{12}, \overline{AB}.
  bool AppendArgument(std::string* name) {
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

  bool CommandPrimary(Expression* out) {
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

  bool Fraction(Expression* out) {
    Expression numerator, denominator;
    if (!Argument(&numerator)) return Fail();
    split_number_ = kNone;  // \frac43: the 3 is the denominator
    if (!Argument(&denominator)) return Fail();
    *out = Expression::Binary(Op::kDivide, std::move(numerator), std::move(denominator));
    return true;
  }

  bool Binomial(Expression* out) {
    Expression n, k;
    if (!Argument(&n)) return Fail();
    split_number_ = kNone;
    if (!Argument(&k)) return Fail();
    *out = Expression::Binary(Op::kFunction, std::move(n), std::move(k));
    out->name = "binom";
    return true;
  }

  bool Rounding(bool up, Expression* out) {
    Expression inner;
    if (!Sum(&inner) || !AcceptCommand(up ? "rceil" : "rfloor")) return Fail();
    return Call(up ? "ceil" : "floor", std::move(inner), out);
  }

  // LaTeX takes one digit without braces; "sqrt13" in plain text is the root of 13.
  bool Root(Expression* out, bool latex) {
    Expression index = Expression::Number(Rational(2));
    if (latex && Accept("[")) {
      if (!Sum(&index) || !Accept("]")) return Fail();
    }
    Expression radicand;
    if (latex ? !Argument(&radicand) : !Primary(&radicand)) return Fail();
    *out = Expression::Binary(Op::kRoot, std::move(radicand), std::move(index));
    return true;
  }

  // \sin^2 x, \log_2 8, \sin 2x, \ln(x+1). The name has been read.
  bool Function(std::string name, Expression* out) {
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

  // In brackets, or a run of factors up to the next function: \sin 2x \cos y.
  bool FunctionArgument(Expression* out) {
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

  bool AtFunction() const {
    const Token& token = tokens_[at_];
    return token.kind != Kind::kSymbol && Contains(kFunctions, token.text);
  }

  static constexpr size_t kNone = static_cast<size_t>(-1);
  std::vector<Token> tokens_;
  bool plain_;
  size_t at_ = 0;
  size_t split_number_ = kNone;  // index of a number whose first digit was taken as an argument
  int depth_ = 0;
  bool failed_ = false;
};

bool HasLeadingZero(const Token& token) {
  return token.kind == Kind::kNumber && token.num_decimals == 0 && token.text.size() > 1 &&
         token.text[0] == '0' && IsDigit(token.text[1]) &&
         token.text.find_first_not_of('0') != std::string::npos;
}

// Sets `words` to the lower-case letters of an answer that is words alone: some that are certainly
// no variables, with any punctuation between them, or one alone, in brackets or not.
void FindWords(const std::vector<Token>& tokens, Answer* answer) {
  std::string words;
  size_t num_words = 0;
  bool is_text = false;
  for (const Token& token : tokens) {
    if (token.kind == Kind::kNumber || token.kind == Kind::kCommand) return;
    if (token.kind == Kind::kWord) {
      ++num_words;
      words += Lowercase(token.text);
      is_text |= token.from_text || token.text.size() >= 4;
    } else if (token.text.find_first_not_of("()[]{},;:-'!") != std::string::npos) {
      return;
    }
  }
  const bool alone =
      num_words == 1 && (tokens.size() == 1 || (tokens.size() == 3 && tokens[0].Is("(")));
  if (!is_text && !alone) return;
  answer->words = std::move(words);
  answer->is_text = is_text;
}

}  // namespace

Answer ReadAnswer(std::string_view text, const TokenizeOptions& options) {
  Answer answer;
  const std::optional<std::vector<Token>> tokens = Tokenize(text, options);
  if (!tokens) {
    answer.canonical = Strip(text);
    return answer;
  }
  Answer read;
  if (Parser(*tokens, /*plain=*/false).ReadAll(&read)) answer = std::move(read);
  answer.canonical = CanonicalText(*tokens);
  FindWords(*tokens, &answer);
  return answer;
}

bool ReadPlainExpression(std::string_view text, Expression* expression) {
  if (text.size() > 1 && text.back() == '.' && !IsDigit(text[text.size() - 2])) return false;
  std::optional<std::vector<Token>> tokens = Tokenize(text, {.join_thousands = false});
  // Python, whose syntax this is, knows no integer 06.
  if (tokens && std::any_of(tokens->begin(), tokens->end(), HasLeadingZero)) return false;
  return tokens && Parser(*std::move(tokens), /*plain=*/true).ReadExpressionOnly(expression);
}

}  // namespace orrery::rewards
