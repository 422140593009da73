#include "orchestrator/run/events.h"

#include <ctime>

#include "orchestrator/base/status.h"
#include "orchestrator/run/json_text.h"

namespace orrery::run {
namespace {

std::string ToLine(const Event& event) {
  std::string line = "{\"time\":";
  AppendJsonString(&line, event.time);
  if (event.step) {
    line += ",\"step\":";
    AppendJsonNumber(&line, *event.step);
  }
  line += ",\"kind\":";
  AppendJsonString(&line, event.kind);
  line += ",\"text\":";
  AppendJsonString(&line, event.text);
  if (!event.fields.empty()) {
    line += ",\"fields\":{";
    for (const auto& [name, value] : event.fields) {
      if (line.back() != '{') line += ',';
      AppendJsonString(&line, name);
      line += ':';
      AppendJsonString(&line, value);
    }
    line += '}';
  }
  return line + '}';
}

absl::StatusOr<std::string> Text(const rapidjson::Value& object, const char* name) {
  ASSIGN_OR_RETURN(const rapidjson::Value* member, JsonMember(object, name));
  return JsonBytes(*member);
}

absl::StatusOr<Event> ParseEvent(std::string_view line) {
  ASSIGN_OR_RETURN(const rapidjson::Document document, ParseJsonLine(line));
  Event event;
  ASSIGN_OR_RETURN(event.time, Text(document, "time"));
  ASSIGN_OR_RETURN(event.kind, Text(document, "kind"));
  ASSIGN_OR_RETURN(event.text, Text(document, "text"));
  if (const auto step = document.FindMember("step"); step != document.MemberEnd()) {
    ASSIGN_OR_RETURN(event.step, JsonInt(step->value));
  }
  const auto fields = document.FindMember("fields");
  if (fields == document.MemberEnd()) return event;
  if (!fields->value.IsObject()) return InvalidInput("'fields' is not an object");
  for (const auto& field : fields->value.GetObject()) {
    ASSIGN_OR_RETURN(std::string value, JsonBytes(field.value));
    event.fields.emplace_back(std::string(field.name.GetString(), field.name.GetStringLength()),
                              std::move(value));
  }
  return event;
}

}  // namespace

std::string UtcNow() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  std::tm parts{};
  ::gmtime_r(&now.tv_sec, &parts);
  char buffer[40];
  const size_t size = std::strftime(buffer, sizeof buffer, "%Y-%m-%dT%H:%M:%S", &parts);
  return fmt::format("{}.{:03}Z", std::string_view(buffer, size), now.tv_nsec / 1'000'000);
}

absl::StatusOr<std::unique_ptr<Journal>> Journal::Open(const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<LineFile> file, LineFile::Open(path));
  return std::unique_ptr<Journal>(new Journal(std::move(file)));
}

absl::Status Journal::Append(const Event& event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return file_->Append(ToLine(event));
}

absl::Status Journal::Write(std::string_view kind, std::string_view text,
                            const EventFields& fields) {
  return Append({UtcNow(), std::nullopt, std::string(kind), std::string(text), fields});
}

absl::Status Journal::WriteForStep(int64_t step, std::string_view kind, std::string_view text,
                                   const EventFields& fields) {
  return Append({UtcNow(), step, std::string(kind), std::string(text), fields});
}

absl::Status Journal::Sync() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return file_->Sync();
}

absl::StatusOr<std::vector<Event>> ReadEvents(const std::string& path) {
  ASSIGN_OR_RETURN(const std::vector<std::string> lines, ReadLines(path));
  std::vector<Event> events;
  for (size_t i = 0; i < lines.size(); ++i) {
    absl::StatusOr<Event> event = ParseEvent(lines[i]);
    if (!event.ok()) return Annotate(event.status(), fmt::format("{} line {}", path, i + 1));
    events.push_back(*std::move(event));
  }
  return events;
}

absl::Status KeepEventsUpTo(const std::string& path, int64_t step) {
  return KeepLines(path, [step](std::string_view line) -> absl::StatusOr<bool> {
    ASSIGN_OR_RETURN(const Event event, ParseEvent(line));
    return !event.step || *event.step <= step;
  });
}

}  // namespace orrery::run
