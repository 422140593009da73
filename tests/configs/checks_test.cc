#include "configs/checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "configs/yaml.h"

namespace orrery::configs {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr char kGood[] =
    "model: {path: start}\n"
    "data: {source: story_math}\n"
    "rewards: [{name: gsm8k_strict}]\n";

std::string Checked(const std::vector<std::string>& overrides,
                    absl::Status (*check)(const Experiment&) = CheckForTraining) {
  const auto experiment = ParseExperiment(kGood, "f.yaml", overrides);
  const absl::Status status = experiment.ok() ? check(*experiment) : experiment.status();
  return status.ok() ? "OK" : std::string(status.message());
}

TEST(CheckForTrainingTest, DefaultsPass) { EXPECT_EQ(Checked({}), "OK"); }

TEST(CheckForTrainingTest, SamplingThatBendsTheDistributionIsRefusedWithTheReason) {
  for (const char* setting : {"sampling.top_p=0.9", "sampling.top_k=20", "sampling.min_p=0.1",
                              "sampling.repetition_penalty=1.1", "sampling.presence_penalty=0.5",
                              "sampling.min_new_tokens=4"}) {
    const std::string error = Checked({setting});
    EXPECT_THAT(error, StartsWith("--set " + std::string(setting) + ": sampling."));
    EXPECT_THAT(error, HasSubstr("changes the distribution that is sampled from"));
    EXPECT_EQ(Checked({setting}, CheckExperiment), "OK") << "evaluation may";
  }
}

struct Case {
  std::vector<std::string> overrides;
  const char* error;
};

TEST(CheckForTrainingTest, ContradictionsNameThePlaceAndTheFix) {
  const Case cases[] = {
      {{"model.path="}, "model.path: is missing"},
      {{"data.source="}, "data.source: is missing"},
      {{"rewards=[]"}, "rewards: is missing; add at least one, like [{name: gsm8k_strict}]"},
      {{"sampling.temperature=0"}, "sampling.temperature: 0 makes all responses"},
      {{"rollout.samples_per_prompt=1"}, "1 is too few: grpo compares"},
      {{"algorithm.dynamic_sampling=true", "algorithm.drop_zero_std_groups=false"},
       "set algorithm.drop_zero_std_groups: true"},
      {{"algorithm.kl=k3"}, "'k3' has no effect with kl_coefficient 0"},
      {{"algorithm.kl_coefficient=0.1"}, "0.1 has no effect with algorithm.kl: none"},
      {{"algorithm.dual_clip=0.5"}, "0.5 should be more than 1"},
      {{"algorithm.correction=tis", "algorithm.correction_low=3"},
       "3 should be less than correction_high 2"},
      {{"algorithm.correction_high=3"}, "has no effect here; choose a correction: tis"},
      {{"algorithm.correction=tis", "algorithm.correction_level=sequence"},
       "algorithm.correction_level: has no effect here; it belongs to correction: mis"},
      {{"algorithm.correction=icepop", "algorithm.correction_veto=1e-4"}, "correction: mis"},
      {{"algorithm.correction=icepop", "algorithm.correction_normalize=true"}, "correction: mis"},
      {{"algorithm.correction=mis", "algorithm.correction_reject_low=0.1"},
       "set algorithm.correction_reject: token, sequence or geometric"},
      {{"algorithm.correction=mis", "algorithm.correction_reject=token",
        "algorithm.correction_reject_low=2"},
       "2 should be less than correction_reject_high 2"},
      {{"algorithm.kl_unbiased=true"}, "algorithm.kl_unbiased: true has no effect"},
      {{"algorithm.kl_unbiased=true", "algorithm.kl=k3", "algorithm.kl_coefficient=0.1",
        "algorithm.kl_in=reward"},
       "with kl_in: loss"},
      {{"algorithm.horizon=5"},
       "5 has no effect; it belongs to aggregation: seq_mean_token_sum_norm"},
      {{"algorithm.name=cispo", "algorithm.dual_clip=3"}, "3 has no effect with cispo"},
      {{"algorithm.name=rloo", "algorithm.divide_by_std=false"}, "rloo does not divide"},
      {{"algorithm.name=reinforce_plus_plus", "algorithm.dynamic_sampling=true",
        "rollout.samples_per_prompt=1"},
       "1 is too few: dynamic_sampling compares"},
      {{"algorithm.overlong_buffer=300"}, "300 tokens are more than sampling.max_new_tokens 256"},
      {{"algorithm.overlong_buffer=3", "algorithm.overlong_penalty=0"}, "3 has no effect"},
      {{"trainer.optimizer_steps_per_rollout=257"}, "257 is more than the 256 episodes"},
      {{"story_math.tool=true"}, "set rollout.environment: calculator"},
      {{"rollout.environment=calculator"}, "set story_math.tool: true"},
  };
  for (const Case& c : cases) EXPECT_THAT(Checked(c.overrides), HasSubstr(c.error));
}

TEST(CheckForTrainingTest, AllContradictionsAreReportedTogether) {
  const std::string error = Checked({"sampling.top_p=0.9", "algorithm.kl=k1", "model.path="});
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 2) << error;
}

TEST(CheckForTrainingTest, OneSampleSufficesWhereTheBatchIsTheBaseline) {
  EXPECT_EQ(Checked({"rollout.samples_per_prompt=1", "algorithm.name=reinforce_plus_plus"}), "OK");
}

TEST(CheckExperimentTest, SettingsWithoutEffectAreRefused) {
  const Case cases[] = {
      {{"optimizer.min_learning_rate=1e-7"}, "has no effect with schedule: constant"},
      {{"optimizer.decay_steps=5"}, "optimizer.decay_steps: 5 has no effect"},
      {{"optimizer.schedule=linear", "optimizer.min_learning_rate=1"}, "1 is above learning_rate"},
      {{"data.preset=gsm8k"}, "data.preset: 'gsm8k' has no effect, data.source story_math"},
      {{"data.source=x", "data.preset=math", "data.prompt_field=q"},
       "data.prompt_field: 'q' has no effect, data.preset math names the fields"},
      {{"data.chat=false", "data.system_prompt=x"}, "data.system_prompt: needs a chat template"},
      {{"data.chat=false", "data.chat_variables={a: b}"}, "has no effect with data.chat: false"},
      {{"rollout.kv_tokens=8"}, "8 is less than one block of 16 tokens"},
      {{"rollout.swap_tokens=4096"},
       "rollout.swap_tokens: 4096 has no effect with rollout.preemption: recompute"},
      {{"rollout.preemption=swap"}, "room for at least one block of 16 tokens, and it has 0"},
      {{"rollout.preemption=swap", "rollout.swap_tokens=15"}, "and it has 15"},
      {{"rollout.preemption=swap", "rollout.swap_tokens=4096", "run.device=cpu"},
       "rollout.preemption: swap has no use with run.device: cpu"},
      {{"evals=[{name: a, data: {source: x}}, {name: a, data: {source: y}}]"},
       "evals.1.name: 'a' is another evaluation's name already"},
      {{"evals=[{}]"}, "evals.0.data.source: is missing"},
      {{"evals=[{data: {source: x}, samples: 4}]"}, "4 greedy responses would all be the same"},
  };
  for (const Case& c : cases)
    EXPECT_THAT(Checked(c.overrides, CheckExperiment), HasSubstr(c.error));
}

TEST(CheckForSftTest, WhatAnotherCommandGoesByIsRefusedOnTheCommandLine) {
  EXPECT_EQ(Checked({"run.steps=3"}), "OK");
  EXPECT_EQ(Checked({"run.steps=3"}, CheckForSft),
            "--set run.steps=3: run.steps: has no effect on `orrery sft`; set sft.steps or "
            "sft.epochs");
  EXPECT_EQ(Checked({"sft.steps=3"}, CheckForSft), "OK");
  EXPECT_EQ(Checked({"sft.steps=3"}),
            "--set sft.steps=3: sft.steps: has no effect on `orrery run`; it is for `orrery sft`");
  const auto both = ParseExperiment(std::string(kGood) + "sft: {steps: 3}\n", "f.yaml");
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_TRUE(CheckForTraining(*both).ok()) << "a file may be for both";
}

TEST(CheckForSftTest, NeedsNoRewards) {
  EXPECT_EQ(Checked({"rewards=[]"}, CheckForSft), "OK");
  EXPECT_THAT(Checked({"model.path="}, CheckForSft), HasSubstr("model.path"));
}

TEST(CheckForTrainingTest, EveryCorrectionCanBeSetInFull) {
  EXPECT_EQ(Checked({"algorithm.correction=mis", "algorithm.correction_level=geometric",
                     "algorithm.correction_mode=mask", "algorithm.correction_low=0.5",
                     "algorithm.correction_reject=sequence", "algorithm.correction_reject_low=0.9",
                     "algorithm.correction_veto=1e-4", "algorithm.correction_normalize=true",
                     "algorithm.opsm_delta=1e-4"}),
            "OK");
  EXPECT_EQ(Checked({"algorithm.name=dr_grpo", "algorithm.horizon=100"}), "OK");
}

TEST(DerivedTest, HorizonIsThatOfTheLongestEpisode) {
  Experiment e;
  e.sampling.max_new_tokens = 100;
  EXPECT_EQ(e.Horizon(), 100);
  e.rollout.environment = "calculator";
  e.rollout.max_turns = 3;
  EXPECT_EQ(e.Horizon(), 300);
  e.algorithm.horizon = 7;
  EXPECT_EQ(e.Horizon(), 7);
}

TEST(DerivedTest, TheBatchAsBaselineKeepsGroupsOfEqualScores) {
  Experiment e;
  EXPECT_TRUE(e.DropsZeroStdGroups());
  e.algorithm.name = "reinforce_plus_plus";
  EXPECT_FALSE(e.DropsZeroStdGroups());
  e.algorithm.name = "reinforce_plus_plus_baseline";
  EXPECT_TRUE(e.DropsZeroStdGroups());
}

}  // namespace
}  // namespace orrery::configs
