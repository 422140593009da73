#include "orchestrator/run/inspect.h"

#include <fmt/format.h>

#include <filesystem>

#include "orchestrator/base/status.h"
#include "orchestrator/base/utf8.h"
#include "orchestrator/run/run_directory.h"

namespace orrery::run {
namespace {

// Terminal colours by author: prompt, policy, tool, template.
constexpr int kAuthorColor[] = {90, 36, 32, 33};

std::string Colored(std::string_view text, int code, bool color) {
  return color ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : std::string(text);
}

bool HasText(const RecordedEpisode& recorded, const std::string& text) {
  for (const auto& sample : recorded.text) {
    for (const SegmentText& segment : sample) {
      if (segment.text.find(text) != std::string::npos) return true;
    }
  }
  return false;
}

std::string RewardText(const Episode& episode) {
  if (episode.outcome.kind == Outcome::Kind::kFailed) return "failed";
  return FormatValue(episode.outcome.score);
}

std::string HeadLine(const RecordedEpisode& recorded) {
  const Episode& episode = recorded.episode;
  size_t tokens = 0;
  for (const Sample& sample : episode.samples) tokens += sample.num_policy_tokens();
  std::string line = fmt::format(
      "step {}  group {}  sample {}/{}  reward {}  {}  {} tokens  advantage {}", recorded.step,
      recorded.group_id, episode.index_in_group + 1, recorded.group_size, RewardText(episode),
      episode.samples.empty() ? "no sample"
                              : FinishReasonName(episode.samples.back().finish_reason),
      tokens, FormatValue(episode.advantage));
  if (episode.status != EpisodeStatus::kScored) {
    line += fmt::format("  {}", StatusName(episode.status));
  }
  return episode.trained ? line : line + "  not trained";
}

std::string OneLine(std::string_view text) {
  std::string shown = ForTerminal(text);
  for (char& c : shown) {
    if (c == '\n') c = ' ';
  }
  return shown;
}

void PrintFact(std::FILE* out, const char* name, std::string_view value) {
  if (!value.empty()) fmt::print(out, "  {:<8}{}\n", name, OneLine(value));
}

// A line a token: its text and log-prob, then the most likely tokens at its place.
void PrintTopLogprobs(const Segment& segment, const SegmentText& text, std::FILE* out) {
  const size_t tokens = segment.token_ids.size();
  const size_t n = tokens == 0 ? 0 : segment.top_logprobs.size() / tokens;
  const auto shown = [](std::string_view piece, float logprob) {
    return fmt::format("'{}' {:.3f}", OneLine(piece), logprob);
  };
  size_t begin = 0;
  for (size_t t = 0; t < tokens && n > 0; ++t) {
    const auto size = static_cast<size_t>(text.piece_bytes[t]);
    std::string line = fmt::format(
        "  {:<24}", shown(std::string_view(text.text).substr(begin, size), segment.logprobs[t]));
    begin += size;
    for (size_t i = t * n; i < (t + 1) * n; ++i) {
      line += fmt::format("  {}", shown(text.top_pieces[i], segment.top_logprobs[i].logprob));
    }
    fmt::print(out, "{}\n", line);
  }
}

bool HasTopLogprobs(const Episode& episode) {
  for (const Sample& sample : episode.samples) {
    for (const Segment& segment : sample.segments) {
      if (!segment.top_logprobs.empty()) return true;
    }
  }
  return false;
}

void PrintEpisode(const RecordedEpisode& recorded, bool color, bool top_logprobs, std::FILE* out) {
  const Episode& episode = recorded.episode;
  fmt::print(out, "{}\n", Colored(HeadLine(recorded), 1, color));
  PrintFact(out, "prompt", recorded.prompt.id);
  PrintFact(out, "answer", recorded.prompt.answer);
  PrintFact(out, "why", episode.outcome.why);
  if (episode.outcome.parts.size() > 1) {
    std::string parts;
    for (const auto& [name, score] : episode.outcome.parts) {
      parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", name, FormatValue(score));
    }
    PrintFact(out, "parts", parts);
  }
  for (size_t s = 0; s < episode.samples.size(); ++s) {
    if (const auto& routed = episode.samples[s].routed_experts; routed != nullptr) {
      PrintFact(out, "experts",
                fmt::format("{} tokens x {} layers x top {} recorded", routed->num_positions(),
                            routed->num_layers, routed->top_k));
    }
    for (size_t i = 0; i < episode.samples[s].segments.size(); ++i) {
      const Author author = episode.samples[s].segments[i].author;
      const int code = kAuthorColor[static_cast<size_t>(author)];
      std::string text = ForTerminal(recorded.text[s][i].text);
      if (text.empty() || text.back() != '\n') text += '\n';
      fmt::print(out, "{}\n{}", Colored(fmt::format("[{}]", AuthorName(author)), code, color),
                 Colored(text, code, color));
      if (top_logprobs) {
        PrintTopLogprobs(episode.samples[s].segments[i], recorded.text[s][i], out);
      }
    }
  }
  fmt::print(out, "\n");
}

absl::StatusOr<std::string> SamplesFile(const std::string& path, const SampleFilter& filter) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return path;
  if (!std::filesystem::is_directory(path + "/samples", error)) {
    return NotFound("{} is no run directory, it has no folder samples; name a samples file itself",
                    path);
  }
  ASSIGN_OR_RETURN(const std::vector<int64_t> steps, SampleSteps(path, filter.eval));
  const std::string of = filter.eval ? fmt::format(" of evaluation '{}'", *filter.eval) : "";
  if (steps.empty()) {
    return NotFound("{} has no samples{}: was output.samples off{}?", path, of,
                    filter.eval ? ", or is it another one of evals" : "");
  }
  const int64_t wanted = filter.step.value_or(steps.back());
  const RunPaths paths(path);
  for (const int64_t recorded : steps) {
    if (recorded != wanted) continue;
    return filter.eval ? paths.eval_samples_of(wanted, *filter.eval) : paths.samples_of(wanted);
  }
  return NotFound("{} has no samples of step {}{}: it has those of {} steps from {} to {}", path,
                  wanted, of, steps.size(), steps.front(), steps.back());
}

}  // namespace

bool Matches(const SampleFilter& filter, const RecordedEpisode& recorded) {
  const Episode& episode = recorded.episode;
  if (filter.min_reward || filter.max_reward) {
    if (episode.outcome.kind == Outcome::Kind::kFailed) return false;
    if (filter.min_reward && !(episode.outcome.score >= *filter.min_reward)) return false;
    if (filter.max_reward && !(episode.outcome.score <= *filter.max_reward)) return false;
  }
  if (filter.finish_reason &&
      (episode.samples.empty() || episode.samples.back().finish_reason != *filter.finish_reason)) {
    return false;
  }
  if (filter.group_id && recorded.group_id != *filter.group_id) return false;
  return filter.text.empty() || HasText(recorded, filter.text);
}

std::string ForTerminal(std::string_view text) {
  std::string shown;
  for (size_t offset = 0; offset < text.size();) {
    const size_t size = Utf8CharacterSize(text, offset);
    const auto first = static_cast<unsigned char>(text[offset]);
    const auto second = static_cast<unsigned char>(offset + 1 < text.size() ? text[offset + 1] : 0);
    if (size == 0) {
      shown += "\xef\xbf\xbd";
    } else if ((first < 0x20 && first != '\n' && first != '\t') || first == 0x7f) {
      shown += fmt::format("\\x{:02x}", first);
    } else if (first == 0xc2 && second < 0xa0) {
      shown += fmt::format("\\x{:02x}", second);
    } else {
      shown += text.substr(offset, size);
    }
    offset += size == 0 ? 1 : size;
  }
  return shown;
}

absl::StatusOr<int64_t> PrintSamples(const std::string& path, const SampleFilter& filter,
                                     const ConsoleTraits& traits, std::FILE* out) {
  if (filter.limit < 0) return InvalidInput("--limit {}: at least 0; 0 shows all", filter.limit);
  ASSIGN_OR_RETURN(const std::string file, SamplesFile(path, filter));
  int64_t matched = 0;
  int64_t all = 0;
  bool has_top = false;
  RETURN_IF_ERROR(ForEachEpisode(file, [&](const RecordedEpisode& recorded) {
    ++all;
    if (!Matches(filter, recorded)) return absl::OkStatus();
    ++matched;
    has_top = has_top || HasTopLogprobs(recorded.episode);
    if (filter.limit == 0 || matched <= filter.limit)
      PrintEpisode(recorded, traits.color, filter.top_logprobs, out);
    return absl::OkStatus();
  }));
  const bool limited = filter.limit != 0 && matched > filter.limit;
  fmt::print(out, "{} of {} samples match{}\n", matched, all,
             limited ? fmt::format(", the first {} are shown", filter.limit) : "");
  if (filter.top_logprobs && matched > 0 && !has_top) {
    fmt::print(out, "no top log-probs are recorded here: rollout.top_logprobs of training alone\n");
  }
  return matched;
}

}  // namespace orrery::run
