#include "orchestrator/run/samples.h"

#include <zstd.h>

#include <bit>
#include <cmath>
#include <limits>

#include "orchestrator/run/compressed_lines.h"
#include "orchestrator/run/json_text.h"
#include "orchestrator/run/run_directory.h"
#include "tests/orchestrator/run/run_testing.h"

namespace orrery::run {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// Compares by bits, so that -0 and 0 differ and NaN equals itself.
template <typename T>
auto Bits(const std::vector<T>& values) {
  std::vector<uint64_t> bits;
  for (const T value : values) {
    bits.push_back(std::bit_cast<uint64_t>(static_cast<double>(value)));
  }
  return bits;
}

void ExpectSame(const Segment& a, const Segment& b) {
  EXPECT_EQ(a.author, b.author);
  EXPECT_EQ(a.token_ids, b.token_ids);
  EXPECT_EQ(Bits(a.logprobs), Bits(b.logprobs));
  EXPECT_EQ(a.versions, b.versions);
  ASSERT_EQ(a.top_logprobs.size(), b.top_logprobs.size());
  for (size_t i = 0; i < a.top_logprobs.size(); ++i) {
    EXPECT_EQ(a.top_logprobs[i].token_id, b.top_logprobs[i].token_id);
    EXPECT_EQ(Bits(std::vector{a.top_logprobs[i].logprob}),
              Bits(std::vector{b.top_logprobs[i].logprob}));
  }
}

void ExpectSame(const std::shared_ptr<const RoutedExperts>& a,
                const std::shared_ptr<const RoutedExperts>& b) {
  ASSERT_EQ(a == nullptr, b == nullptr);
  if (a == nullptr) return;
  EXPECT_EQ(a->num_layers, b->num_layers);
  EXPECT_EQ(a->top_k, b->top_k);
  EXPECT_EQ(a->id_bytes, b->id_bytes);
  EXPECT_EQ(*a->prompt, *b->prompt);
  EXPECT_EQ(a->rest, b->rest);
}

void ExpectSame(const Episode& a, const Episode& b) {
  EXPECT_EQ(a.episode_id, b.episode_id);
  EXPECT_EQ(a.group_id, b.group_id);
  EXPECT_EQ(a.index_in_group, b.index_in_group);
  EXPECT_EQ(a.seed, b.seed);
  EXPECT_EQ(a.response_text, b.response_text);
  EXPECT_EQ(a.num_turns, b.num_turns);
  EXPECT_EQ(a.trained, b.trained);
  EXPECT_EQ(a.status, b.status);
  EXPECT_EQ(a.outcome.kind, b.outcome.kind);
  EXPECT_EQ(Bits(std::vector{a.outcome.score, a.advantage}),
            Bits(std::vector{b.outcome.score, b.advantage}));
  EXPECT_EQ(a.outcome.why, b.outcome.why);
  EXPECT_EQ(a.outcome.parts, b.outcome.parts);
  ASSERT_EQ(a.samples.size(), b.samples.size());
  for (size_t s = 0; s < a.samples.size(); ++s) {
    EXPECT_EQ(a.samples[s].finish_reason, b.samples[s].finish_reason);
    ExpectSame(a.samples[s].routed_experts, b.samples[s].routed_experts);
    ASSERT_EQ(a.samples[s].segments.size(), b.samples[s].segments.size());
    for (size_t i = 0; i < a.samples[s].segments.size(); ++i) {
      ExpectSame(a.samples[s].segments[i], b.samples[s].segments[i]);
    }
  }
}

void ExpectSame(const std::vector<Message>& a, const std::vector<Message>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].role, b[i].role);
    EXPECT_EQ(a[i].content, b[i].content);
  }
}

void ExpectSame(const EpisodeGroup& a, const EpisodeGroup& b) {
  EXPECT_EQ(a.group_id, b.group_id);
  EXPECT_EQ(a.prompt.id, b.prompt.id);
  EXPECT_EQ(a.prompt.text, b.prompt.text);
  EXPECT_EQ(a.prompt.answer, b.prompt.answer);
  EXPECT_EQ(a.prompt.solution, b.prompt.solution);
  EXPECT_EQ(a.prompt.metadata, b.prompt.metadata);
  ExpectSame(a.prompt.messages, b.prompt.messages);
  ExpectSame(a.prompt.solution_messages, b.prompt.solution_messages);
  ASSERT_EQ(a.episodes.size(), b.episodes.size());
  for (size_t i = 0; i < a.episodes.size(); ++i) ExpectSame(a.episodes[i], b.episodes[i]);
}

// Whatever the types can hold and a broken or hostile run could put there.
std::vector<EpisodeGroup> StrangeGroups() {
  std::vector<EpisodeGroup> groups = RandomGroups(9);
  groups[0].prompt.text = "broken \xff\xfe bytes";
  groups[0].prompt.solution = std::string("nul\0inside", 10);
  groups[0].prompt.solution_messages = {{"assistant", "<calc>3+4</calc>"}, {"tool", "7\xff"}};
  groups[0].episodes[0].trained = false;
  groups[1].episodes.clear();
  Episode& episode = groups[2].episodes[0];
  episode.seed = std::numeric_limits<uint64_t>::max();
  episode.episode_id = uint64_t{1} << 63;
  episode.samples[0].segments[1].logprobs[0] = -std::numeric_limits<float>::infinity();
  episode.samples[0].segments[1].token_ids[0] = std::numeric_limits<int32_t>::min();
  episode.outcome = Outcome::Failed("the grader died: \xc3");
  episode.status = EpisodeStatus::kFailed;
  episode.outcome.score = std::nan("");
  episode.advantage = -0.0;
  groups[2].episodes[1].samples.clear();
  groups[2].episodes[1].status = EpisodeStatus::kAborted;
  groups[2].episodes[2].samples.push_back(Sample{});
  groups[2].episodes[2].samples.back().finish_reason = FinishReason::kRejected;
  groups[2].episodes[3].samples[0].segments[0].token_ids.clear();
  groups[2].episodes[3].group_id = 77;
  Segment& policy = groups[0].episodes[1].samples[0].segments[1];
  for (size_t i = 0; i < 2 * policy.token_ids.size(); ++i) {
    policy.top_logprobs.push_back({static_cast<int32_t>(i % 7), -0.3f * static_cast<float>(i)});
  }
  policy.top_logprobs[1].logprob = -std::numeric_limits<float>::infinity();
  // Two episodes of one prompt, of a model with so many experts that ids take two bytes.
  const auto prompt = std::make_shared<std::vector<uint8_t>>();
  for (int i = 0; i < 5 * 12; ++i) prompt->push_back(static_cast<uint8_t>(i * 37));
  for (size_t i = 0; i < 2; ++i) {
    auto routed = std::make_shared<RoutedExperts>();
    routed->num_layers = 3;
    routed->top_k = 2;
    routed->id_bytes = 2;
    routed->prompt = prompt;
    routed->rest.assign(12 * (i + 1), static_cast<uint8_t>(255 - i));
    groups[0].episodes[i].samples[0].routed_experts = routed;
  }
  groups[2].episodes[3].outcome.parts = {{"same", 1}, {"same", 2}};
  return groups;
}

TEST(Samples, ComeBackBitForBit) {
  const TempFolder folder;
  fs::create_directories(folder / "samples");
  const std::vector<EpisodeGroup> groups = StrangeGroups();
  ASSERT_OK(WriteSamples(folder.path(), 12, groups, TestPieces));
  ASSERT_OK_AND_ASSIGN(const StepSamples back, ReadSamples(folder / "samples/step-12.jsonl.zst"));
  EXPECT_EQ(back.step, 12);
  ASSERT_EQ(back.groups.size(), groups.size());
  for (size_t i = 0; i < groups.size(); ++i) ExpectSame(groups[i], back.groups[i]);
  const Segment& policy = groups[0].episodes[1].samples[0].segments[1];
  EXPECT_EQ(back.texts[0][1][0][1].top_pieces.size(), 2 * policy.token_ids.size());
  const auto routed = [&](size_t i) {
    return back.groups[0].episodes[i].samples[0].routed_experts;
  };
  EXPECT_EQ(routed(0)->prompt, routed(1)->prompt) << "one memory";
  // Written again, the bytes are the same.
  EXPECT_EQ(EncodeSamples(12, back.groups, TestPieces), Get(folder / "samples/step-12.jsonl.zst"));
}

TEST(Samples, TextsComeBackByPieces) {
  const TempFolder folder;
  fs::create_directories(folder / "samples");
  const std::vector<EpisodeGroup> groups = RandomGroups(4);
  ASSERT_OK(WriteSamples(folder.path(), 1, groups, TestPieces));
  ASSERT_OK_AND_ASSIGN(const StepSamples back, ReadSamples(folder / "samples/step-1.jsonl.zst"));
  const Segment& segment = groups[1].episodes[1].samples[0].segments[4];
  const SegmentText& text = back.texts[1][1][0][4];
  size_t begin = 0;
  const std::vector<std::string> pieces = TestPieces(segment.token_ids);
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(text.text.substr(begin, static_cast<size_t>(text.piece_bytes[i])), pieces[i]);
    begin += pieces[i].size();
  }
}

TEST(Samples, ManyGroupsKeepTheirOrder) {
  const TempFolder folder;
  const std::vector<EpisodeGroup> groups = RandomGroups(5, 67, 3);
  const std::string encoded = EncodeSamples(7, groups, TestPieces);
  EXPECT_EQ(EncodeSamples(7, groups, TestPieces), encoded);
  Put(folder / "s", encoded);
  ASSERT_OK_AND_ASSIGN(const StepSamples back, ReadSamples(folder / "s"));
  ASSERT_EQ(back.groups.size(), groups.size());
  for (size_t i = 0; i < groups.size(); ++i) ExpectSame(groups[i], back.groups[i]);
}

TEST(Samples, OneBitShows) {
  const std::vector<EpisodeGroup> groups = RandomGroups(4);
  std::vector<EpisodeGroup> changed = groups;
  float& logprob = changed[0].episodes[0].samples[0].segments[1].logprobs[0];
  logprob = std::nextafter(logprob, 0.0f);
  EXPECT_EQ(EncodeSamples(1, groups, TestPieces), EncodeSamples(1, groups, TestPieces));
  EXPECT_NE(EncodeSamples(1, groups, TestPieces), EncodeSamples(1, changed, TestPieces));
}

TEST(Samples, LinesAreJsonForEveryReader) {
  const TempFolder folder;
  Put(folder / "s", EncodeSamples(1, StrangeGroups(), TestPieces));
  int64_t lines = 0;
  ASSERT_OK(ForEachCompressedLine(folder / "s", [&](int64_t number, std::string_view line) {
    lines = number;
    return ParseJsonLine(line).status();  // checks the UTF-8 too
  }));
  EXPECT_EQ(lines, 5 + 1 + 5);
}

TEST(Samples, DamageIsAnError) {
  const TempFolder folder;
  const std::string path = folder / "s";
  const std::string good = EncodeSamples(1, RandomGroups(4, 20, 8), TestPieces);
  RandomStream random(11);
  for (int i = 0; i < 300; ++i) {
    std::string bad = good;
    if (i % 2 == 0) {
      bad.resize(random.Below(good.size()));
    } else {
      bad[random.Below(good.size())] ^= static_cast<char>(1 << random.Below(8));
    }
    Put(path, bad);
    const auto samples = ReadSamples(path);
    if (bad.empty()) continue;  // an empty file is a file of no lines
    // Flipping an unused header bit may be harmless; then the content must be untouched.
    if (samples.ok()) {
      EXPECT_EQ(EncodeSamples(1, samples->groups, TestPieces), good);
    } else {
      EXPECT_THAT(StatusText(samples.status()), HasSubstr(path));
    }
  }
  EXPECT_FALSE(ReadSamples(folder / "none").ok());
  EXPECT_FALSE(ReadSamples(folder.path()).ok());
}

std::string OneLine() {
  const TempFolder folder;
  Put(folder / "s", EncodeSamples(1, RandomGroups(4, 1, 1), TestPieces));
  std::string text;
  EXPECT_TRUE(ForEachCompressedLine(folder / "s", [&](int64_t, std::string_view line) {
                text = line;
                return absl::OkStatus();
              }).ok());
  return text;
}

absl::Status ReadLine(const std::string& line) {
  const TempFolder folder;
  LineCompressor compressor;
  compressor.Add(line);
  Put(folder / "s", compressor.Finish());
  return ReadSamples(folder / "s").status();
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Samples, ErrorsNameLineAndPlace) {
  const std::string line = OneLine();
  ASSERT_OK(ReadLine(line));
  const auto error = [&](const std::string& from, const std::string& to) {
    return StatusText(ReadLine(Replaced(line, from, to)));
  };
  EXPECT_THAT(error("\"author\":\"policy\"", "\"author\":\"robot\""),
              HasSubstr("line 1: samples[0]: segments[1]: author: 'robot' is none of prompt"));
  EXPECT_THAT(error("\"group_size\":1", "\"group_size\":2"), HasSubstr("lacks 1 of its episodes"));
  EXPECT_THAT(error("\"group_size\":1", "\"group_size\":-1"), HasSubstr("group_size is -1"));
  EXPECT_THAT(error("\"versions\":[[", "\"versions\":[[9,1],["), HasSubstr("log-probs"));
  EXPECT_THAT(error("\"versions\":[[5,", "\"versions\":[[5,99999999999],[5,"),
              HasSubstr("cannot be"));
  EXPECT_THAT(error("\"piece_bytes\":[", "\"piece_bytes\":[1,"), HasSubstr("pieces"));
  EXPECT_THAT(error("\"token_ids\":[", "\"token_ids\":[4294967296,"), HasSubstr("too large"));
  EXPECT_THAT(error("\"prompt\":{", "\"prompt\":3,\"p\":{"), HasSubstr("prompt: "));
  EXPECT_THAT(error("\"seed\":", "\"seed\":-"), HasSubstr("seed: "));
  EXPECT_THAT(error("\"status\"", "\"state\""), HasSubstr("'status' is missing"));
}

TEST(Samples, RoutedExpertsThatDoNotFitAreErrors) {
  const std::string line = Replaced(OneLine(), R"("finish_reason")",
                                    R"("routed_experts":{"layers":2,"top_k":1,"id_bytes":1,)"
                                    R"("prompt_tokens":1,"tokens":3,"ids":"AQIDBAUG"},)"
                                    R"("finish_reason")");
  ASSERT_OK(ReadLine(line));
  const auto error = [&](const std::string& from, const std::string& to) {
    return StatusText(ReadLine(Replaced(line, from, to)));
  };
  EXPECT_THAT(error("\"layers\":2", "\"layers\":3"),
              HasSubstr("routed_experts: 6 bytes of ids, but 3 tokens of 3 bytes"));
  EXPECT_THAT(error("\"layers\":2", "\"layers\":0"), HasSubstr("cannot be"));
  EXPECT_THAT(error("\"layers\":2", "\"layers\":2000000000"), HasSubstr("cannot be"));
  EXPECT_THAT(error("\"id_bytes\":1", "\"id_bytes\":4"), HasSubstr("cannot be"));
  EXPECT_THAT(error("\"prompt_tokens\":1", "\"prompt_tokens\":4"), HasSubstr("cannot be"));
  EXPECT_THAT(error("\"prompt_tokens\":1", "\"prompt_tokens\":-1"), HasSubstr("cannot be"));
  EXPECT_THAT(error("\"tokens\":3", "\"tokens\":9000000000000000000"), HasSubstr("cannot be"));
  EXPECT_THAT(error("AQIDBAUG", "AQ!DBAUG"), HasSubstr("routed_experts"));
  EXPECT_THAT(error("\"routed_experts\":{", "\"routed_experts\":7,\"x\":{"),
              HasSubstr("expected an object"));
}

TEST(Samples, TopLogprobsThatDoNotFitAreErrors) {
  const std::string line = OneLine();
  const auto with = [&](const std::string& top) {
    const std::string from = "\"author\":\"policy\"";
    return StatusText(ReadLine(Replaced(line, from, from + ",\"top_logprobs\":" + top)));
  };
  EXPECT_THAT(with(R"({"n":1,"token_ids":[1],"logprobs":[-1],"pieces":["a"]})"),
              HasSubstr("top_logprobs: 1 of "));
  EXPECT_THAT(with(R"({"n":0,"token_ids":[],"logprobs":[],"pieces":[]})"),
              HasSubstr("top_logprobs: 0 of "));
  EXPECT_THAT(with(R"({"n":1,"token_ids":[1],"logprobs":[-1]})"), HasSubstr("'pieces' is missing"));
  EXPECT_THAT(with("3"), HasSubstr("expected an object"));
}

TEST(Samples, ForEachEpisodeStopsAtTheFirstError) {
  const TempFolder folder;
  Put(folder / "s", EncodeSamples(1, RandomGroups(4, 2, 3), TestPieces));
  int seen = 0;
  const absl::Status status = ForEachEpisode(folder / "s", [&](const RecordedEpisode& recorded) {
    EXPECT_EQ(recorded.group_size, 3);
    return ++seen == 4 ? absl::CancelledError("enough") : absl::OkStatus();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(seen, 4);
}

}  // namespace
}  // namespace orrery::run
