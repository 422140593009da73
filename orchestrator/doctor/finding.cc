#include "orchestrator/doctor/finding.h"

#include <fmt/format.h>

#include <algorithm>

namespace orrery::doctor {
namespace {

const char* Mark(Finding::Kind kind) {
  switch (kind) {
    case Finding::Kind::kGood:
      return "ok";
    case Finding::Kind::kNote:
      return "note";
    case Finding::Kind::kProblem:
      return "PROBLEM";
  }
  return "";
}

}  // namespace

int CountProblems(const Findings& findings) {
  return static_cast<int>(std::count_if(
      findings.begin(), findings.end(),
      [](const Finding& finding) { return finding.kind == Finding::Kind::kProblem; }));
}

std::string ToText(const Findings& findings) {
  std::string text;
  for (const Finding& f : findings) {
    text += fmt::format("{:<8} {:<10} {}\n", Mark(f.kind), f.what, f.text);
    if (!f.fix.empty()) text += fmt::format("{:<8} {:<10} -> {}\n", "", "", f.fix);
  }
  const int problems = CountProblems(findings);
  if (problems == 0) return text + "Everything that orrery needs is here.\n";
  return text + fmt::format("{} problem{}; what is after -> fixes {}.\n", problems,
                            problems == 1 ? "" : "s", problems == 1 ? "it" : "them");
}

}  // namespace orrery::doctor
