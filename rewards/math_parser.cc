// The structures around expressions (math_answer.h): lists, sets, tuples, matrices, relations,
// units.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rewards/math_answer.h"
#include "rewards/math_expression_parser.h"
#include "rewards/math_units.h"
#include "rewards/text.h"

namespace orrery::rewards {
namespace {

using Kind = Token::Kind;

class AnswerParser : private ExpressionParser {
 public:
  explicit AnswerParser(std::vector<Token> tokens)
      : ExpressionParser(std::move(tokens), /*plain=*/false) {}

  bool ReadAll(Answer* answer) {
    TrimPunctuation();
    return List(answer) && AtEnd();
  }

 private:
  void TrimPunctuation() {
    while (!tokens_.empty() && (tokens_.back().Is(",") || tokens_.back().Is(";") ||
                                tokens_.back().Is(":") || tokens_.back().Is("*"))) {
      tokens_.pop_back();
    }
    while (at_ < tokens_.size() && (Is("*") || Is(":"))) ++at_;
  }

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
    if (e->op == Expression::Op::kFunction) return false;
    bool found = false;
    if (e->op == Expression::Op::kDegrees) {
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
  if (AnswerParser(*tokens).ReadAll(&read)) answer = std::move(read);
  answer.canonical = CanonicalText(*tokens);
  FindWords(*tokens, &answer);
  return answer;
}

bool ReadPlainExpression(std::string_view text, Expression* expression) {
  if (text.size() > 1 && text.back() == '.' && !IsDigit(text[text.size() - 2])) return false;
  std::optional<std::vector<Token>> tokens = Tokenize(text, {.join_thousands = false});
  // Python, whose syntax this is, knows no integer 06.
  if (tokens && std::any_of(tokens->begin(), tokens->end(), HasLeadingZero)) return false;
  return tokens && ExpressionParser(*std::move(tokens), /*plain=*/true).ReadWhole(expression);
}

}  // namespace orrery::rewards
