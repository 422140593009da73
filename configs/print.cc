// PrintExperiment and ExplainExperiment of yaml.h: one visitor writes the keys and values, and the
// comments where asked.
#include <fmt/format.h>

#include <algorithm>

#include "configs/fields.h"
#include "configs/yaml.h"

namespace orrery::configs {
namespace {

// Text that YAML takes as it is, whatever version reads it.
bool IsPlainText(std::string_view text) {
  constexpr std::string_view kWords[] = {"true", "false", "yes", "no", "on",
                                         "off",  "null",  "y",   "n"};
  const auto letter = [](unsigned char c) { return c < 0x80 && std::isalpha(c); };
  const auto allowed = [](unsigned char c) {
    return c < 0x80 && (std::isalnum(c) || std::string_view("_-./@+").find(c) != std::string::npos);
  };
  if (text.empty() || (!letter(text[0]) && text[0] != '/' && text[0] != '_')) return false;
  if (!std::all_of(text.begin(), text.end(), allowed)) return false;
  std::string lower;
  for (const unsigned char c : text) lower += static_cast<char>(std::tolower(c));
  return std::find(std::begin(kWords), std::end(kWords), lower) == std::end(kWords);
}

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const unsigned char c : text) {
    if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\t') {
      quoted += "\\t";
    } else if (c == '"' || c == '\\') {
      quoted += {'\\', static_cast<char>(c)};
    } else if (c < 0x20 || c == 0x7f) {
      quoted += fmt::format("\\x{:02x}", c);
    } else {
      quoted += static_cast<char>(c);
    }
  }
  return quoted + "\"";
}

std::string Value(const std::string& text) { return IsPlainText(text) ? text : Quoted(text); }
std::string Value(bool value) { return value ? "true" : "false"; }
std::string Value(int64_t value) { return fmt::format("{}", value); }

// The shortest text that reads back to the same number, with a mark that it need not be whole.
std::string Value(double value) {
  const std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string Value(const std::optional<double>& value) { return value ? Value(*value) : "auto"; }

template <typename T>
std::string Value(const std::vector<T>& list) {
  std::string text;
  for (const T& item : list) text += (text.empty() ? "" : ", ") + Value(item);
  return "[" + text + "]";
}

std::string Value(const std::map<std::string, std::string>& map) {
  std::string text;
  for (const auto& [key, value] : map) {
    text += (text.empty() ? "" : ", ") + Quoted(key) + ": " + Quoted(value);
  }
  return "{" + text + "}";
}

std::string TypeName(const std::string&) { return "text"; }
std::string TypeName(bool) { return "true or false"; }
std::string TypeName(int64_t) { return "whole number"; }
std::string TypeName(double) { return "number"; }
std::string TypeName(const std::optional<double>&) { return "number or auto"; }
std::string TypeName(const std::vector<std::string>&) { return "list of texts"; }
std::string TypeName(const std::vector<int64_t>&) { return "list of whole numbers"; }
std::string TypeName(const std::map<std::string, std::string>&) { return "map of texts"; }

// "learning rate at its peak (number, at least 0 and at most 10)"
template <typename T>
std::string Explanation(const T& member, const Field& field) {
  if (!field.choices.empty()) {
    return fmt::format("{} ({})", field.meaning, fmt::join(field.choices, ", "));
  }
  std::string kind = TypeName(member);
  if (!field.unit.empty()) kind += fmt::format(", {}", field.unit);
  Range range = field.range;
  if (range.max == kMaxCount) range.max = Range{}.max;  // a bound of reason, no news to anybody
  if (const std::string text = RangeText(range); !text.empty()) kind += ", " + text;
  return fmt::format("{} ({})", field.meaning, kind);
}

class Printer {
 public:
  explicit Printer(bool explain) : explain_(explain) {}

  std::string TakeText() { return std::move(text_); }

  template <typename T>
  void operator()(T& member, const Field& field) {
    if (explain_) Comment(Explanation(member, field));
    Line(fmt::format("{}: {}", field.key, Value(member)));
  }

  template <Section T>
  void operator()(T& section, const Field& field) {
    if (explain_) {
      if (indent_.empty() && !text_.empty()) text_ += '\n';
      Comment(std::string(field.meaning));
    }
    Line(fmt::format("{}:", field.key));
    Indented([&] { ForEach(section, *this); });
  }

  template <Section T>
  void operator()(std::vector<T>& list, const Field& field) {
    if (explain_) ExplainList<T>(field);
    if (list.empty()) return Line(fmt::format("{}: []", field.key));
    Line(fmt::format("{}:", field.key));
    for (T& section : list) {
      next_line_begins_entry_ = true;
      Indented([&] { Indented([&] { ForEach(section, *this); }); });
    }
  }

 private:
  template <typename F>
  void Indented(F&& print) {
    indent_ += "  ";
    print();
    indent_.resize(indent_.size() - 2);
  }

  void Line(const std::string& line) {
    std::string start = indent_;
    if (std::exchange(next_line_begins_entry_, false)) start[start.size() - 2] = '-';
    text_ += start + line + '\n';
  }

  // In lines of at most 100 characters.
  void Comment(std::string_view comment) {
    while (!comment.empty()) {
      const size_t width = 98 - indent_.size();
      size_t end = comment.size() <= width ? comment.size() : comment.rfind(' ', width);
      if (end == std::string_view::npos) end = comment.size();
      text_ += fmt::format("{}# {}\n", indent_, comment.substr(0, end));
      comment.remove_prefix(std::min(end + 1, comment.size()));
    }
  }

  // A list is empty by default: one entry with its keys stands in comments.
  template <typename T>
  void ExplainList(const Field& field) {
    Printer entry(true);
    entry.next_line_begins_entry_ = false;
    T section;
    ForEach(section, entry);
    if (!text_.empty()) text_ += '\n';
    Comment(fmt::format("{}; a list, each entry ({}: [{{...}}, {{...}}]) has these keys:",
                        field.meaning, field.key));
    std::string_view lines = entry.text_;
    while (!lines.empty()) {
      const size_t newline = lines.find('\n');
      const std::string_view line = lines.substr(0, newline);
      text_ += fmt::format("#{}{}\n", line.empty() ? "" : "   ", line);
      lines.remove_prefix(newline + 1);
    }
  }

  const bool explain_;
  bool next_line_begins_entry_ = false;
  std::string indent_;
  std::string text_;
};

}  // namespace

std::string PrintExperiment(const Experiment& experiment) {
  Experiment copy = experiment;  // visitors may write, so they take no constant
  Printer printer(false);
  ForEach(copy, printer);
  return printer.TakeText();
}

std::string ExplainExperiment() {
  Experiment defaults;
  Printer printer(true);
  ForEach(defaults, printer);
  return printer.TakeText();
}

}  // namespace orrery::configs
