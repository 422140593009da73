// "program": a program of the user's own as a reward, in any language. It is started once a worker
// and reads one JSON object a line from stdin, answering each with one line on stdout:
//
//   {"id": 7, "prompt": {"id": .., "text": .., "messages": [{"role": .., "content": ..}], "answer":
//   ..,
//    "metadata": {..}}, "response": "..", "truncated": false, "num_tokens": 123}
//   {"score": 0.5, "why": "two of four tests", "id": 7}      why and id may be left out
//   {"failed": "the database does not answer"}               no verdict
//
// Answers must be flushed. A program that writes lines of its own should echo the id, which is then
// checked. Anything else, an end, or no answer in time kills it (the whole process group), fails
// that one sample with its last words on stderr in the reason, and starts it anew for the next.
//
// Parameters: command (split into words, no shell; "sh -c '...'" for one); workers (1), so many
// samples at a time, each in a process of its own; timeout_s (10) a sample; start_timeout_s (60),
// added for the first sample after a start.
//
// Threads: each worker is a thread that owns its process (see line_process.h why the thread must
// last).
#include <rapidjson/document.h>
#include <rapidjson/stringbuffer.h>
#include <rapidjson/writer.h>
#include <signal.h>

#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "orchestrator/base/status.h"
#include "rewards/command_line.h"
#include "rewards/factories.h"
#include "rewards/line_process.h"
#include "rewards/text.h"

namespace orrery::rewards {
namespace {

using Clock = LineProcess::Clock;
using Writer = rapidjson::Writer<rapidjson::StringBuffer>;

void WriteString(Writer* writer, std::string_view key, std::string_view value) {
  const std::string valid = ValidUtf8(value);
  writer->Key(key.data(), static_cast<rapidjson::SizeType>(key.size()));
  writer->String(valid.data(), static_cast<rapidjson::SizeType>(valid.size()));
}

void WritePrompt(Writer* writer, const Prompt& prompt) {
  writer->Key("prompt");
  writer->StartObject();
  WriteString(writer, "id", prompt.id);
  WriteString(writer, "text", prompt.text);
  writer->Key("messages");
  writer->StartArray();
  for (const auto& message : prompt.messages) {
    writer->StartObject();
    WriteString(writer, "role", message.role);
    WriteString(writer, "content", message.content);
    writer->EndObject();
  }
  writer->EndArray();
  WriteString(writer, "answer", prompt.answer);
  writer->Key("metadata");
  writer->StartObject();
  for (const auto& [key, value] : prompt.metadata) WriteString(writer, ValidUtf8(key), value);
  writer->EndObject();
  writer->EndObject();
}

std::string RequestLine(const RewardInput& input, uint64_t id) {
  rapidjson::StringBuffer buffer;
  Writer writer(buffer);
  writer.StartObject();
  writer.Key("id");
  writer.Uint64(id);
  WritePrompt(&writer, input.prompt);
  WriteString(&writer, "response", input.response);
  writer.Key("truncated");
  writer.Bool(input.truncated);
  writer.Key("num_tokens");
  writer.Int64(input.num_tokens);
  writer.EndObject();
  return {buffer.GetString(), buffer.GetSize()};
}

absl::StatusOr<Outcome> ParseReply(const std::string& line, uint64_t id) {
  rapidjson::Document reply;
  // Iterative: a line of a million brackets must not exhaust the stack.
  reply.Parse<rapidjson::kParseIterativeFlag>(line.data(), line.size());
  if (reply.HasParseError() || !reply.IsObject()) {
    return InvalidInput("answered '{}', which is not a JSON object", Shorten(line));
  }
  const auto echoed = reply.FindMember("id");
  if (echoed != reply.MemberEnd() &&
      (!echoed->value.IsUint64() || echoed->value.GetUint64() != id)) {
    return InvalidInput("answered '{}' to the request with id {}", Shorten(line), id);
  }
  const auto failed = reply.FindMember("failed");
  if (failed != reply.MemberEnd() && failed->value.IsString()) {
    return Outcome::Failed("program: " + Shorten(failed->value.GetString()));
  }
  const auto score = reply.FindMember("score");
  if (score == reply.MemberEnd() || !score->value.IsNumber() ||
      !std::isfinite(score->value.GetDouble())) {
    return InvalidInput("answered '{}', where score must be a finite number", Shorten(line));
  }
  const auto why = reply.FindMember("why");
  const bool has_why = why != reply.MemberEnd() && why->value.IsString();
  return Outcome::Scored(score->value.GetDouble(), has_why ? why->value.GetString() : "");
}

struct Settings {
  std::vector<std::string> argv;
  std::chrono::milliseconds timeout{0};
  std::chrono::milliseconds start_timeout{0};
};

// One worker's process and the exchange with it. One thread.
class Worker {
 public:
  explicit Worker(const Settings& settings) : settings_(settings) {}

  Outcome Grade(const std::string& request, uint64_t id) {
    if (process_ && !process_->Ready()) process_.reset();  // died or spoke unasked: nobody's sample
    const bool reused = process_ != nullptr;
    Outcome outcome;
    if (TryGrade(request, id, &outcome)) return outcome;
    // A program that answers one line and ends well may have been ending when it got this one.
    const bool again = reused && process_ && process_->ended_cleanly();
    process_.reset();
    if (again && !TryGrade(request, id, &outcome)) process_.reset();
    return outcome;
  }

 private:
  // False: failed, and the process is out of step.
  bool TryGrade(const std::string& request, uint64_t id, Outcome* outcome) {
    Clock::time_point deadline = Clock::now() + settings_.timeout;
    if (!process_) {
      absl::StatusOr<std::unique_ptr<LineProcess>> started = LineProcess::Start(settings_.argv);
      if (!started.ok()) {
        *outcome = Outcome::Failed("program: " + StatusText(started.status()));
        return false;
      }
      process_ = *std::move(started);
      deadline += settings_.start_timeout;
    }
    absl::StatusOr<std::string> reply = process_->Ask(request, deadline);
    absl::StatusOr<Outcome> parsed = reply.ok() ? ParseReply(*reply, id) : reply.status();
    *outcome = parsed.ok() ? *std::move(parsed)
                           : Outcome::Failed(fmt::format("program '{}' {}", settings_.argv[0],
                                                         Explain(parsed.status())));
    return parsed.ok();
  }

  std::string Explain(const absl::Status& error) {
    std::string text = absl::IsDeadlineExceeded(error)
                           ? fmt::format("did not answer within {} s",
                                         static_cast<double>(settings_.timeout.count()) / 1000)
                           : StatusText(error);
    const std::string words = process_->LastWords();
    if (!words.empty()) text.append("; its last words: ").append(ValidUtf8(words));
    return text;
  }

  const Settings& settings_;
  std::unique_ptr<LineProcess> process_;
};

class Program : public Reward {
 public:
  Program(Settings settings, int num_workers) : settings_(std::move(settings)) {
    for (int i = 0; i < num_workers; ++i) threads_.emplace_back([this] { Serve(); });
  }

  // REQUIRES: no Grade() is running.
  ~Program() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  Outcome Grade(const RewardInput& input) const override {
    Task task;
    std::unique_lock lock(mutex_);
    task.id = next_id_++;
    lock.unlock();
    task.request = RequestLine(input, task.id);
    lock.lock();
    queue_.push_back(&task);
    changed_.notify_one();
    task.finished.wait(lock, [&] { return task.done; });
    return std::move(task.outcome);
  }

 private:
  struct Task {
    uint64_t id = 0;
    std::string request;
    Outcome outcome;
    bool done = false;
    std::condition_variable finished;
  };

  void Serve() const {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals are for the main thread
    Worker worker(settings_);
    while (Task* task = Next()) {
      Outcome outcome = worker.Grade(task->request, task->id);
      const std::lock_guard lock(mutex_);
      task->outcome = std::move(outcome);
      task->done = true;
      task->finished.notify_one();  // under the lock: the waiter owns the task and may go at once
    }
  }

  Task* Next() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return nullptr;
    Task* task = queue_.front();
    queue_.pop_front();
    return task;
  }

  const Settings settings_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable std::deque<Task*> queue_;  // guarded by mutex_, as all below
  mutable uint64_t next_id_ = 1;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

}  // namespace

std::unique_ptr<Reward> MakeProgram(Parameters* parameters) {
  constexpr double kLongest = 86400;
  Settings settings;
  const std::string command = parameters->Required("command");
  const int64_t workers = parameters->Integer("workers", 1, 1, 256);
  settings.timeout = Milliseconds(parameters->Number("timeout_s", 10, 0.001, kLongest));
  settings.start_timeout = Milliseconds(parameters->Number("start_timeout_s", 60, 0, kLongest));
  if (!parameters->status().ok()) return nullptr;
  absl::StatusOr<std::vector<std::string>> argv = SplitCommand(command);
  const absl::StatusOr<std::string> found =
      argv.ok() ? FindExecutable(argv->front()) : absl::StatusOr<std::string>(argv.status());
  if (!found.ok()) {
    parameters->Fail(InvalidInput("reward 'program': {}", StatusText(found.status())));
    return nullptr;
  }
  settings.argv = *std::move(argv);
  return std::make_unique<Program>(std::move(settings), static_cast<int>(workers));
}

}  // namespace orrery::rewards
