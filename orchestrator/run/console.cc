#include "orchestrator/run/console.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "orchestrator/base/file.h"
#include "orchestrator/base/utf8.h"
#include "orchestrator/run/metric_names.h"

namespace orrery::run {
namespace {

constexpr size_t kStepsOfForecast = 20;
constexpr double kSecondsBetweenRedraws = 0.1;
constexpr const char* kEraseLine = "\r\x1b[K";

bool LocaleIsUtf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string_view locale = value;
    for (const std::string_view charset : {"UTF-8", "utf-8", "UTF8", "utf8"}) {
      if (locale.find(charset) != std::string_view::npos) return true;
    }
    return false;
  }
  return false;
}

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The most characters that fit without wrapping, cut between characters.
std::string CutToColumns(std::string_view text, int columns) {
  size_t offset = 0;
  for (int shown = 0; offset < text.size() && shown < columns; ++shown) {
    offset += std::max<size_t>(1, Utf8CharacterSize(text, offset));
  }
  return std::string(text.substr(0, offset));
}

void AppendMetric(std::string* line, const StepMetrics& metrics, std::string_view name,
                  const char* label) {
  const std::optional<double> value = metrics.Find(name);
  if (value) *line += fmt::format("  {} {}", label, FormatValue(*value));
}

}  // namespace

ConsoleTraits TraitsOf(std::FILE* file) {
  ConsoleTraits traits;
  const char* term = std::getenv("TERM");
  const bool dumb = term == nullptr || std::string_view(term) == "dumb";
  traits.terminal = ::isatty(::fileno(file)) == 1 && !dumb;
  const char* no_color = std::getenv("NO_COLOR");
  traits.color = traits.terminal && (no_color == nullptr || *no_color == '\0');
  traits.unicode = LocaleIsUtf8();
  winsize size{};
  if (traits.terminal && ::ioctl(::fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    traits.columns = size.ws_col;
  }
  return traits;
}

std::string FormatDuration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto whole = static_cast<int64_t>(std::min(seconds + 0.5, 1e12));
  const int64_t hours = whole / 3600;
  if (hours >= 24) return fmt::format("{}d {:02}:{:02}", hours / 24, hours % 24, whole / 60 % 60);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string FormatCount(double value) {
  if (!std::isfinite(value)) return "-";
  static constexpr const char* kUnits[] = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit < 4) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.3g}{}", value, kUnits[unit]);
}

std::string FormatValue(double value) {
  if (!std::isfinite(value)) return "-";
  const double size = std::abs(value);
  if (size == 0) return "0";
  if (size < 1e-3 || size >= 1e6) return fmt::format("{:.2e}", value);
  if (size >= 1000) return fmt::format("{:.0f}", value);
  return fmt::format("{:.3g}", value);
}

Console::Console(std::FILE* file, ConsoleTraits traits, int64_t first_step, int64_t last_step,
                 std::function<double()> now)
    : file_(file),
      traits_(traits),
      last_step_(last_step),
      now_(std::move(now)),
      step_(first_step - 1),
      step_began_(now_()) {}

Console::Console(std::FILE* file, int64_t first_step, int64_t last_step)
    : Console(file, TraitsOf(file), first_step, last_step, SteadySeconds) {}

Console::~Console() {
  if (drawn_) std::fputc('\n', file_);
  std::fflush(file_);
}

absl::Status Console::Write(const StepMetrics& metrics) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const double now = now_();
  step_seconds_.push_back(now - step_began_);
  if (step_seconds_.size() > kStepsOfForecast) step_seconds_.pop_front();
  step_began_ = now;
  step_ = metrics.step();
  line_ = StepLine(metrics);
  stage_.clear();
  if (traits_.terminal) {
    Redraw();
  } else {
    fmt::print(file_, "{}\n", line_);
  }
  std::fflush(file_);
  return absl::OkStatus();
}

absl::Status Console::Flush() {
  if (std::fflush(file_) != 0) return ErrnoStatus("cannot write to", "the terminal", errno);
  return absl::OkStatus();
}

void Console::Stage(std::string_view text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  stage_ = text;
  if (!traits_.terminal || now_() - last_redraw_ < kSecondsBetweenRedraws) return;
  Redraw();
}

void Console::Note(std::string_view text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Erase();
  fmt::print(file_, "{}\n", text);
  if (traits_.terminal && !line_.empty()) Redraw();
  std::fflush(file_);
}

double Console::SecondsLeft() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return SecondsLeftLocked();
}

double Console::SecondsLeftLocked() const {
  if (step_seconds_.empty()) return -1;
  std::vector<double> sorted(step_seconds_.begin(), step_seconds_.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2] * static_cast<double>(std::max<int64_t>(0, last_step_ - step_));
}

std::string Console::StepLine(const StepMetrics& metrics) const {
  const std::string total = std::to_string(last_step_);
  std::string line = fmt::format("step {:>{}}/{}", metrics.step(), total.size(), total);
  if (const auto reward = metrics.Find(metric::kRawReward)) {
    line += std::isfinite(*reward) ? fmt::format("  reward {:.3f}", *reward) : "  reward -";
  }
  AppendMetric(&line, metrics, metric::kLoss, "loss");
  AppendMetric(&line, metrics, metric::kResponseLenMean, "len");
  AppendMetric(&line, metrics, metric::kEntropy, "entropy");
  for (const auto& [name, value] : metrics.values()) {
    if (!name.starts_with(metric::kEvalPrefix) || !name.ends_with(metric::kAccuracySuffix))
      continue;
    line += fmt::format("  {} {:.3f}", name.substr(0, name.rfind('/')), value);
  }
  std::optional<double> rate = metrics.Find(metric::kRolloutTokensPerSecond);
  if (!rate) rate = metrics.Find(metric::kTrainTokensPerSecond);
  if (rate) line += fmt::format("  {} tok/s", FormatCount(*rate));
  line += fmt::format("  {} s", FormatValue(step_seconds_.back()));
  const double left = SecondsLeftLocked();
  return step_ < last_step_ ? line + "  left " + FormatDuration(left) : line;
}

void Console::Redraw() {
  std::string shown = line_;
  if (!stage_.empty()) shown += (shown.empty() ? "" : "  ") + stage_;
  fmt::print(file_, "{}{}", kEraseLine, CutToColumns(shown, traits_.columns - 1));
  std::fflush(file_);
  last_redraw_ = now_();
  drawn_ = true;
}

void Console::Erase() {
  if (drawn_) std::fputs(kEraseLine, file_);
  drawn_ = false;
}

}  // namespace orrery::run
