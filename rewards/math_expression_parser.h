// Recursive descent over the tokens of one scalar expression. Depth is limited; the number of steps
// is linear in the tokens but for mixed numbers, which may be read twice.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rewards/math_cursor.h"
#include "rewards/math_expression.h"

namespace orrery::rewards {

class ExpressionParser : protected TokenCursor {
 public:
  // plain: as a computer algebra system reads text, where i and e are variables and no units
  // follow.
  ExpressionParser(std::vector<Token> tokens, bool plain)
      : TokenCursor(std::move(tokens)), plain_(plain) {}

  // All tokens are one expression.
  bool ReadWhole(Expression* expression) { return Sum(expression) && AtEnd() && !failed_; }

 protected:
  bool Sum(Expression* out);

 private:
  using Op = Expression::Op;
  static constexpr size_t kNone = static_cast<size_t>(-1);

  // The sign before a term; false where no further term begins.
  bool TakeSign(bool required, std::optional<Op>* sign, std::string* name);
  bool Term(Expression* out);
  static Expression Product(std::vector<Expression> factors);
  bool SignedFactor(Expression* out);
  // Whether what follows can be multiplied without a sign. A number cannot: "2 3" is no product.
  bool BeginsFactor() const;
  static bool BeginsCommandFactor(std::string_view name);
  // A word that is a unit or a remark rather than variables.
  bool IsUnitHere(const Token& token) const;
  bool Factor(Expression* out);
  bool Power(Expression* out);
  bool SignedPower(Expression* out);
  // "3 1/2" and 3\frac{1}{2} behind the 3: a proper fraction of plain integers.
  void MixedNumber(Expression* whole);
  static bool IsProperFraction(const Expression& e);
  bool Postfix(Expression* out);
  // \circ or {\circ} behind "^".
  bool DegreeSign();
  bool Exponent(Expression* out);
  // A group, or one token as LaTeX takes it; of a number without braces only the first digit, so
  // that \frac43 is 4/3 and \sqrt13 (whose writer may have meant 13) is refused.
  bool Argument(Expression* out);
  bool Primary(Expression* out);
  static bool Call(std::string name, Expression arg, Expression* out);
  bool NumberPrimary(Expression* out);
  bool WordPrimary(Expression* out);
  bool Constant(std::string name, Expression* out);
  bool Variable(std::string name, Expression* out);
  // The spelling of a group or token, for names: x_{12}, \overline{AB}.
  bool AppendArgument(std::string* name);
  bool CommandPrimary(Expression* out);
  bool Fraction(Expression* out);
  bool Binomial(Expression* out);
  bool Rounding(bool up, Expression* out);
  // LaTeX takes one digit without braces; "sqrt13" in plain text is the root of 13.
  bool Root(Expression* out, bool latex);
  // \sin^2 x, \log_2 8, \sin 2x, \ln(x+1). The name has been read.
  bool Function(std::string name, Expression* out);
  // In brackets, or a run of factors up to the next function: \sin 2x \cos y.
  bool FunctionArgument(Expression* out);
  bool AtFunction() const;

  bool plain_;
  size_t split_number_ = kNone;  // index of a number whose first digit was taken as an argument
};

}  // namespace orrery::rewards
