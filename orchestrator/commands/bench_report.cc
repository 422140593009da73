// How measurements are printed: for people with the spread of each number, for programs in full.
#include <algorithm>
#include <utility>

#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"
#include "orchestrator/commands/bench.h"
#include "orchestrator/run/json_text.h"

namespace orrery::commands {
namespace {

using Parts = std::vector<std::pair<const char*, std::vector<double>>>;

template <typename F>
std::vector<double> Each(const std::vector<BenchRun>& runs, const F& value) {
  std::vector<double> out;
  for (const BenchRun& run : runs) out.push_back(value(run));
  return out;
}

// Seconds by part, the whole first.
Parts SecondsOf(const BenchSetting& setting, const std::vector<BenchRun>& runs) {
  Parts parts = {{"seconds", Each(runs, [](const BenchRun& r) { return r.total(); })}};
  if (setting.kind == BenchKind::kRollout) return parts;
  parts.push_back({"rollout_s", Each(runs, [](const BenchRun& r) { return r.rollout; })});
  parts.push_back({"reward_s", Each(runs, [](const BenchRun& r) { return r.reward; })});
  parts.push_back({"train_s", Each(runs, [](const BenchRun& r) { return r.train; })});
  parts.push_back({"sync_s", Each(runs, [](const BenchRun& r) { return r.sync; })});
  parts.push_back({"other_s", Each(runs, [](const BenchRun& r) { return r.other; })});
  return parts;
}

std::vector<double> TokensPerSecond(const std::vector<BenchRun>& runs) {
  return Each(runs, [](const BenchRun& r) {
    return r.rollout > 0 ? static_cast<double>(r.generated_tokens) / r.rollout : 0;
  });
}

std::string Line(const char* name, const std::vector<double>& values, const char* format) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const auto number = [&](double x) { return fmt::format(fmt::runtime(format), x); };
  return fmt::format("{:<13} {:>10}   {} to {}\n", name, number(Median(values)), number(*low),
                     number(*high));
}

const char* NameOf(BenchKind kind) { return kind == BenchKind::kRollout ? "rollout" : "step"; }

void AppendMember(std::string* out, const char* name) {
  if (out->back() != '{') *out += ',';
  run::AppendJsonString(out, name);
  *out += ':';
}

void AppendList(std::string* out, const char* name, const std::vector<double>& values) {
  AppendMember(out, name);
  *out += '[';
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) *out += ',';
    run::AppendJsonNumber(out, values[i]);
  }
  *out += ']';
}

}  // namespace

double Median(std::vector<double> values) {
  CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

std::string BenchText(const BenchSetting& setting, const std::vector<BenchRun>& runs) {
  std::string out = fmt::format("{} of {}, {}, {} threads, {}\n", NameOf(setting.kind),
                                setting.model, setting.dtype, setting.threads, setting.machine);
  out += fmt::format("{} prompts x {} samples, {} prompt and {} sampled tokens, {} runs after 1\n",
                     setting.prompts, setting.samples, runs.back().prompt_tokens,
                     runs.back().generated_tokens, runs.size());
  out += fmt::format("{:<13} {:>10}   {}\n", "", "median", "spread");
  out += Line("tokens/s", TokensPerSecond(runs), "{:.1f}");
  for (const auto& [name, values] : SecondsOf(setting, runs)) out += Line(name, values, "{:.4f}");
  return out;
}

std::string BenchJson(const BenchSetting& setting, const std::vector<BenchRun>& runs) {
  std::string out = "{";
  const auto text = [&](const char* name, const std::string& value) {
    AppendMember(&out, name);
    run::AppendJsonString(&out, value);
  };
  const auto number = [&](const char* name, auto value) {
    AppendMember(&out, name);
    run::AppendJsonNumber(&out, value);
  };
  text("bench", NameOf(setting.kind));
  text("model", setting.model);
  text("dtype", setting.dtype);
  text("machine", setting.machine);
  number("threads", setting.threads);
  number("prompts", setting.prompts);
  number("samples", setting.samples);
  number("prompt_tokens", runs.back().prompt_tokens);
  number("generated_tokens", runs.back().generated_tokens);
  number("median_tokens_per_s", Median(TokensPerSecond(runs)));
  AppendList(&out, "tokens_per_s", TokensPerSecond(runs));
  for (const auto& [name, values] : SecondsOf(setting, runs)) {
    number(fmt::format("median_{}", name).c_str(), Median(values));
    AppendList(&out, name, values);
  }
  return out + "}\n";
}

}  // namespace orrery::commands
