// The graders of other projects: every verdict measured on the real ones must be ours.
#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "rewards/latex_text.h"
#include "rewards/mathd.h"
#include "rewards/python_number.h"
#include "rewards/text.h"
#include "tests/rewards/grade.h"

namespace orrery::rewards {
namespace {

struct GoldenCase {
  std::string response;
  std::string label;
  std::vector<std::string> verdicts;  // miles_math slime_math verl_strict verl_flex dapo
};

// A Python string literal in single quotes, read from `at` on, which is left behind it.
std::optional<std::string> PythonLiteral(const std::string& line, size_t* at) {
  while (*at < line.size() && line[*at] == ' ') ++*at;
  if (*at >= line.size() || line[*at] != '\'') return std::nullopt;
  std::string text;
  for (size_t i = *at + 1; i < line.size(); ++i) {
    if (line[i] == '\'') {
      *at = i + 1;
      return text;
    }
    if (line[i] == '\\') {
      ++i;
      if (i < line.size() && line[i] == 'n') {
        text += '\n';
        continue;
      }
    }
    text += line[i];
  }
  return std::nullopt;
}

std::vector<GoldenCase> ReadGolden() {
  std::vector<GoldenCase> cases;
  std::ifstream file(std::string(ORRERY_SOURCE_DIR) + "/tests/rewards/data/parity_golden.txt");
  for (std::string line; std::getline(file, line);) {
    size_t at = 0;
    GoldenCase golden;
    golden.response = PythonLiteral(line, &at).value();
    golden.label = PythonLiteral(line, &at).value();
    for (const std::string column :
         {"miles_math=", "slime_math=", "verl_strict=", "verl_flex=", "dapo="}) {
      const size_t begin = line.find(column) + column.size();
      golden.verdicts.push_back(line.substr(begin, line.find(' ', begin) - begin));
    }
    cases.push_back(std::move(golden));
  }
  return cases;
}

void ExpectVerdict(const Outcome& outcome, const std::string& verdict, const GoldenCase& golden) {
  SCOPED_TRACE(golden.response + " against " + golden.label + ": " + outcome.why);
  if (verdict == "EXC") {
    EXPECT_EQ(outcome.kind, Outcome::Kind::kFailed);
    EXPECT_FALSE(outcome.why.empty());
    return;
  }
  const double expected = verdict == "True" ? 1 : verdict == "False" ? 0 : std::stod(verdict);
  EXPECT_EQ(outcome.kind, Outcome::Kind::kScored);
  EXPECT_EQ(outcome.score, expected);
}

TEST(Parity, EveryGoldenVerdict) {
  const std::vector<GoldenCase> cases = ReadGolden();
  ASSERT_EQ(cases.size(), 69u);
  const std::vector<std::string> names = {"math_miles", "math_slime", "gsm8k_strict",
                                          "gsm8k_flexible", "dapo"};
  int failed = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::unique_ptr<Reward> reward = Make(names[i]);
    for (const GoldenCase& golden : cases) {
      SCOPED_TRACE(names[i]);
      const Outcome outcome = GradeWith(*reward, golden.response, golden.label);
      ExpectVerdict(outcome, golden.verdicts[i], golden);
      failed += outcome.kind == Outcome::Kind::kFailed;
    }
  }
  EXPECT_EQ(failed, 1);  // dapo's one label that is no number
}

// "\\boxed{18}\\n" as JSON escapes it, without the quotes.
std::string Unescaped(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size()) {
      ++i;
      out += text[i] == 'n' ? '\n' : text[i] == 't' ? '\t' : text[i];
    } else {
      out += text[i];
    }
  }
  return out;
}

// A thousand made-up responses, graded by the real graders (make_golden_parity.py).
TEST(Parity, EveryVerdictOnMoreResponses) {
  std::ifstream file(std::string(ORRERY_SOURCE_DIR) + "/tests/rewards/data/parity_more.tsv");
  std::vector<std::unique_ptr<Reward>> rewards;
  for (const char* name : {"math_miles", "math_slime", "gsm8k_strict", "gsm8k_flexible", "dapo"}) {
    rewards.push_back(Make(name));
  }
  int num_cases = 0;
  for (std::string line; std::getline(file, line); ++num_cases) {
    const std::vector<std::string_view> fields = Split(line, "\t");
    ASSERT_EQ(fields.size(), 7u) << line;
    GoldenCase golden{Unescaped(std::string(fields[1])), Unescaped(std::string(fields[0])), {}};
    for (size_t i = 0; i < 5; ++i) {
      const Outcome outcome = GradeWith(*rewards[i], golden.response, golden.label);
      ExpectVerdict(outcome, std::string(fields[2 + i]), golden);
    }
  }
  EXPECT_EQ(num_cases, 1000);
}

// The test above must be able to fail: the columns differ from one another and from constants.
TEST(Parity, ColumnsTellGradersApart) {
  std::vector<int> right(5);
  for (const GoldenCase& golden : ReadGolden()) {
    for (size_t i = 0; i < 5; ++i)
      right[i] += golden.verdicts[i] == "True" || golden.verdicts[i] == "1.0";
  }
  EXPECT_EQ(right[0], right[1]);
  for (const int count : right) {
    EXPECT_GT(count, 0);
    EXPECT_LT(count, 69);
  }
  EXPECT_NE(right[0], right[3]);
}

TEST(Parity, OnlyTheLast300CharactersCount) {
  const std::string far(300, 'x');
  EXPECT_EQ(GradeWith(*Make("gsm8k_strict"), "#### 18" + far, "18").score, 0);
  EXPECT_EQ(GradeWith(*Make("gsm8k_flexible"), "#### 18" + far, "18").score, 0);
  EXPECT_EQ(GradeWith(*Make("dapo"), "Answer: 18\n" + far, "18").score, -1);
  // 293 two-byte characters and seven ASCII ones are 300 characters but 593 bytes.
  std::string wide = "#### 18";
  for (int i = 0; i < 293; ++i) wide += "é";
  EXPECT_EQ(GradeWith(*Make("gsm8k_strict"), wide, "18").score, 1);
  EXPECT_EQ(GradeWith(*Make("gsm8k_strict"), wide + "é", "18").score, 0);
}

TEST(Parity, BrokenBytesAndLimits) {
  for (const std::string_view name :
       {"math_miles", "math_slime", "gsm8k_strict", "gsm8k_flexible", "dapo"}) {
    const auto reward = Make(std::string(name));
    for (const std::string& response :
         {std::string(), std::string("\xff\xfe\\boxed{\xc3}"), std::string(1 << 20, '{'),
          "\\boxed{" + std::string(1 << 20, '9') + "}", std::string(100000, '\\'),
          "\\boxed{" + std::string(3000, '(') + "}", "Answer: " + std::string(100000, '$')}) {
      const Outcome outcome = GradeWith(*reward, response, "18");
      EXPECT_EQ(outcome.kind, Outcome::Kind::kScored) << name;
      EXPECT_LE(outcome.score, 0) << name;
    }
  }
}

TEST(Parity, AnswersThatAreNoIntegersAreEvaluated) {
  const auto reward = Make("math_miles");
  EXPECT_EQ(GradeWith(*reward, "\\boxed{\\frac{2\\sqrt{3}}{2}}", "\\sqrt{3}").score, 1);
  EXPECT_EQ(GradeWith(*reward, "\\boxed{\\frac{2\\sqrt{3}}{2}}", "\\sqrt{5}").score, 0);
  EXPECT_EQ(GradeWith(*reward, "\\boxed{2/4}", "1/2").score, 0);  // unreduced: wrong there
  EXPECT_EQ(GradeWith(*reward, "\\boxed{(1, 2\\pi)}", "(1,\\pi+\\pi)").score, 1);
  EXPECT_EQ(GradeWith(*reward, "\\boxed{(1, 2\\pi]}", "(1,2\\pi)").score, 0);
  EXPECT_EQ(GradeWith(*reward, "\\boxed{2003^{2002^{2001}}}", "3^{2}").score, 0);
}

TEST(Parity, LabelsInBoxesAndMissingOnes) {
  EXPECT_EQ(GradeWith(*Make("math_miles"), "\\boxed{18}", "so \\boxed{18}").score, 1);
  EXPECT_EQ(GradeWith(*Make("math_miles"), "\\boxed{18}", "").score, 0);
  EXPECT_EQ(GradeWith(*Make("math_miles"), "\\boxed{18}", "\\boxed{18").score, 0);
  EXPECT_EQ(GradeWith(*Make("math_miles"), "\\boxed{\\infty}", "18").score, 0);
  EXPECT_EQ(GradeWith(*Make("math_slime"), "\\boxed{\\infty}", "\\infty").score, 1);
}

TEST(Parity, IntegersBeyondDoublePrecisionLoseDigitsAsInPython) {
  // int(float("9007199254740993")) is 9007199254740992 in Python.
  EXPECT_EQ(GradeWith(*Make("math_miles"), "\\boxed{9007199254740993.0}", "9007199254740992").score,
            1);
}

TEST(PythonNumber, ReadsWhatFloatReads) {
  EXPECT_EQ(PythonFloat(" 1_000.5 "), 1000.5);
  EXPECT_EQ(PythonFloat("+.5"), 0.5);
  EXPECT_EQ(PythonFloat("5."), 5);
  EXPECT_EQ(PythonFloat("1e400"), HUGE_VAL);
  EXPECT_EQ(PythonFloat("1e-400"), 0.0);
  EXPECT_EQ(PythonFloat("-Infinity"), -HUGE_VAL);
  for (const char* bad :
       {"", ".", "+", "1__0", "_1", "1_", "0x10", "1,000", "1 0", "--1", "1e", "e5"}) {
    EXPECT_FALSE(PythonFloat(bad).has_value()) << bad;
  }
  EXPECT_EQ(PythonInt(1e22), "10000000000000000000000");
  EXPECT_EQ(PythonInt(-0.5), "0");
  EXPECT_TRUE(IsCanonicalInteger("-12"));
  for (const char* bad : {"-0", "012", "+1", "", "-", "1.0"})
    EXPECT_FALSE(IsCanonicalInteger(bad)) << bad;
}

TEST(Mathd, Normalises) {
  EXPECT_EQ(NormalizeMathd("\\frac12"), "\\frac{1}{2}");
  EXPECT_EQ(NormalizeMathd(" \\dfrac{1}{2} "), "\\frac{1}{2}");
  EXPECT_EQ(NormalizeMathd("1/2"), "\\frac{1}{2}");
  EXPECT_EQ(NormalizeMathd("01/2"), "01/2");
  EXPECT_EQ(NormalizeMathd("\\sqrt3"), "\\sqrt{3}");
  EXPECT_EQ(NormalizeMathd("a\\frac"), "a\\frac");  // raises in the original: given up
  EXPECT_EQ(NormalizeMathd("\\text{ 5 cm}"), "5cm");
  EXPECT_EQ(NormalizeMathd("x = .5"), "\\frac{1}{2}");
}

TEST(LatexText, AsPylatexencDoes) {
  EXPECT_EQ(LatexToText("\\frac{\\sqrt{3}}{4}"), "√(3)/4");
  EXPECT_EQ(LatexToText("1\\,080"), "1 080");
  EXPECT_EQ(LatexToText("1\\!080"), "1080");
  EXPECT_EQ(LatexToText("\\begin{pmatrix}1 & 3\\\\2 & 4\\end{pmatrix}"), "[ 1   3; 2   4 ]");
  EXPECT_EQ(LatexToText("\\foo{x}}"), "x");
  EXPECT_FALSE(LatexToText("\\sqrt").has_value());
  EXPECT_FALSE(LatexToText(std::string(1000, '{')).has_value());
}

}  // namespace
}  // namespace orrery::rewards
