#include "orchestrator/run/report_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "orchestrator/base/status.h"
#include "orchestrator/base/utf8.h"
#include "orchestrator/run/json_text.h"
#include "orchestrator/run/run_directory.h"
#include "orchestrator/run/samples.h"

namespace orrery::run {
namespace {

void AppendText(std::string* out, std::string_view text) { AppendJsonString(out, text, true); }

// A metric over buckets of steps. What a bucket lacks stays NaN.
struct Curve {
  explicit Curve(size_t points)
      : sum(points),
        low(points, std::numeric_limits<double>::infinity()),
        high(points, -std::numeric_limits<double>::infinity()),
        count(points) {}

  void Add(size_t point, double value) {
    sum[point] += value;
    low[point] = std::min(low[point], value);
    high[point] = std::max(high[point], value);
    ++count[point];
  }

  std::vector<double> sum, low, high;
  std::vector<int64_t> count;
};

void AppendList(std::string* out, std::string_view name, const std::vector<double>& values) {
  fmt::format_to(std::back_inserter(*out), "\"{}\":[", name);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) *out += ',';
    AppendPictureNumber(out, values[i]);
  }
  *out += ']';
}

void AppendCurve(std::string* out, const Curve& curve, bool band) {
  std::vector<double> mean;
  for (size_t i = 0; i < curve.sum.size(); ++i) {
    mean.push_back(curve.sum[i] / static_cast<double>(curve.count[i]));  // 0 / 0: NaN, so null
  }
  *out += '{';
  AppendList(out, "mean", mean);
  if (band) {
    *out += ',';
    AppendList(out, "low", curve.low);
    *out += ',';
    AppendList(out, "high", curve.high);
  }
  *out += '}';
}

// Whether `text` ends in the begin of a character whose other bytes may follow.
bool EndsInsideACharacter(std::string_view text) {
  const size_t broken = FindInvalidUtf8(text);
  if (broken == std::string_view::npos) return false;
  const auto first = static_cast<unsigned char>(text[broken]);
  if (first < 0xc2 || first > 0xf4) return false;
  const size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  return text.size() - broken < length;
}

// Tokens whose text ends inside a character show it with the token that ends it.
std::vector<std::string> WholeCharacterPieces(const SegmentText& text) {
  std::vector<std::string> pieces;
  std::string open;
  size_t begin = 0;
  for (const int32_t bytes : text.piece_bytes) {
    open += text.text.substr(begin, static_cast<size_t>(bytes));
    begin += static_cast<size_t>(bytes);
    const bool last = pieces.size() + 1 == text.piece_bytes.size();
    if (!last && EndsInsideACharacter(open)) {
      pieces.emplace_back();
    } else {
      pieces.push_back(std::move(open));
      open.clear();
    }
  }
  return pieces;
}

void AppendPolicyTokens(std::string* out, const Segment& segment, const SegmentText& text,
                        int64_t max_bytes) {
  const std::vector<std::string> pieces = WholeCharacterPieces(text);
  std::string ids, logprobs, versions, texts;
  int64_t bytes = 0;
  size_t shown = 0;
  for (; shown < pieces.size() && bytes <= max_bytes; ++shown) {
    const char* comma = shown == 0 ? "" : ",";
    bytes += static_cast<int64_t>(pieces[shown].size());
    texts += comma;
    AppendText(&texts, pieces[shown]);
    ids += fmt::format("{}{}", comma, segment.token_ids[shown]);
    logprobs += comma;
    AppendPictureNumber(&logprobs, shown < segment.logprobs.size() ? segment.logprobs[shown] : NAN);
    versions += comma;
    versions += shown < segment.versions.size() ? std::to_string(segment.versions[shown]) : "null";
  }
  for (; shown < pieces.size(); ++shown) bytes += static_cast<int64_t>(pieces[shown].size());
  const int64_t cut = std::max<int64_t>(0, static_cast<int64_t>(text.text.size()) - max_bytes);
  *out +=
      fmt::format(",\"cut\":{},\"pieces\":[{}],\"ids\":[{}],\"logprobs\":[{}],\"versions\":[{}]",
                  cut, texts, ids, logprobs, versions);
}

void AppendPlainText(std::string* out, const SegmentText& text, int64_t max_bytes) {
  size_t end = std::min(text.text.size(), static_cast<size_t>(max_bytes));
  // Not in the middle of a character.
  while (end > 0 && end < text.text.size() && (text.text[end] & 0xc0) == 0x80) --end;
  *out += fmt::format(",\"cut\":{},\"text\":", text.text.size() - end);
  AppendText(out, std::string_view(text.text).substr(0, end));
}

void AppendSegments(std::string* out, const RecordedEpisode& recorded, int64_t max_bytes) {
  bool first = true;
  for (size_t s = 0; s < recorded.episode.samples.size(); ++s) {
    const Sample& sample = recorded.episode.samples[s];
    for (size_t i = 0; i < sample.segments.size(); ++i) {
      const Segment& segment = sample.segments[i];
      *out += fmt::format("{}{{\"author\":\"{}\",\"tokens\":{}", first ? "" : ",",
                          AuthorName(segment.author), segment.token_ids.size());
      first = false;
      if (segment.author == Author::kPolicy) {
        AppendPolicyTokens(out, segment, recorded.text[s][i], max_bytes);
      } else {
        AppendPlainText(out, recorded.text[s][i], max_bytes);
      }
      *out += '}';
    }
  }
}

std::string EpisodeJson(const RecordedEpisode& recorded, int64_t position, int64_t max_bytes) {
  const Episode& episode = recorded.episode;
  size_t tokens = 0;
  for (const Sample& sample : episode.samples) tokens += sample.num_policy_tokens();
  // 64-bit numbers as texts: JavaScript's numbers have 53 bits.
  std::string out = fmt::format(
      "{{\"position\":{},\"group\":\"{}\",\"index\":{},\"seed\":\"{}\",\"tokens\":{},\"turns\":{},"
      "\"trained\":{},\"status\":\"{}\",\"finish\":\"{}\",\"reward\":",
      position, recorded.group_id, episode.index_in_group, episode.seed, tokens, episode.num_turns,
      episode.trained, StatusName(episode.status),
      episode.samples.empty() ? "none" : FinishReasonName(episode.samples.back().finish_reason));
  const bool scored = episode.outcome.kind == Outcome::Kind::kScored;
  AppendPictureNumber(&out, scored ? episode.outcome.score : NAN);
  out += ",\"advantage\":";
  AppendPictureNumber(&out, episode.advantage);
  out += ",\"why\":";
  AppendText(&out, std::string_view(episode.outcome.why).substr(0, 2000));
  out += ",\"answer\":";
  AppendText(&out, std::string_view(recorded.prompt.answer).substr(0, 2000));
  out += ",\"prompt\":";
  AppendText(&out, recorded.prompt.id);
  out += ",\"parts\":[";
  for (const auto& [name, score] : episode.outcome.parts) {
    out += out.back() == '[' ? "[" : ",[";
    AppendText(&out, name);
    out += ',';
    AppendPictureNumber(&out, score);
    out += ']';
  }
  out += "],\"segments\":[";
  AppendSegments(&out, recorded, max_bytes);
  return out + "]}";
}

}  // namespace

void AppendPictureNumber(std::string* out, double value) {
  if (std::isfinite(value)) {
    fmt::format_to(std::back_inserter(*out), "{:.6g}", value);
  } else {
    *out += "null";
  }
}

std::string CurvesJson(const std::vector<StepMetrics>& steps, int64_t max_points) {
  const size_t bucket = std::max<size_t>(
      1, (steps.size() + static_cast<size_t>(max_points) - 1) / static_cast<size_t>(max_points));
  const size_t points = (steps.size() + bucket - 1) / bucket;
  std::map<std::string, Curve> curves;
  for (size_t i = 0; i < steps.size(); ++i) {
    for (const auto& [name, value] : steps[i].values()) {
      auto [curve, is_new] = curves.try_emplace(name, points);
      if (std::isfinite(value)) curve->second.Add(i / bucket, value);
    }
  }
  std::string out = fmt::format("\"bucket\":{},\"steps\":[", bucket);
  for (size_t point = 0; point < points; ++point) {
    const size_t last = std::min(steps.size(), (point + 1) * bucket) - 1;
    out += fmt::format("{}{}", point == 0 ? "" : ",", steps[last].step());
  }
  out += "],\"series\":{";
  for (const auto& [name, curve] : curves) {
    if (out.back() != '{') out += ',';
    AppendText(&out, name);
    out += ':';
    AppendCurve(&out, curve, bucket > 1);
  }
  return out + '}';
}

std::string SamplesFileJson(const ShownSamples& shown, const ReportOptions& options,
                            int64_t budget) {
  std::string episodes;
  int64_t count = 0;
  const absl::Status status = ForEachEpisode(shown.path, [&](const RecordedEpisode& recorded) {
    const std::string episode = EpisodeJson(recorded, count, options.max_segment_bytes);
    budget -= static_cast<int64_t>(episode.size());
    if (count >= options.episodes_per_step || budget < 0) return absl::CancelledError();
    episodes += (count == 0 ? "" : ",") + episode;
    ++count;
    return absl::OkStatus();
  });
  const bool more = absl::IsCancelled(status);
  std::string out = fmt::format("{{\"run\":{},\"step\":{},\"eval\":", shown.run, shown.step);
  AppendText(&out, shown.eval);
  out += fmt::format(",\"total\":{:.0f},\"more\":{},\"problem\":",
                     std::max(shown.total, static_cast<double>(count)), more);
  AppendText(&out, status.ok() || more ? "" : StatusText(status));
  return out + ",\"episodes\":[" + episodes + "]}";
}

}  // namespace orrery::run
