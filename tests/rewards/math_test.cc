// Our own grader of mathematics: extraction, equality, limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <string>
#include <vector>

#include "rewards/answer_text.h"
#include "rewards/math_answer.h"
#include "rewards/math_compare.h"
#include "rewards/rational.h"
#include "rewards/text.h"
#include "tests/rewards/grade.h"

namespace orrery::rewards {
namespace {

std::vector<std::vector<std::string>> ReadTable(const std::string& name) {
  std::vector<std::vector<std::string>> rows;
  std::ifstream file(std::string(ORRERY_SOURCE_DIR) + "/tests/rewards/data/" + name);
  for (std::string line; std::getline(file, line);) {
    std::vector<std::string>& row = rows.emplace_back();
    for (const std::string_view field : Split(line, "\t")) row.emplace_back(field);
  }
  return rows;
}

bool Equal(std::string_view truth, std::string_view given) { return EqualMath(truth, given, {}); }

// Answers of MATH-500 against rewritings of them and wrong answers nearby; right or wrong by
// construction (make_golden_math.py, where also the verdict of math-verify in the last column is
// from).
TEST(Math, RewritingsOfMath500) {
  const auto rows = ReadTable("math_golden.tsv");
  ASSERT_GT(rows.size(), 4000u);
  int num_right = 0;
  for (const auto& row : rows) {
    ASSERT_EQ(row.size(), 5u);
    EXPECT_EQ(Equal(row[1], row[2]), row[3] == "1")
        << row[0] << ": '" << row[2] << "' against '" << row[1] << "'";
    num_right += row[3] == "1";
  }
  EXPECT_GT(num_right, 1500);
  EXPECT_GT(static_cast<int>(rows.size()) - num_right, 1500);
}

// Where math-verify and we differ. Each kind is decided in math_disagreements.md; a kind that is
// not listed there, or more cases of one than counted there, wants a decision first.
TEST(Math, DisagreementsWithMathVerifyAreTheDecidedOnes) {
  std::map<std::string, int> counts;
  for (const auto& row : ReadTable("math_golden.tsv")) {
    const std::string ours = Equal(row[1], row[2]) ? "1" : "0";
    if (ours != row[4]) ++counts[row[0] + (ours == "1" ? ", accepted here" : ", refused here")];
  }
  std::map<std::string, int> decided;
  std::ifstream file(std::string(ORRERY_SOURCE_DIR) + "/tests/rewards/math_disagreements.md");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string_view> cells = Split(line, "|");
    if (cells.size() < 5 || !IsDigit(Strip(cells[3])[0])) continue;
    decided[std::string(Strip(cells[1])) + ", " + std::string(Strip(cells[2])) + " here"] =
        std::stoi(std::string(Strip(cells[3])));
  }
  EXPECT_EQ(counts, decided);
}

TEST(Math, CasesByHand) {
  const auto rows = ReadTable("math_by_hand.tsv");
  ASSERT_GT(rows.size(), 200u);
  for (const auto& row : rows) {
    ASSERT_EQ(row.size(), 3u);
    EXPECT_EQ(Equal(row[1], row[2]), row[0] == "1")
        << "'" << row[2] << "' against '" << row[1] << "'";
  }
}

TEST(Math, OrderOfListsIsAnOption) {
  EXPECT_TRUE(EqualMath("1,2", "2,1", {}));
  EXPECT_FALSE(EqualMath("1,2", "2,1", {.ordered_lists = true}));
  EXPECT_TRUE(EqualMath("1,2", "1, 2", {.ordered_lists = true}));
  EXPECT_TRUE(EqualMath("\\{1,2\\}", "\\{2,1\\}", {.ordered_lists = true}));
}

TEST(Math, NothingHangs) {
  const auto begin = std::chrono::steady_clock::now();
  std::string deep, tower = "2", sum = "1";
  for (int i = 0; i < 1000; ++i) deep += "(";
  for (int i = 0; i < 200; ++i) tower = "9^{" + tower + "}";
  for (int i = 0; i < 500; ++i) sum += "+x^{99}";
  const std::string nasty[] = {"2003^{2002^{2001}}",
                               "2003^2002^2001",
                               "(10^{4000})!",
                               "99999!",
                               "999!^{999!}",
                               "\\binom{999}{500}^{99}",
                               "\\sqrt[999]{2^{16000}}",
                               "0^{-1}",
                               "0^0",
                               "\\log_1 1",
                               "\\ln 0",
                               "1/(x-x)",
                               "10^{-9999}",
                               "1e99999",
                               "1e-99999",
                               "\\sin 10^{300}",
                               std::string(4000, '9'),
                               std::string(4000, '{'),
                               std::string(4000, '-'),
                               std::string(4000, '|'),
                               "\\frac" + std::string(2000, '1'),
                               std::string(100000, 'x'),
                               deep + "1",
                               tower,
                               sum};
  for (const std::string& a : nasty) {
    for (const std::string& b : nasty) {
      if (&a == &b) continue;
      EXPECT_FALSE(Equal(a, b)) << a.substr(0, 50) << " and " << b.substr(0, 50);
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

TEST(Math, LongSetsAreCompared) {
  std::string up = "1", down = "60";
  for (int i = 2; i <= 60; ++i) up += ", " + std::to_string(i);
  for (int i = 59; i >= 1; --i) down += ", " + std::to_string(i);
  EXPECT_TRUE(Equal(up, down));
  EXPECT_FALSE(Equal(up, down + ", 61"));
}

// --- extraction
// ------------------------------------------------------------------------------------

std::string Found(std::string_view response, bool last_number = false) {
  const FoundAnswer found = FindAnswer(response, {.last_number = last_number});
  return found.found ? found.text : "none: " + found.how;
}

TEST(FindAnswer, InOrderOfPreference) {
  EXPECT_EQ(Found("a \\boxed{1} b \\boxed{\\frac{1}{2}} #### 3"), "\\frac{1}{2}");
  EXPECT_EQ(Found("\\boxed {5} and then \\fbox{6}"), "6");
  EXPECT_EQ(Found("so $\\boxed 7$ it is"), "7");
  EXPECT_EQ(Found("text\n#### 1,080 \nmore"), "1,080");
  EXPECT_EQ(Found("The answer is 5. Therefore"), "5");
  EXPECT_EQ(Found("The final answer is: **42**"), "42");
  EXPECT_EQ(Found("Answer: $x=3$"), "$x=3$");
  EXPECT_EQ(Found("the answer is 1\nno, the answer is 2.5"), "2.5");
  EXPECT_EQ(Found("there are 17 and 18 of them"), "none: no answer found");
  EXPECT_EQ(Found("there are 17 and 1,018.5 of them.", true), "1,018.5");
  EXPECT_EQ(Found("", true), "none: no answer found");
}

TEST(FindAnswer, ThinkingDoesNotCount) {
  EXPECT_EQ(Found("<think>\\boxed{1}</think> \\boxed{2}"), "2");
  EXPECT_EQ(Found("\\boxed{1}</think> nothing"), "none: no answer found");
  EXPECT_EQ(Found("<think>\\boxed{1}"), "none: the thinking has no end");
}

TEST(FindAnswer, ABoxThatIsNotClosedIsNoAnswer) {
  EXPECT_EQ(Found("\\boxed{1} or rather \\boxed{2"), "none: the last \\boxed{ is not closed");
  EXPECT_EQ(Found("\\boxed{1} \\boxed{}"), "none: the last \\boxed{} is empty");
  EXPECT_EQ(Found("\\boxed"), "none: the last \\boxed{} is empty");
}

TEST(FindAnswer, SeveralBoxesInARowAreOneAnswer) {
  EXPECT_EQ(Found("$\\boxed{1}$ and $\\boxed{2}$"), "1 , 2");
  EXPECT_EQ(Found("\\boxed{1}, \\boxed{2}, or \\boxed{3}"), "1 , 2 , 3");
  EXPECT_EQ(Found("first \\boxed{1}. Then \\boxed{2}"), "2");
  EXPECT_EQ(Found("\\boxed{1}\\boxed{2}"), "2");
}

TEST(Math, GradesResponses) {
  const auto reward = Make("math");
  EXPECT_EQ(GradeWith(*reward, "so \\boxed{0.5}", "\\frac{1}{2}").score, 1);
  EXPECT_EQ(GradeWith(*reward, "so \\boxed{0.5}", "so \\boxed{\\frac{1}{2}}").score, 1);
  const Outcome wrong = GradeWith(*reward, "so \\boxed{0.6}", "\\frac{1}{2}");
  EXPECT_EQ(wrong.score, 0);
  EXPECT_EQ(wrong.why, "\\boxed: '0.6' is not '\\frac{1}{2}'");
  EXPECT_EQ(GradeWith(*reward, "it is 18", "18").score, 0);
  EXPECT_EQ(GradeWith(*Make("math", {{"last_number", "true"}}), "it is 18", "18").score, 1);
  const Outcome unlabelled = GradeWith(*reward, "\\boxed{18}", " $ ");
  EXPECT_EQ(unlabelled.kind, Outcome::Kind::kFailed);
  EXPECT_THAT(unlabelled.why, testing::HasSubstr("test/0"));
}

// --- exact numbers
// ---------------------------------------------------------------------------------

TEST(Rational, ReadsDecimalsExactly) {
  EXPECT_EQ(Rational::FromDecimal("1.25")->ToString(), "5/4");
  EXPECT_EQ(Rational::FromDecimal(".5e-3")->ToString(), "1/2000");
  EXPECT_EQ(Rational::FromDecimal("1.5E+3")->ToString(), "1500");
  for (const char* bad : {"", ".", "1.2.3", "e5", "1e", "-1", "1e1000000", "0x1"}) {
    EXPECT_FALSE(Rational::FromDecimal(bad).has_value()) << bad;
  }
}

TEST(Rational, Arithmetic) {
  const Rational third = *Rational::Make(1, 3), minus = *Rational::Make(2, -4);
  EXPECT_EQ(minus.ToString(), "-1/2");
  EXPECT_EQ(Add(third, minus)->ToString(), "-1/6");
  EXPECT_EQ(Divide(third, minus)->ToString(), "-2/3");
  EXPECT_FALSE(Divide(third, 0).has_value());
  EXPECT_EQ(Power(minus, -3)->ToString(), "-8");
  EXPECT_EQ(Power(-1, 1'000'000'000'001)->ToString(), "-1");
  EXPECT_EQ(Power(-1, 1'000'000'000'000)->ToString(), "1");
  EXPECT_FALSE(Power(2, 100000).has_value());
  EXPECT_FALSE(Power(0, 0).has_value());
  EXPECT_EQ(Root(*Rational::Make(-8, 27), 3)->ToString(), "-2/3");
  EXPECT_FALSE(Root(-4, 2).has_value());
  EXPECT_FALSE(Root(2, 2).has_value());
  EXPECT_EQ(Root(0, 2)->ToString(), "0");
  EXPECT_TRUE(minus < third);
}

TEST(Rational, ToDoubleOfPartsBeyondItsRange) {
  const Rational huge = *Power(10, 400);
  EXPECT_EQ(Divide(huge, *Add(huge, huge))->ToDouble(), 0.5);
  EXPECT_EQ(huge.ToDouble(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(Divide(1, huge)->ToDouble(), 0);
  const double third = Rational::Make(1, 3)->ToDouble();
  EXPECT_EQ(third, 1.0 / 3);
}

// The error bound must hold: values against ones known to more digits than a double has.
TEST(Evaluate, ErrorBoundsHold) {
  const std::pair<const char*, double> known[] = {
      {"\\sqrt{2}", 1.41421356237309504880},
      {"\\pi^2", 9.86960440108935861883},
      {"e^{\\pi}", 23.1406926327792690057},
      {"\\sin 1", 0.84147098480789650665},
      {"\\sqrt{2}+\\sqrt{3}-\\sqrt{5+2\\sqrt{6}}", 0.0},
      {"\\ln 2", 0.69314718055994530942},
      {"\\log_2 10", 3.32192809488736234787},
      {"2^{\\frac{1}{3}}", 1.25992104989487316477},
      {"\\arctan 2", 1.10714871779409050302},
      {"(\\sqrt{2}-1)^{20}", 2.210478490342221612718e-8}};
  for (const auto& [text, value] : known) {
    const Answer answer = ReadAnswer(text, {});
    ASSERT_EQ(answer.kind, Answer::Kind::kScalar) << text;
    const Evaluation result = Evaluate(answer.scalar, {});
    ASSERT_TRUE(result.known) << text;
    EXPECT_LE(std::abs(result.value - value), result.error) << text;
    EXPECT_LT(result.error, 1e-12 * std::max(1.0, value)) << text;
  }
}

}  // namespace
}  // namespace orrery::rewards
