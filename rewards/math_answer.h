// What an answer is once read: a scalar, or a structure of them. Reading never fails; what is not
// understood stays a text that equals only itself.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rewards/math_expression.h"
#include "rewards/math_token.h"

namespace orrery::rewards {

struct Answer {
  enum class Kind {
    kText,
    kScalar,
    kTuple,     // points, intervals: items between brackets
    kSet,       // {1, 2}: items without order
    kList,      // 1, 2 / 1 and 2 / x<1 or x>2: several answers, without order
    kUnion,     // of intervals and sets
    kMatrix,    // items row by row
    kRelation,  // items[0] operators[0] items[1] ...
    kBase,      // digits in a given base: 52_8
  };
  Kind kind = Kind::kText;
  std::string canonical;  // the tokens in one spelling; equal texts are equal answers
  std::string words;      // letters only, lower case, where the answer is nothing but words
  bool is_text = false;   // of those some are certainly no product of variables
  Expression scalar;
  std::string unit;  // "" none; a canonical name, or what was written
  bool unit_known = false;
  bool percent = false;
  std::string brackets;  // kTuple: "()", "(]", "<>"; kMatrix: "m", "v" (a determinant), "c"
  std::vector<Answer> items;
  std::vector<std::string> operators;  // kRelation: = < > le ge ne in approx :
  int num_columns = 0;
  std::string digits;  // kBase
  std::string base;
  bool alternatives = false;  // kList: joined by "or"
};

Answer ReadAnswer(std::string_view text, const TokenizeOptions& options);

// One plain expression (numbers, letters as variables, + - * / ^ ! sqrt and functions) and nothing
// else; false for anything more. `i` and `e` are ordinary variables.
bool ReadPlainExpression(std::string_view text, Expression* expression);

}  // namespace orrery::rewards
