#include "rollout/text/normalizer.h"

#include "orchestrator/base/status.h"
#include "rollout/text/unicode_text.h"
#include "rollout/text/utf8.h"

namespace orrery::rollout {
namespace {

constexpr int kDeepestSequence = 16;

std::string_view TrimLeft(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char c = ReadUtf8(text);
    if (!IsWhiteSpace(c.code_point)) break;
    text.remove_prefix(c.length);
  }
  return text;
}

std::string_view TrimRight(std::string_view text) {
  while (!text.empty()) {
    const char32_t c = LastUtf8(text);
    if (!IsWhiteSpace(c)) break;
    text.remove_suffix(EncodeUtf8(c).size());
  }
  return text;
}

}  // namespace

absl::StatusOr<Regex> RegexFromJson(const JsonCursor& node) {
  const bool literal = node["String"].is_string();
  const JsonCursor field = literal ? node["String"] : node["Regex"];
  if (!field.is_string()) return node.Expected(R"({"String": ...} or {"Regex": ...})");
  ASSIGN_OR_RETURN(const std::string text, field.String());
  absl::StatusOr<Regex> regex = literal ? Regex::Literal(text) : Regex::Compile(text);
  if (!regex.ok())
    return InvalidInput("{}: {}: {}", field.path(), text, StatusText(regex.status()));
  return regex;
}

absl::StatusOr<Normalizer> Normalizer::FromJson(const JsonCursor& node) {
  Normalizer normalizer;
  if (!node.is_null()) RETURN_IF_ERROR(normalizer.Add(node, 0));
  return normalizer;
}

absl::Status Normalizer::Add(const JsonCursor& node, int depth) {
  RETURN_IF_ERROR(node.RequireObject());
  if (depth > kDeepestSequence) return node.Expected("fewer sequences inside one another");
  ASSIGN_OR_RETURN(const int type,
                   node["type"].Choice({"NFC", "NFD", "NFKC", "NFKD", "Sequence", "Prepend",
                                        "Replace", "Lowercase", "Strip"}));
  if (type < 4) {
    steps_.emplace_back(static_cast<Form>(type));
  } else if (type == 4) {
    ASSIGN_OR_RETURN(const std::vector<JsonCursor> elements, node["normalizers"].Elements());
    for (const JsonCursor& element : elements) RETURN_IF_ERROR(Add(element, depth + 1));
  } else if (type == 5) {
    ASSIGN_OR_RETURN(std::string prefix, node["prepend"].String());
    steps_.emplace_back(Prepend{std::move(prefix)});
  } else if (type == 6) {
    return AddReplace(node);
  } else if (type == 7) {
    steps_.emplace_back(Lowercase{});
  } else {
    ASSIGN_OR_RETURN(const bool left, node["strip_left"].Bool());
    ASSIGN_OR_RETURN(const bool right, node["strip_right"].Bool());
    steps_.emplace_back(Strip{left, right});
  }
  return absl::OkStatus();
}

absl::Status Normalizer::AddReplace(const JsonCursor& node) {
  ASSIGN_OR_RETURN(Regex pattern, RegexFromJson(node["pattern"]));
  ASSIGN_OR_RETURN(std::string content, node["content"].String());
  steps_.emplace_back(Replace{std::move(pattern), std::move(content)});
  return absl::OkStatus();
}

std::string_view Normalizer::Apply(std::string_view text, std::string* buffer,
                                   RegexScratch* scratch) const {
  std::string next;
  std::string_view current = text;
  for (const Step& step : steps_) {
    const bool changed = std::visit(
        [&](const auto& known) { return ApplyStep(known, current, &next, scratch); }, step);
    if (!changed) continue;
    buffer->swap(next);
    current = *buffer;
  }
  return current;
}

bool Normalizer::ApplyStep(const Form& form, std::string_view text, std::string* out,
                           RegexScratch*) {
  const bool composed = form == Form::kNfc || form == Form::kNfkc;
  const bool compatibility = form == Form::kNfkc || form == Form::kNfkd;
  return Normalize({composed, compatibility}, text, out);
}

bool Normalizer::ApplyStep(const Prepend& step, std::string_view text, std::string* out,
                           RegexScratch*) {
  if (text.empty()) return false;
  *out = step.prefix;
  out->append(text);
  return true;
}

bool Normalizer::ApplyStep(const Replace& step, std::string_view text, std::string* out,
                           RegexScratch* scratch) {
  Regex::Scan scan(step.pattern, text, scratch);
  size_t begin = 0, end = 0, done = 0;
  if (!scan.Next(&begin, &end)) return false;
  out->clear();
  do {
    out->append(text.substr(done, begin - done)).append(step.content);
    done = end;
  } while (scan.Next(&begin, &end));
  out->append(text.substr(done));
  return true;
}

bool Normalizer::ApplyStep(const Lowercase&, std::string_view text, std::string* out,
                           RegexScratch*) {
  out->clear();
  AppendLowercase(text, out);
  return true;
}

bool Normalizer::ApplyStep(const Strip& step, std::string_view text, std::string* out,
                           RegexScratch*) {
  if (step.left) text = TrimLeft(text);
  if (step.right) text = TrimRight(text);
  *out = text;
  return true;
}

}  // namespace orrery::rollout
