// Episodes on an engine that says what the test wrote down.
#include "rollout/episodes/runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>

#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"
#include "tests/fakes/scripted_engine.h"

namespace orrery::rollout {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kStop = 487;  // <|im_end|> of the checkpoint below

class RunnerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto codec = CheckpointCodec::Load(
        std::string(ORRERY_SOURCE_DIR) + "/examples/story_math_tool/start", {});
    ASSERT_TRUE(codec.ok()) << codec.status();
    codec_ = *std::move(codec);
  }

  RunnerOptions Options(int64_t max_turns) const {
    RunnerOptions options;
    options.max_turns = max_turns;
    options.sampling.max_new_tokens = 50;
    options.sampling.stop_token_ids = {kStop};
    return options;
  }

  // A response of these words, ended by the stop token unless `reason` says otherwise.
  Generation Say(const std::string& words, FinishReason reason = FinishReason::kStop) const {
    Generation g;
    g.token_ids = codec_->Encode(words);
    if (reason == FinishReason::kStop) g.token_ids.push_back(kStop);
    for (size_t i = 0; i < g.token_ids.size(); ++i) {
      g.logprobs.push_back(-0.25f * static_cast<float>(i + 1));
      g.versions.push_back(3);
    }
    g.finish_reason = reason;
    return g;
  }

  static std::vector<EpisodeGroup> Groups(size_t count, size_t members) {
    std::vector<EpisodeGroup> groups(count);
    uint64_t next = 0;
    for (size_t g = 0; g < count; ++g) {
      groups[g].group_id = 10 + g;
      groups[g].prompt.messages = {{"user", "Tom has " + std::to_string(g) + " pens."}};
      for (size_t i = 0; i < members; ++i) {
        Episode episode;
        episode.episode_id = next++;
        episode.group_id = groups[g].group_id;
        episode.index_in_group = static_cast<int32_t>(i);
        episode.seed = HashSeed({7, episode.episode_id});
        groups[g].episodes.push_back(std::move(episode));
      }
    }
    return groups;
  }

  std::vector<EpisodeGroup> Run(fakes::ScriptedEngine* engine, const RunnerOptions& options,
                                std::vector<EpisodeGroup> groups,
                                const std::string& environment = "calculator") const {
    Runner runner(engine, codec_.get(), *MakeEnvironment(environment), options);
    const absl::Status status = runner.Run(&groups);
    EXPECT_TRUE(status.ok()) << status;
    return groups;
  }

  std::vector<int32_t> PromptIds(const EpisodeGroup& group) const {
    return *codec_->EncodePrompt(group.prompt);
  }

  std::unique_ptr<CheckpointCodec> codec_;
};

std::vector<int32_t> AllIds(const Sample& sample) {
  std::vector<int32_t> ids;
  for (const Segment& s : sample.segments) {
    ids.insert(ids.end(), s.token_ids.begin(), s.token_ids.end());
  }
  return ids;
}

std::vector<Author> Authors(const Sample& sample) {
  std::vector<Author> authors;
  for (const Segment& s : sample.segments) authors.push_back(s.author);
  return authors;
}

TEST_F(RunnerTest, ASingleTurnIsPromptAndResponse) {
  fakes::ScriptedEngine engine(
      [&](const GenerationRequest&, size_t index) { return Say("#### " + std::to_string(index)); });
  const auto groups = Run(&engine, Options(1), Groups(3, 4), "single_turn");
  for (const EpisodeGroup& group : groups) {
    for (const Episode& e : group.episodes) {
      ASSERT_EQ(e.samples.size(), 1u);
      EXPECT_EQ(Authors(e.samples[0]), (std::vector{Author::kPrompt, Author::kPolicy}));
      EXPECT_EQ(e.samples[0].segments[0].token_ids, PromptIds(group));
      EXPECT_EQ(e.response_text, "#### " + std::to_string(e.index_in_group)) << "its own response";
      EXPECT_EQ(e.samples[0].segments[1].logprobs, Say(e.response_text).logprobs);
      EXPECT_EQ(e.samples[0].segments[1].versions.front(), 3u);
      EXPECT_EQ(e.status, EpisodeStatus::kRunning) << "rewards come later";
      EXPECT_EQ(e.num_turns, 1);
      EXPECT_FALSE(e.truncated());
    }
  }
}

TEST_F(RunnerTest, AGroupIsOneRequestUnlessPromptsAreNotShared) {
  const auto script = [&](const GenerationRequest&, size_t) { return Say("#### 1"); };
  for (const bool share : {true, false}) {
    fakes::ScriptedEngine engine(script);
    RunnerOptions options = Options(1);
    options.share_prompt = share;
    const auto groups = Run(&engine, options, Groups(2, 3));
    const auto requests = engine.requests();
    ASSERT_EQ(requests.size(), share ? 2u : 6u);
    EXPECT_EQ(engine.batch_sizes(), std::vector<size_t>{requests.size()}) << "all at once";
    std::vector<uint64_t> seeds, expected;
    for (const auto& r : requests) seeds.insert(seeds.end(), r.seeds.begin(), r.seeds.end());
    for (const auto& group : groups) {
      for (const Episode& e : group.episodes) expected.push_back(e.seed);
    }
    EXPECT_EQ(seeds, expected) << "first turns are sampled with the episodes' seeds";
    EXPECT_EQ(requests[0].prompt_ids, PromptIds(groups[0]));
    EXPECT_EQ(requests[0].sampling.max_new_tokens, 50);
  }
}

// Of every position the turn counts in which it was computed first.
TEST_F(RunnerTest, WhatIsRecordedOfLaterTurnsFollowsThatOfEarlierOnes) {
  std::atomic<uint8_t> turn = 0;
  fakes::ScriptedEngine engine([&](const GenerationRequest& request, size_t) {
    EXPECT_TRUE(request.return_routed_experts);
    EXPECT_EQ(request.top_logprobs, 2);
    const std::string so_far = codec_->Decode(request.prompt_ids, true);
    Generation g = Say(so_far.find("48") != std::string::npos ? "#### 48" : "<calc>8*6</calc>");
    g.top_logprobs.assign(2 * g.token_ids.size(), {9, -0.5f});
    g.routed_experts.num_layers = 1;
    g.routed_experts.top_k = 2;
    const uint8_t now = ++turn;  // ids: the position, and the turn
    std::vector<uint8_t> prompt;
    for (size_t p = 0; p < request.prompt_ids.size() + g.token_ids.size() - 1; ++p) {
      std::vector<uint8_t>& to = p < request.prompt_ids.size() ? prompt : g.routed_experts.rest;
      to.push_back(static_cast<uint8_t>(p));
      to.push_back(now);
    }
    g.routed_experts.prompt = std::make_shared<std::vector<uint8_t>>(std::move(prompt));
    return g;
  });
  RunnerOptions options = Options(5);
  options.return_routed_experts = true;
  options.top_logprobs = 2;
  const auto groups = Run(&engine, options, Groups(1, 1));
  const Sample& sample = groups[0].episodes[0].samples[0];
  ASSERT_EQ(sample.segments.size(), 4u);
  for (const Segment& s : sample.segments) {
    EXPECT_EQ(s.top_logprobs.size(), s.author == Author::kPolicy ? 2 * s.token_ids.size() : 0u);
  }
  ASSERT_NE(sample.routed_experts, nullptr);
  const RoutedExperts& routed = *sample.routed_experts;
  const auto first_turn = static_cast<int64_t>(sample.segments[0].token_ids.size() +
                                               sample.segments[1].token_ids.size()) -
                          1;
  ASSERT_EQ(routed.num_positions(), static_cast<int64_t>(sample.num_tokens()) - 1);
  EXPECT_EQ(routed.prompt_bytes(), static_cast<int64_t>(2 * sample.segments[0].token_ids.size()));
  for (int64_t p = 0; p < routed.num_positions(); ++p) {
    EXPECT_EQ(routed.At(p)[0], p);
    EXPECT_EQ(routed.At(p)[1], p < first_turn ? 1 : 2) << "position " << p;
  }
}

// 8*6, then 48-31 where told 48, then the answer.
TEST_F(RunnerTest, TurnsWithAToolContinueFromTheSampledIds) {
  fakes::ScriptedEngine engine([&](const GenerationRequest& request, size_t) {
    const std::string so_far = codec_->Decode(request.prompt_ids, true);
    if (so_far.find("17") != std::string::npos) return Say("#### 17");
    if (so_far.find("48") != std::string::npos) return Say("<calc>48-31</calc>");
    return Say("<calc>8*6</calc>");
  });
  const auto groups = Run(&engine, Options(5), Groups(2, 3));
  for (const EpisodeGroup& group : groups) {
    for (const Episode& e : group.episodes) {
      EXPECT_EQ(e.num_turns, 3);
      EXPECT_EQ(e.response_text, "#### 17") << "the last turn is what is graded";
      EXPECT_EQ(Authors(e.samples.at(0)),
                (std::vector{Author::kPrompt, Author::kPolicy, Author::kTool, Author::kPolicy,
                             Author::kTool, Author::kPolicy}));
      for (const Segment& s : e.samples[0].segments) {
        const bool policy = s.author == Author::kPolicy;
        EXPECT_EQ(s.logprobs.size(), policy ? s.token_ids.size() : 0u);
        EXPECT_EQ(s.versions.size(), policy ? s.token_ids.size() : 0u);
      }
      // The conversation reads as the template has it, from the first token to the last.
      EXPECT_EQ(codec_->Decode(AllIds(e.samples[0]), false),
                codec_->Decode(PromptIds(group), false) +
                    "<calc>8*6</calc><|im_end|>\n<|im_start|>tool\n48<|im_end|>\n"
                    "<|im_start|>assistant\n<calc>48-31</calc><|im_end|>\n<|im_start|>tool\n"
                    "17<|im_end|>\n<|im_start|>assistant\n#### 17<|im_end|>");
    }
  }
}

TEST_F(RunnerTest, ALaterTurnsPromptBeginsWithTheEarlierTurnsIds) {
  // A response in ids that no tokenizer would choose: one character a token.
  fakes::ScriptedEngine engine([&](const GenerationRequest& request, size_t) {
    if (codec_->Decode(request.prompt_ids, true).find("tool") != std::string::npos) {
      return Say("#### 2");
    }
    Generation g;
    for (const char c : std::string("<calc>1+1</calc>")) {
      for (const int32_t id : codec_->Encode(std::string(1, c))) g.token_ids.push_back(id);
    }
    g.token_ids.push_back(kStop);
    g.logprobs.assign(g.token_ids.size(), -1);
    g.versions.assign(g.token_ids.size(), 3);
    return g;
  });
  const auto groups = Run(&engine, Options(2), Groups(1, 2));
  ASSERT_NE(codec_->Encode("<calc>1+1</calc>").size() + 1,
            groups[0].episodes[0].samples[0].segments[1].token_ids.size());
  for (const GenerationRequest& request : engine.requests()) {
    if (request.seeds.size() != 1) continue;  // a first turn
    bool found = false;
    for (const Episode& e : groups[0].episodes) {
      std::vector<int32_t> begin;
      for (size_t s = 0; s < 3; ++s) {
        const auto& ids = e.samples[0].segments[s].token_ids;
        begin.insert(begin.end(), ids.begin(), ids.end());
      }
      found |= begin == request.prompt_ids;
    }
    EXPECT_TRUE(found);
  }
  EXPECT_EQ(engine.requests().size(), 3u);
}

TEST_F(RunnerTest, SeedsAreOfRunEpisodeAndTurn) {
  fakes::ScriptedEngine engine(
      [&](const GenerationRequest&, size_t) { return Say("<calc>1</calc>"); });
  const auto groups = Run(&engine, Options(4), Groups(2, 3));
  std::set<uint64_t> seen, expected;
  size_t count = 0;
  for (const auto& request : engine.requests()) {
    for (const uint64_t seed : request.seeds) {
      seen.insert(seed);
      ++count;
    }
  }
  for (const auto& group : groups) {
    for (const Episode& e : group.episodes) {
      expected.insert(e.seed);
      for (uint64_t turn = 1; turn < 4; ++turn) expected.insert(HashSeed({e.seed, turn}));
      EXPECT_EQ(e.num_turns, 4) << "max_turns ends it, though the model asks for more";
      EXPECT_EQ(e.samples[0].finish_reason, FinishReason::kStop);
    }
  }
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(count, seen.size()) << "no two turns share a seed";
}

TEST_F(RunnerTest, ResultsDoNotDependOnTheOrderOfArrival) {
  const auto script = [&](const GenerationRequest& request, size_t index) {
    const uint64_t draw = request.seeds[index] % 7;
    return draw < 4 ? Say("<calc>" + std::to_string(draw) + "+1</calc>")
                    : Say("#### " + std::to_string(draw));
  };
  std::vector<std::vector<int32_t>> first;
  for (uint64_t order = 1; order <= 5; ++order) {
    fakes::ScriptedEngine engine(script, order);
    std::vector<std::vector<int32_t>> ids;
    for (const auto& group : Run(&engine, Options(3), Groups(4, 4))) {
      for (const Episode& e : group.episodes) ids.push_back(AllIds(e.samples[0]));
    }
    if (order == 1) first = ids;
    EXPECT_EQ(ids, first) << order;
  }
}

TEST_F(RunnerTest, ATruncatedTurnEndsTheEpisode) {
  fakes::ScriptedEngine engine([&](const GenerationRequest&, size_t) {
    return Say("<calc>1+1</calc>", FinishReason::kLength);
  });
  for (const auto& group : Run(&engine, Options(5), Groups(1, 2))) {
    for (const Episode& e : group.episodes) {
      EXPECT_EQ(e.num_turns, 1);
      EXPECT_TRUE(e.truncated());
      EXPECT_EQ(e.status, EpisodeStatus::kRunning) << "it is graded";
    }
  }
}

TEST_F(RunnerTest, ATurnThatEndedOtherwiseThanByTheStopTokenIsNotContinued) {
  fakes::ScriptedEngine engine([&](const GenerationRequest&, size_t) {
    Generation g = Say("<calc>1+1</calc>", FinishReason::kLength);
    g.finish_reason = FinishReason::kStop;  // a stop string ended it
    return g;
  });
  EXPECT_EQ(Run(&engine, Options(5), Groups(1, 1))[0].episodes[0].num_turns, 1);
}

// A conversation that has filled the context is cut short, as a response that has: it is graded,
// and what the tool said last, which nobody read, is no part of it.
TEST_F(RunnerTest, AConversationThatFillsTheContextIsTruncated) {
  fakes::ScriptedEngine engine(
      [&](const GenerationRequest&, size_t) { return Say("<calc>1+1</calc>"); });
  RunnerOptions options = Options(100);
  auto groups = Groups(1, 2);
  options.max_positions = static_cast<int64_t>(PromptIds(groups[0]).size()) + 60;
  groups = Run(&engine, options, groups);
  for (const Episode& e : groups[0].episodes) {
    EXPECT_GT(e.num_turns, 1);
    EXPECT_LT(e.num_turns, 60);
    EXPECT_TRUE(e.truncated());
    EXPECT_EQ(e.status, EpisodeStatus::kRunning);
    EXPECT_EQ(e.samples[0].segments.back().author, Author::kPolicy);
    // The engine ends a turn at the context; this one does not know it, so its last turn is left
    // out.
    const size_t last = e.samples[0].segments.back().token_ids.size();
    EXPECT_LT(static_cast<int64_t>(AllIds(e.samples[0]).size() - last), options.max_positions);
  }
  for (const auto& request : engine.requests()) {
    EXPECT_LT(static_cast<int64_t>(request.prompt_ids.size()), options.max_positions);
  }
}

TEST_F(RunnerTest, WhatTheEngineRefusesFailsThatEpisodeAlone) {
  fakes::ScriptedEngine engine([&](const GenerationRequest&, size_t index) {
    if (index != 1) return Say("#### 1");
    Generation g;
    g.finish_reason = FinishReason::kRejected;
    g.error = "the prompt has 300 tokens, the model's context 256";
    return g;
  });
  const auto groups = Run(&engine, Options(1), Groups(2, 3));
  for (const auto& group : groups) {
    for (const Episode& e : group.episodes) {
      const bool refused = e.index_in_group == 1;
      EXPECT_EQ(e.status, refused ? EpisodeStatus::kFailed : EpisodeStatus::kRunning);
      if (!refused) continue;
      EXPECT_EQ(e.outcome.kind, Outcome::Kind::kFailed);
      EXPECT_THAT(e.outcome.why, HasSubstr("300 tokens"));
      EXPECT_EQ(e.samples[0].num_policy_tokens(), 0u);
      EXPECT_EQ(e.samples[0].finish_reason, FinishReason::kRejected);
    }
  }
}

TEST_F(RunnerTest, AbortedEpisodesKeepWhatWasSampled) {
  fakes::ScriptedEngine engine([&](const GenerationRequest& request, size_t) {
    return request.seeds.size() > 1 ? Say("<calc>1+1</calc>") : Say("and", FinishReason::kAborted);
  });
  const auto groups = Run(&engine, Options(5), Groups(1, 3));
  for (const Episode& e : groups[0].episodes) {
    EXPECT_EQ(e.status, EpisodeStatus::kAborted);
    EXPECT_EQ(e.num_turns, 2);
    EXPECT_EQ(e.samples[0].segments.back().token_ids, codec_->Encode("and"));
    EXPECT_EQ(e.samples[0].finish_reason, FinishReason::kAborted);
  }
}

TEST_F(RunnerTest, NothingToRunIsDoneAtOnce) {
  fakes::ScriptedEngine engine([&](const GenerationRequest&, size_t) { return Say("x"); });
  EXPECT_TRUE(Run(&engine, Options(1), {}).empty());
  EXPECT_EQ(Run(&engine, Options(1), Groups(2, 0)).size(), 2u);
  EXPECT_TRUE(engine.requests().empty());
}

}  // namespace
}  // namespace orrery::rollout
