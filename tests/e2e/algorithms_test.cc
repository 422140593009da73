// Every algorithm and correction that the YAML knows, run: what it is defined by is computed again,
// in double and from the recorded samples alone, and compared with the metrics of the run.
#include <cmath>
#include <functional>
#include <set>

#include "configs/yaml.h"
#include "orchestrator/run/samples.h"
#include "tests/e2e/e2e_testing.h"

namespace orrery::e2e {
namespace {

using ::testing::HasSubstr;

constexpr double kFloatEps = 1.1920929e-07;  // of float32

// The recorded steps of a run of story_math.
class Recorded {
 public:
  Recorded(const TempFolder& folder, const std::string& name, const Words& settings,
           int64_t steps = 3, const std::string& file = "") {
    Words words = {"run",   file.empty() ? SmallExperiment(folder, name, steps) : file,
                   "--set", "checkpoint.every=0",
                   "--set", "evals=[]"};
    for (const std::string& setting : settings) {
      words.push_back("--set");
      words.push_back(setting);
    }
    const Ended ended = Orrery(words);
    EXPECT_EQ(ended.code, 0) << name << ": " << ended;
    root_ = folder / name;
    for (const std::string& line : Lines(Get(root_ + "/metrics.jsonl"))) {
      metrics_.push_back(Metrics(line));
    }
    EXPECT_EQ(metrics_.size(), static_cast<size_t>(steps)) << name;
    for (size_t step = 1; step <= metrics_.size(); ++step) {
      const auto samples =
          run::ReadSamples(root_ + "/samples/step-" + std::to_string(step) + ".jsonl.zst");
      EXPECT_TRUE(samples.ok()) << samples.status();
      if (samples.ok()) groups_.push_back(samples->groups);
      for (const auto& [key, value] : metrics_[step - 1]) {
        EXPECT_TRUE(std::isfinite(value)) << name << " step " << step << ": " << key;
      }
      EXPECT_EQ(metrics_[step - 1].at("train/train_rollout_logprob_abs_diff/max"), 0) << name;
    }
  }

  size_t steps() const { return std::min(metrics_.size(), groups_.size()); }
  // Steps count from 1.
  const std::vector<EpisodeGroup>& groups(size_t step) const { return groups_.at(step - 1); }
  double metric(size_t step, const std::string& name) const {
    const auto found = metrics_.at(step - 1).find(name);
    EXPECT_NE(found, metrics_.at(step - 1).end()) << name << " of step " << step;
    return found == metrics_.at(step - 1).end() ? std::nan("") : found->second;
  }
  bool has(size_t step, const std::string& name) const {
    return metrics_.at(step - 1).contains(name);
  }
  configs::Experiment experiment() const {
    const auto experiment = configs::LoadExperiment(root_ + "/experiment.yaml");
    EXPECT_TRUE(experiment.ok()) << experiment.status();
    return experiment.value_or(configs::Experiment{});
  }
  const std::string& root() const { return root_; }

 private:
  std::string root_;
  std::vector<std::map<std::string, double>> metrics_;
  std::vector<std::vector<EpisodeGroup>> groups_;
};

double Mean(const std::vector<double>& x) {
  double sum = 0;
  for (const double v : x) sum += v;
  return sum / static_cast<double>(x.size());
}

double Std(const std::vector<double>& x) {
  double sum = 0;
  for (const double v : x) sum += (v - Mean(x)) * (v - Mean(x));
  return std::sqrt(sum / static_cast<double>(x.size() - 1));
}

std::vector<double> Scores(const EpisodeGroup& group) {
  std::vector<double> scores;
  for (const Episode& e : group.episodes) {
    if (e.status == EpisodeStatus::kScored) scores.push_back(e.outcome.score);
  }
  return scores;
}

bool HasSignal(const EpisodeGroup& group) {
  const std::vector<double> scores = Scores(group);
  return std::set<double>(scores.begin(), scores.end()).size() > 1;
}

std::vector<float> Logprobs(const Episode& e) {
  std::vector<float> all;
  for (const Sample& sample : e.samples) {
    for (const Segment& segment : sample.segments) {
      all.insert(all.end(), segment.logprobs.begin(), segment.logprobs.end());
    }
  }
  return all;
}

double Tokens(const Episode& e) { return static_cast<double>(Logprobs(e).size()); }

struct Trained {
  const Episode* episode;
  double advantage;
};

// The trained episodes of a step with the advantages that `of` gives a group's scores.
std::vector<Trained> TrainedEpisodes(
    const std::vector<EpisodeGroup>& groups,
    const std::function<std::vector<double>(const std::vector<double>&)>& of) {
  std::vector<Trained> all;
  for (const EpisodeGroup& group : groups) {
    if (!HasSignal(group)) continue;
    const std::vector<double> advantages = of(Scores(group));
    size_t i = 0;
    for (const Episode& e : group.episodes) {
      if (e.status != EpisodeStatus::kScored) continue;
      all.push_back({&e, advantages.at(i)});
      EXPECT_NEAR(e.advantage, advantages[i], 1e-12 * (1 + std::abs(advantages[i])));
      ++i;
    }
  }
  return all;
}

std::vector<double> Grpo(const std::vector<double>& scores) {
  std::vector<double> a;
  for (const double s : scores) a.push_back((s - Mean(scores)) / (Std(scores) + 1e-6));
  return a;
}

std::vector<double> Centred(const std::vector<double>& scores) {
  std::vector<double> a;
  for (const double s : scores) a.push_back(s - Mean(scores));
  return a;
}

std::vector<double> LeaveOneOut(const std::vector<double>& scores) {
  std::vector<double> a;
  for (size_t i = 0; i < scores.size(); ++i) {
    double others = 0;
    for (size_t j = 0; j < scores.size(); ++j) others += j == i ? 0 : scores[j];
    a.push_back(scores[i] - others / static_cast<double>(scores.size() - 1));
  }
  return a;
}

// With one optimizer step a rollout every ratio is 1: the loss is minus the aggregated advantage,
// and for cispo that times the log-prob. `scale` gives the weight of an episode's tokens.
void ExpectLoss(const Recorded& run, size_t step, const std::vector<Trained>& trained,
                const std::function<double(const Episode&)>& scale, bool times_logprob = false) {
  double loss = 0, size = 0;
  for (const Trained& t : trained) {
    for (const float logp : Logprobs(*t.episode)) {
      const double term = -t.advantage * scale(*t.episode) * (times_logprob ? logp : 1);
      loss += term;
      size += std::abs(term);
    }
  }
  // Advantages reach the loss as float32, terms are added in double.
  EXPECT_NEAR(run.metric(step, "train/loss"), loss, 2 * kFloatEps * size) << "step " << step;
  EXPECT_EQ(run.metric(step, "train/pg_clipfrac"), 0) << "a ratio of 1 is never clipped";
}

double AllTokens(const std::vector<Trained>& trained) {
  double n = 0;
  for (const Trained& t : trained) n += Tokens(*t.episode);
  return n;
}

std::function<double(const Episode&)> TokenMean(const std::vector<Trained>& trained) {
  const double n = AllTokens(trained);
  return [n](const Episode&) { return 1 / n; };
}

std::function<double(const Episode&)> SequenceMean(const std::vector<Trained>& trained) {
  const double n = static_cast<double>(trained.size());
  return [n](const Episode& e) { return 1 / n / Tokens(e); };
}

struct Case {
  const char* name;
  std::vector<double> (*advantages)(const std::vector<double>&);
  std::function<double(const Episode&)> (*scale)(const std::vector<Trained>&);
  double clip_low, clip_high;
};

TEST(Algorithms, LossAndAdvantagesAreThePublishedOnes) {
  const Case cases[] = {{"grpo", Grpo, SequenceMean, 0.2, 0.2},
                        {"dapo", Grpo, TokenMean, 0.2, 0.28},
                        {"gspo", Grpo, SequenceMean, 3e-4, 4e-4},
                        {"rloo", LeaveOneOut, TokenMean, 0.2, 0.2},
                        {"cispo", Grpo, TokenMean, 1, 0.28}};
  TempFolder folder;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const Recorded run(folder, c.name,
                       {std::string("algorithm.name=") + c.name, "algorithm.aggregation=auto"});
    size_t with_signal = 0;
    for (size_t step = 1; step <= run.steps(); ++step) {
      const std::vector<Trained> trained = TrainedEpisodes(run.groups(step), c.advantages);
      if (trained.empty()) continue;
      ++with_signal;
      ExpectLoss(run, step, trained, c.scale(trained), std::string(c.name) == "cispo");
    }
    EXPECT_GT(with_signal, 0u);
    // What "auto" became stands in the run's own experiment.
    const configs::Experiment e = run.experiment();
    EXPECT_EQ(e.algorithm.clip_low, c.clip_low);
    EXPECT_EQ(e.algorithm.clip_high, c.clip_high);
    EXPECT_NE(e.algorithm.aggregation, "auto");
    EXPECT_THAT(Get(run.root() + "/events.jsonl"), HasSubstr("auto, by"));
  }
}

TEST(Algorithms, DrGrpoDividesByTheHorizonOfTheLongestEpisode) {
  TempFolder folder;
  const std::string tool = std::string(ORRERY_SOURCE_DIR) + "/examples/story_math_tool";
  const Recorded run(folder, "tool",
                     {"run.name=tool", "run.directory=" + folder.path(), "run.steps=2",
                      "run.threads=2", "rollout.prompts_per_step=4", "rollout.samples_per_prompt=4",
                      "algorithm.name=dr_grpo", "algorithm.aggregation=auto"},
                     2, tool + "/story_math_tool.yaml");
  const configs::Experiment e = run.experiment();
  const double horizon = static_cast<double>(e.rollout.max_turns * e.sampling.max_new_tokens);
  size_t turns = 0;
  for (size_t step = 1; step <= run.steps(); ++step) {
    const std::vector<Trained> trained = TrainedEpisodes(run.groups(step), Centred);
    for (const Trained& t : trained) turns = std::max<size_t>(turns, t.episode->num_turns);
    const double n = static_cast<double>(trained.size());
    ExpectLoss(run, step, trained, [&](const Episode&) { return 1 / n / horizon; });
  }
  EXPECT_GT(turns, 1u) << "no episode used the calculator: the horizon was not put to the test";
}

// The batch is the baseline: groups of equal scores are trained too, and advantages have mean 0 and
// variance 1 over the trained tokens.
TEST(Algorithms, ReinforcePlusPlusWhitensTheBatch) {
  TempFolder folder;
  const Recorded run(folder, "rpp", {"algorithm.name=reinforce_plus_plus"});
  size_t equal_groups = 0;
  for (size_t step = 1; step <= run.steps(); ++step) {
    double n = 0, sum = 0, squares = 0, mean_score = 0;
    std::vector<Trained> trained;
    for (const EpisodeGroup& group : run.groups(step)) {
      equal_groups += HasSignal(group) ? 0 : 1;
      for (const Episode& e : group.episodes) {
        n += Tokens(e);
        mean_score += Tokens(e) * e.outcome.score;
        sum += Tokens(e) * e.advantage;
        squares += Tokens(e) * e.advantage * e.advantage;
        trained.push_back({&e, e.advantage});
      }
    }
    if (squares == 0) continue;  // all scores of the batch are equal
    EXPECT_EQ(run.metric(step, "train/trained_tokens"), n);
    EXPECT_NEAR(sum / n, 0, 1e-12);
    EXPECT_NEAR(squares / (n - 1), 1, 1e-6);  // but for the 1e-8 beside the variance
    for (const Trained& t : trained) {
      EXPECT_EQ(t.advantage > 0, t.episode->outcome.score > mean_score / n);
    }
    ExpectLoss(run, step, trained, TokenMean(trained));
  }
  EXPECT_GT(equal_groups, 0u) << "no group shows that the batch is the baseline";
}

TEST(Algorithms, OneSampleAPromptTrainsWhereTheBatchIsTheBaseline) {
  TempFolder folder;
  const Recorded run(folder, "one",
                     {"algorithm.name=reinforce_plus_plus", "rollout.samples_per_prompt=1",
                      "rollout.prompts_per_step=16"});
  EXPECT_GT(run.metric(1, "train/trained_tokens"), 0);
  EXPECT_GT(run.metric(1, "train/grad_norm"), 0);
}

TEST(Algorithms, DynamicSamplingFillsTheStepWithGroupsThatHaveASignal) {
  TempFolder folder;
  const Recorded run(
      folder, "dynamic",
      {"algorithm.name=dapo", "algorithm.dynamic_sampling=true", "algorithm.max_refills=50"});
  double filtered = 0;
  std::set<std::string> prompts;
  for (size_t step = 1; step <= run.steps(); ++step) {
    size_t kept = 0;
    for (const EpisodeGroup& group : run.groups(step)) {
      EXPECT_TRUE(prompts.insert(group.prompt.id).second) << group.prompt.id << " came twice";
      std::set<EpisodeStatus> states;
      std::set<double> scores;
      for (const Episode& e : group.episodes) {
        states.insert(e.status);
        scores.insert(e.outcome.score);
      }
      ASSERT_EQ(states.size(), 1u) << "a group is kept or filtered as a whole";
      EXPECT_EQ(*states.begin(),
                scores.size() > 1 ? EpisodeStatus::kScored : EpisodeStatus::kFiltered);
      kept += scores.size() > 1 ? 1 : 0;
    }
    EXPECT_EQ(kept, 4u) << "rollout.prompts_per_step";
    EXPECT_EQ(run.metric(step, "rollout/samples/scored"), 16);
    filtered += run.metric(step, "rollout/samples/filtered");
    EXPECT_EQ(run.metric(step, "rollout/samples/submitted"),
              16 + run.metric(step, "rollout/samples/filtered"));
    const std::vector<Trained> trained = TrainedEpisodes(run.groups(step), Grpo);
    ExpectLoss(run, step, trained, TokenMean(trained));
  }
  EXPECT_GT(filtered, 0) << "every group had a signal: nothing was filtered";
}

TEST(Algorithms, DynamicSamplingThatFindsNoSignalEndsWithTheReason) {
  TempFolder folder;
  const Ended ended = Orrery({"run", SmallExperiment(folder, "never", 2), "--set",
                              "algorithm.dynamic_sampling=true", "--set", "algorithm.max_refills=2",
                              "--set", "rewards=[{name: regex, parameters: {pattern: \"^\"}}]"});
  EXPECT_EQ(ended.code, 1) << ended;
  EXPECT_THAT(ended.err, HasSubstr("after 2 refills only 0 of 4 groups have different rewards"));
}

TEST(Algorithms, TheOverlongPenaltyGrowsOverTheBuffer) {
  TempFolder folder;
  const Recorded run(
      folder, "overlong",
      {"algorithm.name=dapo", "algorithm.overlong_buffer=16", "algorithm.overlong_penalty=0.5"});
  size_t punished = 0;
  for (size_t step = 1; step <= run.steps(); ++step) {
    for (const EpisodeGroup& group : run.groups(step)) {
      for (const Episode& e : group.episodes) {
        const double over = std::clamp(Tokens(e) - (26 - 16), 0.0, 16.0);
        const std::map<std::string, double> parts(e.outcome.parts.begin(), e.outcome.parts.end());
        EXPECT_NEAR(e.outcome.score, parts.at("gsm8k_strict") - 0.5 * over / 16, 1e-12);
        punished += over > 0 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(punished, 0u);
}

// The first step's policy is its own reference. Later the loss is policy loss plus coefficient
// times divergence, and a large coefficient keeps the policy near.
TEST(Algorithms, KlInTheLossHoldsThePolicyBack) {
  TempFolder folder;
  const Recorded free(folder, "free", {"algorithm.kl=k3", "algorithm.kl_coefficient=1e-9"}, 8);
  for (const char* kind : {"k2", "k3", "low_var_kl"}) {
    const Recorded held(folder, kind,
                        {std::string("algorithm.kl=") + kind, "algorithm.kl_coefficient=20"}, 8);
    EXPECT_EQ(held.metric(1, "train/ref_kl"), 0);
    EXPECT_EQ(held.metric(1, "train/loss"), free.metric(1, "train/loss"));
    for (size_t step = 2; step <= held.steps(); ++step) {
      EXPECT_NEAR(held.metric(step, "train/loss"),
                  held.metric(step, "train/pg_loss") + 20 * held.metric(step, "train/kl_loss"),
                  1e-12 * (1 + std::abs(held.metric(step, "train/pg_loss"))));
      EXPECT_GT(held.metric(step, "train/ref_kl"), 0);
    }
    EXPECT_LT(held.metric(8, "train/ref_kl"), free.metric(8, "train/ref_kl") / 2) << kind;
  }
}

TEST(Algorithms, UnbiasedKlDiffersInItsGradient) {
  TempFolder folder;
  const Words kl = {"algorithm.kl=k3", "algorithm.kl_coefficient=5"};
  const Recorded plain(folder, "plain", kl, 4);
  const Recorded unbiased(folder, "unbiased", {kl[0], kl[1], "algorithm.kl_unbiased=true"}, 4);
  // On policy new / old is 1, and at the reference both gradients are 0: two steps are the same.
  EXPECT_EQ(unbiased.metric(2, "train/kl_loss"), plain.metric(2, "train/kl_loss"));
  EXPECT_NE(unbiased.metric(2, "train/grad_norm"), plain.metric(2, "train/grad_norm"));
  EXPECT_NE(unbiased.metric(4, "train/kl_loss"), plain.metric(4, "train/kl_loss"));
}

TEST(Algorithms, KlInTheRewardChangesAdvantagesAlone) {
  TempFolder folder;
  const Recorded none(folder, "none", {}, 6);
  for (const char* name : {"grpo", "reinforce_plus_plus"}) {
    const std::string algorithm = std::string("algorithm.name=") + name;
    const Recorded free(folder, std::string(name) + "_free", {algorithm}, 6);
    const Recorded held(
        folder, name,
        {algorithm, "algorithm.kl=k1", "algorithm.kl_in=reward", "algorithm.kl_coefficient=0.5"},
        6);
    EXPECT_EQ(held.metric(1, "train/ref_kl"), 0);
    EXPECT_NEAR(held.metric(1, "train/loss"), free.metric(1, "train/loss"), 1e-6)
        << "the first policy is the reference";
    EXPECT_EQ(held.metric(3, "train/kl_loss"), 0) << "nothing of it in the loss";
    EXPECT_NE(held.metric(3, "train/ref_kl"), 0);
    EXPECT_NE(held.metric(6, "train/loss"), free.metric(6, "train/loss"));
    EXPECT_FALSE(free.has(3, "train/ref_kl"));
  }
}

// Several optimizer steps a rollout move the policy away from what sampled: ranges matter.
TEST(Algorithms, ClipRangesBiteWhereTheyShould) {
  TempFolder folder;
  std::map<std::string, double> clipped;
  for (const char* name : {"grpo", "gspo", "cispo"}) {
    const Recorded run(folder, name,
                       {std::string("algorithm.name=") + name,
                        "trainer.optimizer_steps_per_rollout=4", "rollout.prompts_per_step=16"});
    for (size_t step = 1; step <= run.steps(); ++step) {
      clipped[name] += run.metric(step, "train/pg_clipfrac") / 3;
      EXPECT_NE(run.metric(step, "train/ppo_kl"), 0);
    }
  }
  EXPECT_GT(clipped["gspo"], 0.05) << "its range is a thousandth of the others'";
  EXPECT_LT(clipped["grpo"], clipped["gspo"]);
  EXPECT_LT(clipped["cispo"], clipped["gspo"]);
}

// Sampler and trainer agree to the bit here, so every correction must leave everything as it is.
TEST(Algorithms, CorrectionsOfNoMismatchChangeNothing) {
  TempFolder folder;
  const Words steps = {"trainer.optimizer_steps_per_rollout=2"};
  const Recorded plain(folder, "plain", steps);
  const std::vector<Words> settings = {
      {"algorithm.correction=tis"},
      {"algorithm.correction=icepop", "algorithm.correction_low=0.5"},
      {"algorithm.correction=mis", "algorithm.correction_level=token",
       "algorithm.correction_mode=truncate"},
      {"algorithm.correction=mis", "algorithm.correction_level=sequence",
       "algorithm.correction_mode=clip", "algorithm.correction_low=0.5",
       "algorithm.correction_veto=1e-4"},
      {"algorithm.correction=mis", "algorithm.correction_level=geometric",
       "algorithm.correction_mode=mask", "algorithm.correction_low=0.99",
       "algorithm.correction_high=1.01", "algorithm.correction_reject=geometric",
       "algorithm.correction_reject_low=0.999", "algorithm.correction_reject_high=1.001",
       "algorithm.correction_normalize=true"}};
  for (size_t i = 0; i < settings.size(); ++i) {
    SCOPED_TRACE(settings[i][0] + " " + std::to_string(i));
    Words words = settings[i];
    words.push_back(steps[0]);
    const Recorded corrected(folder, "c" + std::to_string(i), words);
    for (size_t step = 1; step <= plain.steps(); ++step) {
      for (const char* name :
           {"train/loss", "train/grad_norm", "train/ppo_kl", "rollout/entropy"}) {
        EXPECT_EQ(corrected.metric(step, name), plain.metric(step, name)) << name;
      }
      EXPECT_EQ(corrected.metric(step, "train/tis"), 1);
      EXPECT_EQ(corrected.metric(step, "train/tis_abs"), 0);
      EXPECT_EQ(corrected.metric(step, "train/tis_clipfrac"), 0);
      EXPECT_EQ(corrected.metric(step, "train/rejected_ratio"), 0);
      EXPECT_FALSE(plain.has(step, "train/tis"));
    }
  }
}

// What bfloat16 sampled, trained in float32 by replay: a mismatch as between two engines. What the
// replay's metrics are.
std::map<std::string, double> ReplayedInFloat32(const std::string& run, const Words& settings) {
  const std::string path = run + "/experiment.yaml", before = Get(path);
  std::string yaml = std::regex_replace(before, std::regex("dtype: bfloat16"), "dtype: float32");
  for (const std::string& setting : settings) {
    const std::string key = setting.substr(0, setting.find(':'));
    const std::regex line("\n( *)" + key + ": [^\n]*");
    EXPECT_TRUE(std::regex_search(yaml, line)) << key;
    yaml = std::regex_replace(yaml, line, "\n$1" + setting);
  }
  Put(path, yaml);
  const Ended ended = Orrery({"replay", run, "--step", "1"});
  Put(path, before);
  EXPECT_EQ(ended.code, 1) << ended;
  EXPECT_THAT(ended.out, HasSubstr("NOT equal"));
  std::map<std::string, double> replayed;
  const std::regex line("differs  (\\S+)  recorded \\S+  replayed (\\S+)");
  for (std::sregex_iterator it(ended.out.begin(), ended.out.end(), line), end; it != end; ++it) {
    replayed[(*it)[1]] = std::stod((*it)[2]);
  }
  return replayed;
}

TEST(Algorithms, CorrectionsOfAnotherNumberFormatActOnTheLoss) {
  TempFolder folder;
  const Recorded recorded(folder, "a", {"model.dtype=bfloat16", "rollout.prompts_per_step=16"}, 1);
  const Words bounds = {"correction_low: 0.998", "correction_high: 1.002"};
  const auto with = [&](const char* correction, const Words& more) {
    Words settings = {std::string("correction: ") + correction};
    settings.insert(settings.end(), more.begin(), more.end());
    return ReplayedInFloat32(recorded.root(), settings);
  };
  auto none = ReplayedInFloat32(recorded.root(), {});
  auto tis = with("tis", bounds), icepop = with("icepop", bounds);
  auto mis = with("mis", {bounds[0], bounds[1], "correction_mode: mask"});
  EXPECT_GT(none["train/train_rollout_logprob_abs_diff/max"], 1e-3);
  EXPECT_FALSE(none.contains("train/tis"));
  for (auto* run : {&tis, &icepop, &mis}) {
    const double abs_diff = (*run)["train/train_rollout_logprob_abs_diff/mean"];
    EXPECT_EQ(abs_diff, none["train/train_rollout_logprob_abs_diff/mean"]);
    // |e^d - 1| is |d| but for d^2.
    EXPECT_NEAR((*run)["train/tis_abs"], abs_diff, 0.1 * abs_diff);
    EXPECT_NEAR((*run)["train/tis"], 1, 2 * abs_diff);
    EXPECT_GT((*run)["train/tis_clipfrac"], 0.05);
    EXPECT_LT((*run)["train/tis_clipfrac"], 0.95);
    EXPECT_NE((*run)["train/grad_norm"], none["train/grad_norm"]);
  }
  EXPECT_NE(tis["train/grad_norm"], icepop["train/grad_norm"]);
  // What icepop weighs with 0, a mask rejects: here there is no other term of the loss.
  EXPECT_EQ(mis["train/rejected_ratio"], icepop["train/tis_clipfrac"]);
  EXPECT_NEAR(mis["train/loss"], icepop["train/loss"], 8 * kFloatEps);
}

TEST(Algorithms, SequenceMaskingLeavesOutOffPolicyTokensOfBadResponses) {
  TempFolder folder;
  const Words steps = {"trainer.optimizer_steps_per_rollout=4", "rollout.prompts_per_step=16"};
  const Recorded run(folder, "opsm", {steps[0], steps[1], "algorithm.opsm_delta=1e-4"});
  double masked = 0;
  for (size_t step = 1; step <= run.steps(); ++step) {
    masked += run.metric(step, "train/opsm_clipfrac");
    EXPECT_LT(run.metric(step, "train/opsm_clipfrac"), 1);
  }
  EXPECT_GT(masked, 0);
}

// A step in which no group has a signal trains nothing, and says of its tokens what is true of
// them.
TEST(Algorithms, AStepWithoutSignalIsMeasuredAllTheSame) {
  TempFolder folder;
  const Recorded run(folder, "flat", {"rewards=[{name: regex, parameters: {pattern: \"^\"}}]"});
  const Recorded other(folder, "other", {});
  for (size_t step = 1; step <= run.steps(); ++step) {
    EXPECT_EQ(run.metric(step, "train/trained_tokens"), 0);
    EXPECT_EQ(run.metric(step, "train/grad_norm"), 0);
    EXPECT_GT(run.metric(step, "rollout/entropy"), 0.01);
    EXPECT_EQ(run.metric(step, "train/train_rollout_logprob_abs_diff/max"), 0);
    EXPECT_GT(run.metric(step, "train/lr"), 0);
  }
  // The weights of both are the same before the first step: so are the samples.
  EXPECT_EQ(run.metric(1, "rollout/response_len/mean"),
            other.metric(1, "rollout/response_len/mean"));
  const Ended replayed = Orrery({"replay", run.root(), "--step", "1"});
  EXPECT_EQ(replayed.code, 0) << replayed;
}

TEST(Algorithms, EvaluationsAskTheSameWhateverTheSeed) {
  TempFolder folder;
  std::set<std::string> first;
  for (const char* seed : {"7", "8"}) {
    const std::string file = SmallExperiment(folder, seed, 1);
    const Ended ended = Orrery(
        {"run", file, "--set", std::string("run.seed=") + seed, "--set", "checkpoint.every=0"});
    ASSERT_EQ(ended.code, 0) << ended;
    first.insert(std::to_string(Metrics(Lines(
        Get(folder / (std::string(seed) + "/metrics.jsonl")))[0])["eval/greedy/response_len"]));
  }
  EXPECT_EQ(first.size(), 1u) << "greedy answers of one model to the same questions";
}

}  // namespace
}  // namespace orrery::e2e
