#include "orchestrator/run/events.h"

#include <regex>
#include <thread>

#include "orchestrator/run/json_text.h"
#include "orchestrator/run/trace.h"
#include "tests/orchestrator/run/run_testing.h"

namespace orrery::run {
namespace {

using testing::HasSubstr;

TEST(Journal, WritesAndReads) {
  const TempFolder folder;
  const std::string path = folder / "events.jsonl";
  ASSERT_OK_AND_ASSIGN(const auto journal, Journal::Open(path));
  ASSERT_OK(journal->Write("start", "one \"quoted\"\nline \xff", {{"seed", "1"}, {"a", "b"}}));
  ASSERT_OK(journal->WriteForStep(7, "checkpoint", "step-7"));
  ASSERT_OK(journal->Sync());
  ASSERT_OK_AND_ASSIGN(const std::vector<Event> events, ReadEvents(path));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, "start");
  EXPECT_EQ(events[0].text, "one \"quoted\"\nline \xef\xbf\xbd");
  EXPECT_EQ(events[0].step, std::nullopt);
  EXPECT_EQ(events[0].fields, (EventFields{{"seed", "1"}, {"a", "b"}}));
  EXPECT_EQ(events[1].step, 7);
  EXPECT_TRUE(
      std::regex_match(events[1].time, std::regex(R"(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d\d\dZ)")))
      << events[1].time;
}

TEST(Journal, ErrorsNameTheLine) {
  const TempFolder folder;
  Put(folder / "e", "{\"time\":\"t\",\"kind\":\"k\",\"text\":\"x\"}\n{\"time\":\"t\"}\n");
  EXPECT_THAT(StatusText(ReadEvents(folder / "e").status()),
              HasSubstr("line 2: 'kind' is missing"));
  Put(folder / "e", "{\"time\":\"t\",\"kind\":\"k\",\"text\":\"x\",\"fields\":[]}\n");
  EXPECT_FALSE(ReadEvents(folder / "e").ok());
}

TEST(Journal, ManyThreads) {
  const TempFolder folder;
  ASSERT_OK_AND_ASSIGN(const auto journal, Journal::Open(folder / "e"));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) journal->Write("k", std::string(300, 'x')).IgnoreError();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ReadEvents(folder / "e").value().size(), 800u);
}

size_t CountEvents(std::string trace) {
  if (trace.empty() || trace.back() != ']') trace += ']';  // optional by the format's document
  const absl::StatusOr<rapidjson::Document> document = ParseJsonLine(trace);
  EXPECT_TRUE(document.ok()) << StatusText(document.status()) << trace;
  return document.ok() ? document->Size() : 0;
}

TEST(Trace, IsJsonAndContinuesAfterATornEnd) {
  const TempFolder folder;
  const std::string path = folder / "trace.json";
  {
    ASSERT_OK_AND_ASSIGN(const auto trace, TraceWriter::Open(path));
    trace->NameTrack(0, "loop");
    { const TraceSpan span(trace.get(), "rollout", "step"); }
    ASSERT_OK(trace->Flush());
    EXPECT_EQ(CountEvents(Get(path)), 3u);  // its name, its place, the span
  }
  EXPECT_EQ(Get(path).back(), ']') << "whole by itself once it is closed";
  std::ofstream(path, std::ios::app) << ",\n{\"ph\":\"X\",\"na";
  {
    ASSERT_OK_AND_ASSIGN(const auto trace, TraceWriter::Open(path));
    trace->Complete("train \"x\"", "step", 10, 5, 4, 17);
    trace->NameProcess("a \"run\"");
  }
  EXPECT_EQ(CountEvents(Get(path)), 5u);
  EXPECT_THAT(Get(path), HasSubstr("\"ts\":10,\"dur\":5"));
  EXPECT_THAT(Get(path), HasSubstr("\"tid\":4,\"args\":{\"step\":17}}"));
  EXPECT_THAT(Get(path), HasSubstr("\"name\":\"a \\\"run\\\"\""));
  for (const char* junk : {"", "junk", "[", "{}"}) {
    Put(path, junk);
    ASSERT_OK_AND_ASSIGN(const auto trace, TraceWriter::Open(path));
    trace->Complete("a", "b", 1, 2);
    ASSERT_OK(trace->Flush());
    EXPECT_EQ(CountEvents(Get(path)), 1u) << junk;
  }
  const TraceSpan nothing(nullptr, "a", "b");
}

}  // namespace
}  // namespace orrery::run
