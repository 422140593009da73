// What `orrery doctor` found out about one thing, and how findings are printed.
#pragma once

#include <string>
#include <vector>

namespace orrery::doctor {

struct Finding {
  enum class Kind { kGood, kNote, kProblem };
  Kind kind = Kind::kGood;
  std::string what;  // a word: cpu, memory, gpu 0
  std::string text;
  std::string fix;  // a command or a sentence; empty where nothing is to be done
};

using Findings = std::vector<Finding>;

inline Finding Good(std::string what, std::string text) {
  return {Finding::Kind::kGood, std::move(what), std::move(text), {}};
}
// Worth knowing; everything works without.
inline Finding Note(std::string what, std::string text, std::string fix = {}) {
  return {Finding::Kind::kNote, std::move(what), std::move(text), std::move(fix)};
}
inline Finding Problem(std::string what, std::string text, std::string fix) {
  return {Finding::Kind::kProblem, std::move(what), std::move(text), std::move(fix)};
}

// A line each, its fix on a line below it, and a closing line that counts the problems.
std::string ToText(const Findings& findings);
int CountProblems(const Findings& findings);

}  // namespace orrery::doctor
