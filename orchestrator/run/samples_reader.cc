#include <array>

#include "orchestrator/base/status.h"
#include "orchestrator/run/compressed_lines.h"
#include "orchestrator/run/json_text.h"
#include "orchestrator/run/samples.h"

namespace orrery::run {
namespace {

using rapidjson::Value;

constexpr std::array<std::string_view, 4> kAuthors = {"prompt", "policy", "tool", "template"};
constexpr std::array<std::string_view, 4> kFinishReasons = {"stop", "length", "aborted",
                                                            "rejected"};
constexpr std::array<std::string_view, 5> kStatuses = {"running", "scored", "failed", "filtered",
                                                       "aborted"};
// Tokens that one segment may have: a run-length code must not be able to ask for all memory.
constexpr int64_t kMaxSegmentTokens = 1 << 28;

std::string Joined(std::span<const std::string_view> names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

template <typename Enum>
absl::StatusOr<Enum> ParseEnum(std::string_view name, std::span<const std::string_view> names) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
  }
  return InvalidInput("'{}' is none of {}", ToValidUtf8(name.substr(0, 40)), Joined(names));
}

// Member access that puts the member's name in front of every error.
class ObjectReader {
 public:
  explicit ObjectReader(const Value& object) : object_(object) {}

  absl::Status Text(const char* name, std::string* out) const { return Read(name, out, JsonBytes); }
  absl::Status Int(const char* name, int64_t* out) const { return Read(name, out, JsonInt); }
  absl::Status Uint(const char* name, uint64_t* out) const { return Read(name, out, JsonUint); }
  absl::Status Double(const char* name, double* out) const { return Read(name, out, JsonDouble); }
  absl::Status Int32(const char* name, int32_t* out) const { return Read(name, out, ToInt32); }
  absl::Status Bool(const char* name, bool* out) const { return Read(name, out, JsonBool); }

  template <typename Enum>
  absl::Status OneOf(const char* name, std::span<const std::string_view> names, Enum* out) const {
    std::string text;
    RETURN_IF_ERROR(Text(name, &text));
    absl::StatusOr<Enum> value = ParseEnum<Enum>(text, names);
    if (!value.ok()) return Annotate(value.status(), name);
    *out = *value;
    return absl::OkStatus();
  }

  absl::Status Floats(const char* name, std::vector<float>* out) const {
    return ReadList(name, out, JsonFloat);
  }
  absl::Status Texts(const char* name, std::vector<std::string>* out) const {
    return ReadList(name, out, JsonBytes);
  }
  absl::Status Int32s(const char* name, std::vector<int32_t>* out) const {
    return ReadList(name, out, ToInt32);
  }

  // Null where there is no such member.
  const Value* Find(const char* name) const {
    const auto found = object_.FindMember(name);
    return found == object_.MemberEnd() ? nullptr : &found->value;
  }

  // Calls `use` with every element.
  template <typename Use>
  absl::Status ForEach(const char* name, const Use& use) const {
    ASSIGN_OR_RETURN(const Value* list, JsonMember(object_, name));
    if (!list->IsArray()) return InvalidInput("{}: expected a list", name);
    for (rapidjson::SizeType i = 0; i < list->Size(); ++i) {
      const absl::Status status = use((*list)[i]);
      if (!status.ok()) return Annotate(status, fmt::format("{}[{}]", name, i));
    }
    return absl::OkStatus();
  }

  // Calls `use` with every name and value of an object.
  template <typename Use>
  absl::Status ForEachPair(const char* name, const Use& use) const {
    ASSIGN_OR_RETURN(const Value* object, JsonMember(object_, name));
    if (!object->IsObject()) return InvalidInput("{}: expected an object", name);
    for (const auto& member : object->GetObject()) {
      const std::string key(member.name.GetString(), member.name.GetStringLength());
      const absl::Status status = use(key, member.value);
      if (!status.ok()) return Annotate(status, fmt::format("{}.{}", name, key));
    }
    return absl::OkStatus();
  }

 private:
  static absl::StatusOr<int32_t> ToInt32(const Value& value) {
    ASSIGN_OR_RETURN(const int64_t number, JsonInt(value));
    if (number != static_cast<int32_t>(number)) return InvalidInput("{} is too large", number);
    return static_cast<int32_t>(number);
  }

  template <typename T, typename Parse>
  absl::Status Read(const char* name, T* out, const Parse& parse) const {
    ASSIGN_OR_RETURN(const Value* value, JsonMember(object_, name));
    auto parsed = parse(*value);
    if (!parsed.ok()) return Annotate(parsed.status(), name);
    *out = *std::move(parsed);
    return absl::OkStatus();
  }

  template <typename T, typename Parse>
  absl::Status ReadList(const char* name, std::vector<T>* out, const Parse& parse) const {
    return ForEach(name, [&](const Value& value) -> absl::Status {
      ASSIGN_OR_RETURN(const T element, parse(value));
      out->push_back(element);
      return absl::OkStatus();
    });
  }

  const Value& object_;
};

absl::Status ReadVersionRun(const Value& value, std::vector<PolicyVersion>* versions) {
  if (!value.IsArray() || value.Size() != 2) return InvalidInput("expected [version, tokens]");
  ASSIGN_OR_RETURN(const PolicyVersion version, JsonUint(value[0]));
  ASSIGN_OR_RETURN(const int64_t count, JsonInt(value[1]));
  if (count < 1 || count > kMaxSegmentTokens - static_cast<int64_t>(versions->size())) {
    return InvalidInput("{} tokens of one version cannot be", count);
  }
  versions->insert(versions->end(), static_cast<size_t>(count), version);
  return absl::OkStatus();
}

absl::Status CheckSegment(const Segment& segment, const SegmentText& text) {
  const size_t tokens = segment.token_ids.size();
  for (const size_t length : {segment.logprobs.size(), segment.versions.size()}) {
    if (length != 0 && length != tokens) {
      return InvalidInput("{} tokens, but {} log-probs and {} versions", tokens,
                          segment.logprobs.size(), segment.versions.size());
    }
  }
  if (text.piece_bytes.size() != tokens) {
    return InvalidInput("{} tokens, but {} pieces", tokens, text.piece_bytes.size());
  }
  int64_t bytes = 0;
  for (const int32_t piece : text.piece_bytes) {
    if (piece < 0) return InvalidInput("a piece of {} bytes", piece);
    bytes += piece;
  }
  if (bytes != static_cast<int64_t>(text.text.size())) {
    return InvalidInput("pieces of {} bytes, but a text of {}", bytes, text.text.size());
  }
  return absl::OkStatus();
}

absl::Status ReadTopLogprobs(const Value& value, Segment* segment, SegmentText* text) {
  if (!value.IsObject()) return InvalidInput("expected an object");
  const ObjectReader object(value);
  int64_t n = 0;
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  RETURN_IF_ERROR(object.Int("n", &n));
  RETURN_IF_ERROR(object.Int32s("token_ids", &ids));
  RETURN_IF_ERROR(object.Floats("logprobs", &logprobs));
  RETURN_IF_ERROR(object.Texts("pieces", &text->top_pieces));
  const auto tokens = static_cast<int64_t>(segment->token_ids.size());
  const auto count = static_cast<int64_t>(ids.size());
  if (n < 1 || tokens < 1 || count % tokens != 0 || count / tokens != n ||
      logprobs.size() != ids.size() || text->top_pieces.size() != ids.size()) {
    return InvalidInput("{} of {} tokens, but {} ids, {} log-probs and {} pieces", n, tokens, count,
                        logprobs.size(), text->top_pieces.size());
  }
  for (size_t i = 0; i < ids.size(); ++i) segment->top_logprobs.push_back({ids[i], logprobs[i]});
  return absl::OkStatus();
}

absl::Status ReadSegment(const Value& value, Sample* sample, std::vector<SegmentText>* texts) {
  const ObjectReader object(value);
  Segment segment;
  SegmentText text;
  RETURN_IF_ERROR(object.OneOf("author", kAuthors, &segment.author));
  RETURN_IF_ERROR(object.Text("text", &text.text));
  RETURN_IF_ERROR(object.Int32s("piece_bytes", &text.piece_bytes));
  RETURN_IF_ERROR(object.Int32s("token_ids", &segment.token_ids));
  RETURN_IF_ERROR(object.Floats("logprobs", &segment.logprobs));
  RETURN_IF_ERROR(object.ForEach(
      "versions", [&](const Value& run) { return ReadVersionRun(run, &segment.versions); }));
  RETURN_IF_ERROR(CheckSegment(segment, text));
  if (const Value* top = object.Find("top_logprobs"); top != nullptr) {
    const absl::Status read = ReadTopLogprobs(*top, &segment, &text);
    if (!read.ok()) return Annotate(read, "top_logprobs");
  }
  sample->segments.push_back(std::move(segment));
  texts->push_back(std::move(text));
  return absl::OkStatus();
}

// Splits the ids at the end of the prompt.
absl::Status TakeIds(const std::string& ids, int64_t prompt_tokens, int64_t tokens,
                     RoutedExperts* routed) {
  constexpr int64_t kMost = 4096;  // layers, and experts a token
  if (routed->num_layers < 1 || routed->num_layers > kMost || routed->top_k < 1 ||
      routed->top_k > kMost || routed->id_bytes < 1 || routed->id_bytes > 2 || prompt_tokens < 0 ||
      tokens < prompt_tokens || tokens > kMaxSegmentTokens) {
    return InvalidInput("{} layers, top {}, {} bytes an id, {} of {} tokens cannot be",
                        routed->num_layers, routed->top_k, routed->id_bytes, prompt_tokens, tokens);
  }
  const auto size = static_cast<int64_t>(ids.size());
  if (size != tokens * routed->token_bytes()) {
    return InvalidInput("{} bytes of ids, but {} tokens of {} bytes", size, tokens,
                        routed->token_bytes());
  }
  const auto end_of_prompt = ids.begin() + prompt_tokens * routed->token_bytes();
  routed->prompt = std::make_shared<std::vector<uint8_t>>(ids.begin(), end_of_prompt);
  routed->rest.assign(end_of_prompt, ids.end());
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const RoutedExperts>> ReadRoutedExperts(const Value& value) {
  if (!value.IsObject()) return InvalidInput("expected an object");
  const ObjectReader object(value);
  auto routed = std::make_shared<RoutedExperts>();
  int64_t prompt_tokens = 0, tokens = 0;
  std::string text;
  RETURN_IF_ERROR(object.Int32("layers", &routed->num_layers));
  RETURN_IF_ERROR(object.Int32("top_k", &routed->top_k));
  RETURN_IF_ERROR(object.Int32("id_bytes", &routed->id_bytes));
  RETURN_IF_ERROR(object.Int("prompt_tokens", &prompt_tokens));
  RETURN_IF_ERROR(object.Int("tokens", &tokens));
  RETURN_IF_ERROR(object.Text("ids", &text));
  ASSIGN_OR_RETURN(const std::string ids, FromBase64(text));
  RETURN_IF_ERROR(TakeIds(ids, prompt_tokens, tokens, routed.get()));
  return routed;
}

absl::Status ReadSample(const Value& value, Episode* episode, EpisodeText* texts) {
  const ObjectReader object(value);
  Sample& sample = episode->samples.emplace_back();
  std::vector<SegmentText>& segment_texts = texts->emplace_back();
  RETURN_IF_ERROR(object.OneOf("finish_reason", kFinishReasons, &sample.finish_reason));
  if (const Value* recorded = object.Find("routed_experts"); recorded != nullptr) {
    auto routed = ReadRoutedExperts(*recorded);
    if (!routed.ok()) return Annotate(routed.status(), "routed_experts");
    sample.routed_experts = *std::move(routed);
  }
  return object.ForEach("segments", [&](const Value& segment) {
    return ReadSegment(segment, &sample, &segment_texts);
  });
}

absl::Status ReadMessage(const Value& value, std::vector<Message>* messages) {
  const ObjectReader object(value);
  Message& message = messages->emplace_back();
  RETURN_IF_ERROR(object.Text("role", &message.role));
  return object.Text("content", &message.content);
}

absl::Status ReadMessages(const ObjectReader& object, const char* name,
                          std::vector<Message>* messages) {
  return object.ForEach(name, [&](const Value& message) { return ReadMessage(message, messages); });
}

absl::Status ReadPrompt(const Value& value, Prompt* prompt) {
  const ObjectReader object(value);
  RETURN_IF_ERROR(object.Text("id", &prompt->id));
  RETURN_IF_ERROR(ReadMessages(object, "messages", &prompt->messages));
  RETURN_IF_ERROR(object.Text("text", &prompt->text));
  RETURN_IF_ERROR(object.Text("answer", &prompt->answer));
  RETURN_IF_ERROR(object.Text("solution", &prompt->solution));
  RETURN_IF_ERROR(ReadMessages(object, "solution_messages", &prompt->solution_messages));
  return object.ForEachPair("metadata", [&](const std::string& name, const Value& entry) {
    absl::StatusOr<std::string> text = JsonBytes(entry);
    if (text.ok()) prompt->metadata[name] = *std::move(text);
    return text.status();
  });
}

absl::Status ReadOutcome(const ObjectReader& object, Outcome* outcome) {
  static constexpr std::array<std::string_view, 2> kKinds = {"scored", "failed"};
  RETURN_IF_ERROR(object.OneOf("scoring", kKinds, &outcome->kind));
  RETURN_IF_ERROR(object.Double("score", &outcome->score));
  RETURN_IF_ERROR(object.Text("why", &outcome->why));
  return object.ForEachPair("parts", [&](const std::string& name, const Value& value) {
    const absl::StatusOr<double> score = JsonDouble(value);
    if (score.ok()) outcome->parts.emplace_back(name, *score);
    return score.status();
  });
}

absl::Status ReadEpisode(const ObjectReader& object, Episode* episode, EpisodeText* texts) {
  RETURN_IF_ERROR(object.Uint("episode_id", &episode->episode_id));
  RETURN_IF_ERROR(object.Uint("episode_group_id", &episode->group_id));
  RETURN_IF_ERROR(object.Int32("index_in_group", &episode->index_in_group));
  RETURN_IF_ERROR(object.Uint("seed", &episode->seed));
  RETURN_IF_ERROR(object.OneOf("status", kStatuses, &episode->status));
  RETURN_IF_ERROR(ReadOutcome(object, &episode->outcome));
  RETURN_IF_ERROR(object.Double("advantage", &episode->advantage));
  RETURN_IF_ERROR(object.Bool("trained", &episode->trained));
  RETURN_IF_ERROR(object.Int32("num_turns", &episode->num_turns));
  RETURN_IF_ERROR(object.Text("response_text", &episode->response_text));
  return object.ForEach("samples",
                        [&](const Value& sample) { return ReadSample(sample, episode, texts); });
}

absl::StatusOr<RecordedEpisode> ParseLine(std::string_view line) {
  ASSIGN_OR_RETURN(const rapidjson::Document document, ParseJsonLine(line));
  const ObjectReader object(document);
  RecordedEpisode recorded;
  RETURN_IF_ERROR(object.Int("step", &recorded.step));
  RETURN_IF_ERROR(object.Uint("group_id", &recorded.group_id));
  RETURN_IF_ERROR(object.Int("group_size", &recorded.group_size));
  if (recorded.group_size < 0) return InvalidInput("group_size is {}", recorded.group_size);
  ASSIGN_OR_RETURN(const Value* prompt, JsonMember(document, "prompt"));
  if (absl::Status status = ReadPrompt(*prompt, &recorded.prompt); !status.ok()) {
    return Annotate(status, "prompt");
  }
  if (recorded.group_size == 0) return recorded;
  RETURN_IF_ERROR(ReadEpisode(object, &recorded.episode, &recorded.text));
  return recorded;
}

absl::Status ForEachLine(const std::string& path,
                         const std::function<absl::Status(RecordedEpisode)>& use) {
  return ForEachCompressedLine(path, [&](int64_t, std::string_view line) -> absl::Status {
    ASSIGN_OR_RETURN(RecordedEpisode recorded, ParseLine(line));
    return use(std::move(recorded));
  });
}

// Collects lines into groups. A group is complete when as many lines came as its size says.
class GroupCollector {
 public:
  absl::Status Add(RecordedEpisode recorded) {
    if (missing_ == 0) {
      StartGroup(recorded);
    } else if (recorded.group_id != samples_.groups.back().group_id) {
      return MissingError();
    }
    if (recorded.group_size == 0) return absl::OkStatus();
    SharePrompt(&recorded.episode);
    samples_.groups.back().episodes.push_back(std::move(recorded.episode));
    samples_.texts.back().push_back(std::move(recorded.text));
    --missing_;
    return absl::OkStatus();
  }

  absl::StatusOr<StepSamples> Finish() {
    if (missing_ != 0) return MissingError();
    return std::move(samples_);
  }

 private:
  void StartGroup(const RecordedEpisode& recorded) {
    samples_.step = recorded.step;
    EpisodeGroup& group = samples_.groups.emplace_back();
    group.group_id = recorded.group_id;
    group.prompt = recorded.prompt;
    samples_.texts.emplace_back();
    missing_ = recorded.group_size;
  }
  // As while sampling, the prompt's experts lie in memory once a group.
  void SharePrompt(Episode* episode) const {
    const std::vector<Episode>& before = samples_.groups.back().episodes;
    if (before.empty() || before[0].samples.empty() || episode->samples.empty()) return;
    const auto &first = before[0].samples[0].routed_experts,
               &mine = episode->samples[0].routed_experts;
    if (first == nullptr || mine == nullptr || first->prompt == nullptr ||
        mine->prompt == nullptr || *first->prompt != *mine->prompt) {
      return;
    }
    auto shared = std::make_shared<RoutedExperts>(*mine);
    shared->prompt = first->prompt;
    episode->samples[0].routed_experts = std::move(shared);
  }

  absl::Status MissingError() const {
    return InvalidInput("group {} lacks {} of its episodes", samples_.groups.back().group_id,
                        missing_);
  }

  StepSamples samples_;
  int64_t missing_ = 0;  // episodes of the last group that have not come yet
};

}  // namespace

std::string_view AuthorName(Author author) { return kAuthors[static_cast<size_t>(author)]; }
std::string_view FinishReasonName(FinishReason reason) {
  return kFinishReasons[static_cast<size_t>(reason)];
}
std::string_view StatusName(EpisodeStatus status) { return kStatuses[static_cast<size_t>(status)]; }

absl::StatusOr<FinishReason> ParseFinishReason(std::string_view name) {
  return ParseEnum<FinishReason>(name, kFinishReasons);
}

absl::Status ForEachEpisode(const std::string& path,
                            const std::function<absl::Status(RecordedEpisode)>& use) {
  return ForEachLine(path, [&](RecordedEpisode recorded) {
    return recorded.group_size == 0 ? absl::OkStatus() : use(std::move(recorded));
  });
}

absl::StatusOr<StepSamples> ReadSamples(const std::string& path) {
  GroupCollector collector;
  RETURN_IF_ERROR(ForEachLine(
      path, [&](RecordedEpisode recorded) { return collector.Add(std::move(recorded)); }));
  absl::StatusOr<StepSamples> samples = collector.Finish();
  if (!samples.ok()) return Annotate(samples.status(), path);
  return samples;
}

}  // namespace orrery::run
