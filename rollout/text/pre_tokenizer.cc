#include "rollout/text/pre_tokenizer.h"

#include <algorithm>

#include "orchestrator/base/status.h"
#include "rollout/text/normalizer.h"
#include "rollout/text/utf8.h"

namespace orrery::rollout {
namespace {

constexpr int kDeepestSequence = 16;

// GPT-2's own pattern, which ByteLevel applies where use_regex is true.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::FromJson(const JsonCursor& node) {
  PreTokenizer pre_tokenizer;
  if (!node.is_null()) RETURN_IF_ERROR(pre_tokenizer.Add(node, 0));
  return pre_tokenizer;
}

absl::Status PreTokenizer::Add(const JsonCursor& node, int depth) {
  RETURN_IF_ERROR(node.RequireObject());
  if (depth > kDeepestSequence) return node.Expected("fewer sequences inside one another");
  ASSIGN_OR_RETURN(const int type,
                   node["type"].Choice({"Sequence", "Split", "Digits", "ByteLevel", "Metaspace"}));
  if (type == 0) {
    ASSIGN_OR_RETURN(const std::vector<JsonCursor> elements, node["pretokenizers"].Elements());
    for (const JsonCursor& element : elements) RETURN_IF_ERROR(Add(element, depth + 1));
    return absl::OkStatus();
  }
  if (byte_level_) {
    return InvalidInput("{}: nothing may follow ByteLevel, which must come last", node.path());
  }
  if (type == 1) return AddSplit(node);
  if (type == 2) return AddDigits(node);
  if (type == 3) return AddByteLevel(node);
  return AddMetaspace(node);
}

absl::Status PreTokenizer::AddSplit(const JsonCursor& node) {
  ASSIGN_OR_RETURN(Regex regex, RegexFromJson(node["pattern"]));
  ASSIGN_OR_RETURN(const int behavior,
                   node["behavior"].Choice({"Removed", "Isolated", "MergedWithPrevious",
                                            "MergedWithNext", "Contiguous"}));
  ASSIGN_OR_RETURN(const bool invert, node["invert"].Bool());
  stages_.emplace_back(SplitStage{std::move(regex), static_cast<Behavior>(behavior), invert});
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddDigits(const JsonCursor& node) {
  ASSIGN_OR_RETURN(const bool individual, node["individual_digits"].BoolOr(false));
  ASSIGN_OR_RETURN(Regex regex, Regex::Compile(R"(\p{N})"));
  const Behavior behavior = individual ? Behavior::kIsolated : Behavior::kContiguous;
  stages_.emplace_back(SplitStage{std::move(regex), behavior, false});
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddByteLevel(const JsonCursor& node) {
  ASSIGN_OR_RETURN(const bool add_prefix_space, node["add_prefix_space"].Bool());
  ASSIGN_OR_RETURN(const bool use_regex, node["use_regex"].BoolOr(true));
  if (add_prefix_space) stages_.emplace_back(PrefixSpaceStage{});
  if (use_regex) {
    ASSIGN_OR_RETURN(Regex regex, Regex::Compile(kGpt2Pattern));
    stages_.emplace_back(SplitStage{std::move(regex), Behavior::kIsolated, false});
  }
  byte_level_ = true;
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddMetaspace(const JsonCursor& node) {
  ASSIGN_OR_RETURN(std::string replacement, node["replacement"].String());
  if (replacement.empty() ||
      static_cast<size_t>(ReadUtf8(replacement).length) != replacement.size()) {
    return node["replacement"].Expected("one character");
  }
  // Older files say add_prefix_space instead.
  ASSIGN_OR_RETURN(const bool add_prefix_space, node["add_prefix_space"].BoolOr(true));
  int prepend = add_prefix_space ? 2 : 1;
  if (!node["prepend_scheme"].is_null()) {
    ASSIGN_OR_RETURN(prepend, node["prepend_scheme"].Choice({"first", "never", "always"}));
    if (!add_prefix_space && prepend != 1) {
      return node["add_prefix_space"].Expected("nothing that contradicts prepend_scheme");
    }
  }
  ASSIGN_OR_RETURN(const bool split, node["split"].BoolOr(true));
  ASSIGN_OR_RETURN(Regex regex, Regex::Literal(replacement));
  stages_.emplace_back(MetaspaceStage{std::move(replacement), prepend});
  if (split) {
    stages_.emplace_back(SplitStage{std::move(regex), Behavior::kMergedWithNext, false});
  }
  return absl::OkStatus();
}

void PreTokenizer::Split(std::string_view piece, bool at_start, RegexScratch* scratch,
                         WordSink sink) const {
  Run(0, piece, at_start, {scratch, sink});
}

void PreTokenizer::Run(size_t stage, std::string_view piece, bool at_start,
                       const Context& context) const {
  if (piece.empty()) return;
  if (stage == stages_.size()) {
    context.sink(piece);
    return;
  }
  std::visit([&](const auto& known) { RunStage(known, stage + 1, piece, at_start, context); },
             stages_[stage]);
}

void PreTokenizer::RunStage(const SplitStage& split, size_t next, std::string_view piece,
                            bool at_start, const Context& context) const {
  // Isolated in either sense is the common case and needs no list.
  if (split.behavior == Behavior::kIsolated) {
    RunIsolated(split.regex, next, piece, at_start, context);
    return;
  }
  std::vector<MatchRange> ranges = split.regex.Ranges(piece, context.scratch);
  if (split.invert) {
    for (MatchRange& range : ranges) range.is_match = !range.is_match;
  }
  for (const MatchRange& range : Group(ranges, split.behavior)) {
    Run(next, piece.substr(range.begin, range.end - range.begin), at_start && range.begin == 0,
        context);
  }
}

void PreTokenizer::RunIsolated(const Regex& regex, size_t next, std::string_view piece,
                               bool at_start, const Context& context) const {
  Regex::Scan scan(regex, piece, context.scratch);
  size_t begin = 0, end = 0, done = 0;
  const auto emit = [&](size_t from, size_t to) {
    if (from != to) Run(next, piece.substr(from, to - from), at_start && from == 0, context);
  };
  while (scan.Next(&begin, &end)) {
    emit(done, begin);
    emit(begin, end);
    done = end;
  }
  emit(done, piece.size());
}

// Joins matches with their neighbours as the behaviour says. A match directly behind another match
// stays alone in the merging behaviours, as in Hugging Face's tokenizers.
std::vector<MatchRange> PreTokenizer::Group(const std::vector<MatchRange>& ranges,
                                            Behavior behavior) {
  std::vector<MatchRange> groups;
  bool previous_match = false;
  const auto forward = [&](auto joins) {
    for (const MatchRange& range : ranges) {
      if (!groups.empty() && joins(range)) {
        groups.back().end = range.end;
      } else {
        groups.push_back(range);
      }
      previous_match = range.is_match;
    }
  };
  switch (behavior) {
    case Behavior::kIsolated:
      return ranges;
    case Behavior::kRemoved:
      for (const MatchRange& range : ranges) {
        if (!range.is_match) groups.push_back(range);
      }
      break;
    case Behavior::kMergedWithPrevious:
      forward([&](const MatchRange& range) { return range.is_match && !previous_match; });
      break;
    case Behavior::kContiguous:
      forward([&](const MatchRange& range) { return range.is_match == previous_match; });
      break;
    case Behavior::kMergedWithNext:
      for (auto range = ranges.rbegin(); range != ranges.rend(); ++range) {
        if (range->is_match && !previous_match && !groups.empty()) {
          groups.back().begin = range->begin;
        } else {
          groups.push_back(*range);
        }
        previous_match = range->is_match;
      }
      std::reverse(groups.begin(), groups.end());
      break;
  }
  return groups;
}

void PreTokenizer::RunStage(const PrefixSpaceStage&, size_t next, std::string_view piece,
                            bool at_start, const Context& context) const {
  if (piece.starts_with(' ')) {
    Run(next, piece, at_start, context);
    return;
  }
  std::string prefixed = " ";
  prefixed.append(piece);
  Run(next, prefixed, at_start, context);
}

void PreTokenizer::RunStage(const MetaspaceStage& metaspace, size_t next, std::string_view piece,
                            bool at_start, const Context& context) const {
  std::string text;
  for (const char c : piece) {
    if (c == ' ') {
      text += metaspace.replacement;
    } else {
      text.push_back(c);
    }
  }
  const bool prepend = metaspace.prepend == 2 || (metaspace.prepend == 0 && at_start);
  if (prepend && !text.starts_with(metaspace.replacement)) text.insert(0, metaspace.replacement);
  Run(next, text, at_start, context);
}

}  // namespace orrery::rollout
