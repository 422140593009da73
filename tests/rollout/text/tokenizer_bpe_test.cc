#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "orchestrator/base/hash.h"
#include "rollout/text/added_tokens.h"
#include "rollout/text/bpe.h"

namespace orrery::rollout {
namespace {

using testing::HasSubstr;
using MergeList = std::vector<std::pair<std::string, std::string>>;

// Random merges over a few letters, with the texts they make.
struct RandomModel {
  std::vector<std::string> texts{"a", "b", "c", "d"};
  MergeList merges;

  explicit RandomModel(uint64_t seed) {
    RandomStream random(seed);
    while (merges.size() < 60) {
      const std::string left = texts[random.Below(texts.size())];
      const std::string right = texts[random.Below(texts.size())];
      if (left.size() + right.size() > 9) continue;
      merges.emplace_back(left, right);
      if (!std::ranges::count(texts, left + right)) texts.push_back(left + right);
    }
  }

  Vocabulary MakeVocabulary() const {
    Vocabulary vocabulary;
    for (size_t i = 0; i < texts.size(); ++i) EXPECT_TRUE(vocabulary.Add(texts[i], i).ok());
    return vocabulary;
  }

  // The definition: of all adjacent pairs the one of the lowest rank, leftmost, until none is left.
  // The last of equal merges counts.
  std::vector<std::string> Encode(std::string_view word) const {
    std::vector<std::string> parts;
    for (const char c : word) parts.emplace_back(1, c);
    while (true) {
      size_t best = parts.size(), best_rank = merges.size();
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        for (size_t rank = merges.size(); rank-- > 0;) {
          if (merges[rank] != std::pair{parts[i], parts[i + 1]}) continue;
          if (rank < best_rank) best = i, best_rank = rank;
          break;
        }
      }
      if (best == parts.size()) return parts;
      parts[best] += parts[best + 1];
      parts.erase(parts.begin() + best + 1);
    }
  }
};

// Words on both sides of the length where the algorithm changes.
TEST(TokenizerBpe, MergesInOrderOfRankLeftmostFirst) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const RandomModel reference(seed);
    auto model = BpeModel::Create(reference.MakeVocabulary(), reference.merges, {});
    ASSERT_TRUE(model.ok()) << model.status();
    RandomStream random(seed + 100);
    BpeModel::Scratch scratch;
    for (int round = 0; round < 60; ++round) {
      std::string word;
      for (uint64_t n = 1 + random.Below(120); n > 0; --n) word.push_back("abcd"[random.Below(4)]);
      std::vector<int32_t> ids;
      model->EncodeWord(word, &scratch, &ids);
      std::vector<std::string> texts;
      for (const int32_t id : ids) texts.emplace_back(model->vocabulary().Text(id));
      ASSERT_EQ(texts, reference.Encode(word)) << word;
      std::vector<int32_t> again;  // from the cache, where the word is short enough
      model->EncodeWord(word, &scratch, &again);
      ASSERT_EQ(again, ids);
    }
  }
}

TEST(TokenizerBpe, NamesMissingTokens) {
  const RandomModel reference(1);
  const auto status_of = [&](MergeList merges, BpeOptions options = {}) {
    return BpeModel::Create(reference.MakeVocabulary(), std::move(merges), std::move(options))
        .status();
  };
  EXPECT_THAT(status_of({{"a", "x"}}).message(), HasSubstr("merges[0]: 'x'"));
  EXPECT_THAT(status_of({{"a", "abcdabcdabcd"}}).message(), HasSubstr("abcdabcdabcd"));
  EXPECT_THAT(status_of({}, {.unk_token = "<unk>"}).message(), HasSubstr("unk_token: '<unk>'"));
}

TEST(TokenizerVocabulary, RefusesIdsThatCannotBe) {
  Vocabulary vocabulary;
  EXPECT_TRUE(vocabulary.Add("a", 7).ok());
  EXPECT_THAT(vocabulary.Add("b", 7).message(), HasSubstr("used twice, by 'a' and 'b'"));
  EXPECT_FALSE(vocabulary.Add("b", -1).ok());
  EXPECT_FALSE(vocabulary.Add("b", int64_t{1} << 40).ok());
  EXPECT_EQ(vocabulary.size(), 1);
  EXPECT_EQ(vocabulary.id_end(), 8);
  EXPECT_EQ(vocabulary.Text(3), "");
  EXPECT_EQ(vocabulary.Find("zzz"), Vocabulary::kNone);
}

TEST(TokenizerVocabulary, FindsEveryTextOfMany) {
  Vocabulary vocabulary;
  for (int i = 0; i < 5000; ++i) ASSERT_TRUE(vocabulary.Add(fmt::format("t{}", i), i).ok());
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(vocabulary.Find(fmt::format("t{}", i)), i);
  ASSERT_TRUE(vocabulary.Add("t17", 6000).ok());  // the last of equal keys counts
  EXPECT_EQ(vocabulary.Find("t17"), 6000);
  EXPECT_FALSE(vocabulary.Has(17));
  EXPECT_EQ(vocabulary.size(), 5000);
}

// Leftmost, then longest, against a search by hand over random patterns and texts.
TEST(TokenizerAddedTokens, FindsLeftmostLongest) {
  RandomStream random(5);
  const auto random_text = [&](size_t least, size_t most) {
    std::string text;
    for (uint64_t n = least + random.Below(most - least + 1); n > 0; --n) {
      text.push_back("<ab>"[random.Below(4)]);
    }
    return text;
  };
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> patterns;
    AddedTokenMatcher matcher;
    for (int i = 0; i < 12; ++i) {
      const std::string pattern = random_text(1, 4);
      const bool is_new = !std::ranges::count(patterns, pattern);
      AddedToken token;
      token.id = static_cast<int32_t>(patterns.size());
      EXPECT_EQ(matcher.Add(pattern, token), is_new);
      if (is_new) patterns.push_back(pattern);
    }
    const std::string text = random_text(0, 30);
    std::string expected, found, pending;
    for (size_t i = 0; i < text.size();) {
      int best = -1;
      for (size_t p = 0; p < patterns.size(); ++p) {
        if (!std::string_view(text).substr(i).starts_with(patterns[p])) continue;
        if (best < 0 || patterns[p].size() > patterns[best].size()) best = static_cast<int>(p);
      }
      expected += best < 0 ? std::string(1, text[i]) : fmt::format("[{}]", best);
      i += best < 0 ? 1 : patterns[best].size();
    }
    matcher.Split(
        text, [&](std::string_view piece) { found += piece; },
        [&](int32_t id) { found += fmt::format("[{}]", id); });
    ASSERT_EQ(found, expected) << text;
  }
}

}  // namespace
}  // namespace orrery::rollout
