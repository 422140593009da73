#include "orchestrator/run/samples.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "orchestrator/base/check.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "orchestrator/run/compressed_lines.h"
#include "orchestrator/run/json_text.h"
#include "orchestrator/run/run_directory.h"

namespace orrery::run {
namespace {

// Does not compile when types.h has a field that this file does not know: a samples file that loses
// one would no longer replay.
[[maybe_unused]] void EveryFieldIsWritten(const EpisodeGroup& group, const Episode& episode,
                                          const Sample& sample, const Segment& segment,
                                          const Message& message) {
  [[maybe_unused]] const auto& [group_id, prompt, episodes] = group;
  [[maybe_unused]] const auto& [id, messages, text, answer, solution, solution_messages, metadata] =
      prompt;
  [[maybe_unused]] const auto& [episode_id, episode_group_id, index_in_group, seed, samples,
                                response_text, num_turns, status, outcome, advantage, trained] =
      episode;
  [[maybe_unused]] const auto& [kind, score, why, parts] = outcome;
  [[maybe_unused]] const auto& [segments, finish_reason, routed_experts] = sample;
  [[maybe_unused]] const auto& [author, token_ids, logprobs, versions, top_logprobs] = segment;
  [[maybe_unused]] const auto& [role, content] = message;
}

// Builds one object; every Add puts the comma and the key.
class ObjectWriter {
 public:
  explicit ObjectWriter(std::string* out) : out_(out) { *out_ += '{'; }
  void Close() { *out_ += '}'; }

  std::string* Key(std::string_view name) {
    if (!first_) *out_ += ',';
    first_ = false;
    AppendJsonString(out_, name);
    *out_ += ':';
    return out_;
  }
  void Text(std::string_view name, std::string_view text) { AppendJsonBytes(Key(name), text); }
  template <typename T>
  void Number(std::string_view name, T value) {
    AppendJsonNumber(Key(name), value);
  }
  template <typename T>
  void Numbers(std::string_view name, const std::vector<T>& values) {
    std::string* out = Key(name);
    *out += '[';
    for (size_t i = 0; i < values.size(); ++i) {
      if (i > 0) *out += ',';
      AppendJsonNumber(out, values[i]);
    }
    *out += ']';
  }

 private:
  std::string* const out_;
  bool first_ = true;
};

// [[version, number of tokens], ...]
void AppendVersions(std::string* out, const std::vector<PolicyVersion>& versions) {
  *out += '[';
  for (size_t begin = 0; begin < versions.size();) {
    size_t end = begin + 1;
    while (end < versions.size() && versions[end] == versions[begin]) ++end;
    if (begin > 0) *out += ',';
    *out += fmt::format("[{},{}]", versions[begin], end - begin);
    begin = end;
  }
  *out += ']';
}

void AppendTopLogprobs(std::string* out, const Segment& segment, const PieceDecoder& decode) {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  for (const TokenLogprob& top : segment.top_logprobs) {
    ids.push_back(top.token_id);
    logprobs.push_back(top.logprob);
  }
  const std::vector<std::string> pieces = decode(ids);
  CHECK_EQ(pieces.size(), ids.size()) << "the decoder gives a piece a token";
  ObjectWriter object(out);
  object.Number("n", static_cast<int64_t>(ids.size() / segment.token_ids.size()));
  object.Numbers("token_ids", ids);
  object.Numbers("logprobs", logprobs);
  *object.Key("pieces") += '[';
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (i > 0) *out += ',';
    AppendJsonBytes(out, pieces[i]);
  }
  *out += ']';
  object.Close();
}

void AppendSegment(std::string* out, const Segment& segment, const PieceDecoder& decode) {
  const std::vector<std::string> pieces = decode(segment.token_ids);
  CHECK_EQ(pieces.size(), segment.token_ids.size()) << "the decoder gives a piece a token";
  std::string text;
  std::vector<int64_t> piece_bytes;
  for (const std::string& piece : pieces) {
    text += piece;
    piece_bytes.push_back(static_cast<int64_t>(piece.size()));
  }
  ObjectWriter object(out);
  object.Text("author", AuthorName(segment.author));
  object.Text("text", text);
  object.Numbers("piece_bytes", piece_bytes);
  object.Numbers("token_ids", segment.token_ids);
  object.Numbers("logprobs", segment.logprobs);
  AppendVersions(object.Key("versions"), segment.versions);
  if (!segment.top_logprobs.empty()) {
    AppendTopLogprobs(object.Key("top_logprobs"), segment, decode);
  }
  object.Close();
}

void AppendRoutedExperts(std::string* out, const RoutedExperts& routed) {
  std::string ids;
  ids.reserve(static_cast<size_t>(routed.num_bytes()));
  if (routed.prompt != nullptr) ids.append(routed.prompt->begin(), routed.prompt->end());
  ids.append(routed.rest.begin(), routed.rest.end());
  ObjectWriter object(out);
  object.Number("layers", routed.num_layers);
  object.Number("top_k", routed.top_k);
  object.Number("id_bytes", routed.id_bytes);
  object.Number("prompt_tokens",
                routed.token_bytes() == 0 ? 0 : routed.prompt_bytes() / routed.token_bytes());
  object.Number("tokens", routed.num_positions());
  *object.Key("ids") += '"' + Base64(ids) + '"';
  object.Close();
}

void AppendSample(std::string* out, const Sample& sample, const PieceDecoder& decode) {
  ObjectWriter object(out);
  object.Text("finish_reason", FinishReasonName(sample.finish_reason));
  *object.Key("segments") += '[';
  for (size_t i = 0; i < sample.segments.size(); ++i) {
    if (i > 0) *out += ',';
    AppendSegment(out, sample.segments[i], decode);
  }
  *out += ']';
  if (sample.routed_experts != nullptr) {
    AppendRoutedExperts(object.Key("routed_experts"), *sample.routed_experts);
  }
  object.Close();
}

void AppendMessages(std::string* out, const std::vector<Message>& messages) {
  *out += '[';
  for (size_t i = 0; i < messages.size(); ++i) {
    if (i > 0) *out += ',';
    ObjectWriter message(out);
    message.Text("role", messages[i].role);
    message.Text("content", messages[i].content);
    message.Close();
  }
  *out += ']';
}

void AppendPrompt(std::string* out, const Prompt& prompt) {
  ObjectWriter object(out);
  object.Text("id", prompt.id);
  AppendMessages(object.Key("messages"), prompt.messages);
  object.Text("text", prompt.text);
  object.Text("answer", prompt.answer);
  object.Text("solution", prompt.solution);
  AppendMessages(object.Key("solution_messages"), prompt.solution_messages);
  ObjectWriter metadata(object.Key("metadata"));
  for (const auto& [name, value] : prompt.metadata) metadata.Text(name, value);
  metadata.Close();
  object.Close();
}

void AddEpisode(ObjectWriter* object, std::string* out, const Episode& episode,
                const PieceDecoder& decode) {
  object->Number("episode_id", episode.episode_id);
  object->Number("episode_group_id", episode.group_id);
  object->Number("index_in_group", episode.index_in_group);
  object->Number("seed", episode.seed);
  object->Text("status", StatusName(episode.status));
  object->Text("scoring", episode.outcome.kind == Outcome::Kind::kScored ? "scored" : "failed");
  object->Number("score", episode.outcome.score);
  object->Text("why", episode.outcome.why);
  ObjectWriter parts(object->Key("parts"));
  for (const auto& [name, score] : episode.outcome.parts) parts.Number(name, score);
  parts.Close();
  object->Number("advantage", episode.advantage);
  *object->Key("trained") += episode.trained ? "true" : "false";
  object->Number("num_turns", episode.num_turns);
  object->Text("response_text", episode.response_text);
  *object->Key("samples") += '[';
  for (size_t i = 0; i < episode.samples.size(); ++i) {
    if (i > 0) *out += ',';
    AppendSample(out, episode.samples[i], decode);
  }
  *out += ']';
}

// `episode` is null for a group without any.
std::string ToLine(int64_t step, const EpisodeGroup& group, const Episode* episode,
                   const PieceDecoder& decode) {
  std::string line;
  ObjectWriter object(&line);
  object.Number("step", step);
  object.Number("group_id", group.group_id);
  object.Number("group_size", static_cast<int64_t>(group.episodes.size()));
  AppendPrompt(object.Key("prompt"), group.prompt);
  if (episode != nullptr) AddEpisode(&object, &line, *episode, decode);
  object.Close();
  return line;
}

absl::Status WriteAll(int fd, std::string_view content, const std::string& path) {
  while (!content.empty()) {
    const ssize_t n = ::write(fd, content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus("cannot write", path, errno);
    content.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

void AddLines(int64_t step, const std::vector<EpisodeGroup>& groups, const PieceDecoder& decode,
              LineCompressor* lines) {
  for (const EpisodeGroup& group : groups) {
    if (group.episodes.empty()) lines->Add(ToLine(step, group, nullptr, decode));
    for (const Episode& episode : group.episodes) {
      lines->Add(ToLine(step, group, &episode, decode));
    }
  }
}

// Whole or not at all, but not synced.
absl::Status WriteAtOnce(const std::string& path, std::string_view content) {
  const std::string temporary = fmt::format("{}.tmp-{}", path, ::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus("cannot create", temporary, errno);
  absl::Status status = WriteAll(fd, content, temporary);
  if (::close(fd) != 0 && status.ok()) status = ErrnoStatus("cannot close", temporary, errno);
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = ErrnoStatus("cannot rename onto", path, errno);
  }
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

}  // namespace

std::string EncodeSamples(int64_t step, const std::vector<EpisodeGroup>& groups,
                          const PieceDecoder& decode) {
  LineCompressor lines;
  AddLines(step, groups, decode, &lines);
  return lines.Finish();
}

SamplesWriter::SamplesWriter(std::string path, int64_t step, PieceDecoder decode)
    : path_(std::move(path)),
      step_(step),
      decode_(std::move(decode)),
      lines_(std::make_unique<LineCompressor>()) {}

SamplesWriter::~SamplesWriter() = default;

void SamplesWriter::Add(const std::vector<EpisodeGroup>& groups) {
  AddLines(step_, groups, decode_, lines_.get());
}

absl::Status SamplesWriter::Finish() { return WriteAtOnce(path_, lines_->Finish()); }

absl::Status WriteSamples(const std::string& run_directory, int64_t step,
                          const std::vector<EpisodeGroup>& groups, const PieceDecoder& decode) {
  return WriteAtOnce(RunPaths(run_directory).samples_of(step), EncodeSamples(step, groups, decode));
}

}  // namespace orrery::run
