#include "orchestrator/run/report.h"

#include <cmath>
#include <cstdio>

#include "orchestrator/run/events.h"
#include "orchestrator/run/json_text.h"
#include "orchestrator/run/metric_names.h"
#include "orchestrator/run/metrics.h"
#include "orchestrator/run/report_data.h"
#include "orchestrator/run/run_directory.h"
#include "tests/orchestrator/run/run_testing.h"

namespace orrery::run {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

StepMetrics MadeUpStep(int64_t step, int64_t steps, RandomStream& random) {
  StepMetrics m(step);
  const double t = static_cast<double>(step) / static_cast<double>(steps);
  const auto noise = [&](double size) { return size * (random.Uniform() - 0.5); };
  m.Set(metric::kRawReward, 0.95 - 0.75 * std::exp(-4 * t) + noise(0.08));
  m.Set(metric::kRewardStd, 0.4 * std::exp(-2 * t));
  m.Set(metric::kResponseLenMean, 40 + 30 * t + noise(6));
  m.Set(metric::kTruncatedRatio, std::max(0.0, 0.2 * std::exp(-6 * t) + noise(0.02)));
  m.Set(metric::kEntropy, 0.9 * std::exp(-2 * t) + noise(0.05));
  m.Set(metric::kZeroStdGroupRatio, 0.7 * t);
  m.Set(metric::kLoss, noise(0.1));
  m.Set(metric::kGradNorm, step == steps / 3 ? NAN : 1.2 + noise(0.8));
  m.Set(metric::kLearningRate, 1e-3 * std::min(1.0, 10 * t));
  m.Set(metric::kPpoKl, 1e-4 * (1 + noise(1)));
  m.Set(metric::kPgClipfrac, 0.01 + noise(0.01));
  m.Set(metric::kTrainRolloutKl, 0);
  m.Set(metric::kLogprobDiffMean, 0);
  m.Set(metric::kLogprobDiffMax, 0);
  if (step % std::max<int64_t>(1, steps / 6) == 0) m.Set("eval/test/accuracy", 0.2 + 0.6 * t);
  m.Set(metric::kStepSeconds, 1.0);
  m.Set(metric::kRolloutSeconds, 0.5 + noise(0.1));
  m.Set(metric::kRewardSeconds, 0.02);
  m.Set(metric::kTrainSeconds, 0.4 + noise(0.1));
  m.Set(metric::kSyncSeconds, 0.03);
  m.Set(metric::kOtherSeconds, 0.05);
  m.Set(metric::kRolloutTokensPerSecond, 12000 + noise(2000));
  m.Set(metric::kTrainTokensPerSecond, 9000 + noise(2000));
  m.Set(metric::kRssBytes, 6.1e8 + 1e6 * static_cast<double>(step));
  m.Set(metric::kSubmitted, 300);
  return m;
}

constexpr const char* kAttack = "</script><script>document.title='owned'</script><!--<img src=x>";

std::vector<EpisodeGroup> MadeUpGroups(uint64_t seed) {
  std::vector<EpisodeGroup> groups = RandomGroups(seed, 6, 5);
  groups[0].prompt.id = kAttack;
  groups[0].prompt.answer = kAttack;
  groups[0].episodes[0].outcome.why = kAttack;
  groups[0].episodes[1].status = EpisodeStatus::kFailed;
  groups[0].episodes[1].outcome = Outcome::Failed("the grader gave no answer in 10 s");
  return groups;
}

void MakeRun(const std::string& path, int64_t steps, uint64_t seed) {
  ASSERT_OK_AND_ASSIGN(const auto run,
                       RunDirectory::Create(path, fmt::format("run:\n  name: \"{}\"\n", kAttack)));
  ASSERT_OK_AND_ASSIGN(const auto journal, Journal::Open(run->paths().events()));
  ASSERT_OK(journal->Write("start", kAttack));
  ASSERT_OK(journal->WriteForStep(2, "checkpoint", "step-2 written"));
  ASSERT_OK_AND_ASSIGN(const auto sink, JsonlSink::Open(run->paths().metrics(), nullptr));
  RandomStream random(seed);
  for (int64_t step = 1; step <= steps; ++step) {
    ASSERT_OK(sink->Write(MadeUpStep(step, steps, random)));
    if (step > 1 && step + 8 < steps) continue;
    ASSERT_OK(
        WriteSamples(path, step, MadeUpGroups(seed + static_cast<uint64_t>(step)), TestPieces));
  }
}

// The JSON that the page carries.
std::string DataOf(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = page.find(open) + open.size();
  return page.substr(begin, page.find("</script>", begin) - begin);
}

TEST(Report, CountsStepsNotLines) {
  const TempFolder folder;
  MakeRun(folder / "one", 5, 1);
  const std::string lines = folder / "one/metrics.jsonl";
  const std::string before = Get(lines);
  Put(lines, "{\"step\":0,\"eval/test/accuracy\":0.25}\n" + before);
  ASSERT_OK_AND_ASSIGN(const std::string page, MakeReport({folder / "one"}));
  ASSERT_OK_AND_ASSIGN(const rapidjson::Document data, ParseJsonLine(DataOf(page)));
  EXPECT_EQ(data["runs"][0]["steps"].Size(), 6u);
  EXPECT_STREQ(data["runs"][0]["summary"]["steps"].GetString(), "5");
}

TEST(Report, CarriesItsDataEscaped) {
  const TempFolder folder;
  MakeRun(folder / "one", 60, 1);
  ASSERT_OK_AND_ASSIGN(const std::string page, MakeReport({folder / "one"}));
  EXPECT_THAT(page, Not(HasSubstr("document.title='owned'</script>")));
  EXPECT_THAT(page, Not(HasSubstr("<img src=x>")));
  ASSERT_OK_AND_ASSIGN(const rapidjson::Document data, ParseJsonLine(DataOf(page)));
  EXPECT_EQ(data["runs"].Size(), 1u);
  EXPECT_EQ(data["runs"][0]["steps"].Size(), 60u);
  EXPECT_EQ(data["samples"].Size(), 5u);
  EXPECT_STREQ(data["samples"][0]["step"].GetString(), "1");
  EXPECT_STREQ(data["samples"][4]["step"].GetString(), "60");
  EXPECT_EQ(data["samples"][4]["episodes"].Size(), 30u);
  EXPECT_STREQ(data["samples"][4]["total"].GetString(), "300");
  // One opening and one closing tag for each of the page's own three scripts, no more.
  size_t scripts = 0;
  for (size_t at = page.find("</script"); at != std::string::npos;
       at = page.find("</script", at + 1)) {
    ++scripts;
  }
  EXPECT_EQ(scripts, 3u);
}

TEST(Report, TenThousandStepsStaySmall) {
  std::vector<StepMetrics> steps;
  RandomStream random(3);
  for (int64_t step = 1; step <= 10000; ++step) steps.push_back(MadeUpStep(step, 10000, random));
  const std::string json = CurvesJson(steps, 2000);
  EXPECT_LT(json.size(), 3u << 20);
  ASSERT_OK_AND_ASSIGN(const rapidjson::Document data, ParseJsonLine(fmt::format("{{{}}}", json)));
  EXPECT_EQ(data["steps"].Size(), 2000u);
  const auto& reward = data["series"]["rollout/raw_reward"];
  for (rapidjson::SizeType i = 0; i < 2000; ++i) {
    double mean = 0, low = INFINITY, high = -INFINITY;
    for (size_t k = 0; k < 5; ++k) {
      const double value = *steps[i * 5 + k].Find(metric::kRawReward);
      mean += value / 5;
      low = std::min(low, value);
      high = std::max(high, value);
    }
    // 6 significant figures.
    EXPECT_NEAR(JsonDouble(reward["mean"][i]).value(), mean, 1e-6);
    EXPECT_NEAR(JsonDouble(reward["low"][i]).value(), low, 1e-6);
    EXPECT_NEAR(JsonDouble(reward["high"][i]).value(), high, 1e-6);
  }
}

TEST(Report, SamplesAreBounded) {
  const TempFolder folder;
  MakeRun(folder / "one", 10, 1);
  std::vector<EpisodeGroup> groups = RandomGroups(5, 4, 4);
  for (EpisodeGroup& group : groups) {
    for (Episode& episode : group.episodes) {
      for (Segment& segment : episode.samples[0].segments) {
        segment.token_ids.assign(20000, 8);
        if (segment.author != Author::kPolicy) continue;
        segment.logprobs.assign(20000, -0.5f);
        segment.versions.assign(20000, 1);
      }
    }
  }
  ASSERT_OK(WriteSamples(folder / "one", 10, groups, TestPieces));
  Put(RunPaths(folder / "one").samples_of(9), "damaged");
  ReportOptions options;
  options.max_sample_bytes = 2 << 20;
  ASSERT_OK_AND_ASSIGN(const std::string page, MakeReport({folder / "one"}, options));
  EXPECT_LT(page.size(), 3u << 20);
  ASSERT_OK_AND_ASSIGN(const rapidjson::Document data, ParseJsonLine(DataOf(page)));
  const auto& last = data["samples"][4];
  EXPECT_GT(last["episodes"].Size(), 0u);
  EXPECT_LT(last["episodes"].Size(), 16u);
  EXPECT_THAT(data["samples"][3]["problem"].GetString(), HasSubstr("damaged"));
}

// Moves the samples of a step under the name of an evaluation's.
void MakeEvalSamples(const std::string& run, int64_t step, const std::string& eval, uint64_t seed) {
  ASSERT_OK(WriteSamples(run, step, MadeUpGroups(seed), TestPieces));
  fs::rename(RunPaths(run).samples_of(step), RunPaths(run).eval_samples_of(step, eval));
}

TEST(Report, ShowsTheNewestSamplesOfEachEvaluation) {
  const TempFolder folder;
  const std::string run = folder / "one";
  MakeRun(run, 2, 1);
  MakeEvalSamples(run, 100, "greedy", 1);
  MakeEvalSamples(run, 20, "greedy", 2);
  MakeEvalSamples(run, 0, kAttack, 3);
  for (const char* name : {"a", "b", "c"}) MakeEvalSamples(run, 40, name, 4);
  MakeEvalSamples(run, 50, "broken", 5);
  Put(RunPaths(run).eval_samples_of(50, "broken"), "damaged");
  const auto evals = [&](const ReportOptions& options) {
    std::vector<std::string> found;
    const absl::StatusOr<std::string> page = MakeReport({run}, options);
    EXPECT_TRUE(page.ok()) << page.status();
    const absl::StatusOr<rapidjson::Document> data = ParseJsonLine(DataOf(*page));
    EXPECT_TRUE(data.ok()) << data.status();
    for (const auto& shown : (*data)["samples"].GetArray()) {
      const std::string name = shown["eval"].GetString();
      if (name.empty()) continue;
      found.push_back(
          fmt::format("{} {} {}", name, shown["step"].GetString(), shown["episodes"].Size()));
      EXPECT_EQ(shown["more"].GetBool(), options.episodes_per_step < 30 && name != "broken");
    }
    return found;
  };
  using testing::ElementsAre;
  EXPECT_THAT(evals({}), ElementsAre("greedy 100 30", "broken 50 0", "a 40 30", "b 40 30"));
  EXPECT_THAT(evals({.evals = 1, .episodes_per_step = 7}), ElementsAre("greedy 100 7"));
  EXPECT_THAT(evals({.evals = 9}), testing::Contains(SafeFileName(kAttack) + " 0 30"));
  EXPECT_THAT(evals({.evals = 0}), testing::IsEmpty());
}

TEST(Report, PiecesInsideACharacterAreShownWhole) {
  const TempFolder folder;
  fs::create_directories(folder / "samples");
  std::vector<EpisodeGroup> groups = RandomGroups(5, 1, 1);
  Segment& segment = groups[0].episodes[0].samples[0].segments[1];
  segment.token_ids = {1, 2, 3, 4, 5};
  segment.logprobs.assign(5, -1);
  segment.versions.assign(5, 1);
  const auto pieces = [](std::span<const int32_t> ids) {
    const std::vector<std::string> emoji = {"\xff", "\xf0\x9f", "\x98", "\x80z", "\xe2"};
    std::vector<std::string> out;
    for (size_t i = 0; i < ids.size(); ++i) out.push_back(ids.size() == 5 ? emoji[i] : "x");
    return out;
  };
  ASSERT_OK(WriteSamples(folder.path(), 1, groups, pieces));
  const std::string json =
      SamplesFileJson({.step = 1, .path = RunPaths(folder.path()).samples_of(1)}, {}, 1 << 20);
  EXPECT_THAT(
      json,
      HasSubstr("\"pieces\":[\"\xef\xbf\xbd\",\"\",\"\",\"\xf0\x9f\x98\x80z\",\"\xef\xbf\xbd\"]"));
}

TEST(Report, EmptyRunsAndWrongFolders) {
  const TempFolder folder;
  ASSERT_OK(RunDirectory::Create(folder / "new", "a: 1\n").status());
  EXPECT_FALSE(MakeReport({folder / "new"}).ok());
  Put(folder / "new/metrics.jsonl", "");
  EXPECT_TRUE(MakeReport({folder / "new"}).ok());
  EXPECT_FALSE(MakeReport({folder / "none"}).ok());
  EXPECT_FALSE(MakeReport({}).ok());
  EXPECT_FALSE(WriteReport({folder / "new"}, folder / "no/such/folder.html").ok());
}

std::string FindBrowser() {
  if (const char* named = std::getenv("ORRERY_BROWSER")) return named;
  for (const char* path :
       {"/usr/bin/chromium", "/usr/bin/google-chrome", "/usr/bin/chromium-browser"}) {
    if (fs::exists(path)) return path;
  }
  return "";
}

// The page as a browser has it after its scripts ran.
std::string DomOf(const std::string& browser, const std::string& page, const TempFolder& folder) {
  const std::string command = fmt::format(
      "timeout 120 {} --headless --no-sandbox --disable-gpu --user-data-dir={} "
      "--virtual-time-budget=10000 --dump-dom file://{} 2>/dev/null",
      browser, folder / "profile", page);
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::string dom;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) dom.append(buffer, n);
  ::pclose(pipe);
  return dom;
}

TEST(Report, ABrowserDrawsItAndRunsNothingOfTheSamples) {
  const std::string browser = FindBrowser();
  if (browser.empty()) GTEST_SKIP() << "no Chromium here (ORRERY_BROWSER names one)";
  const TempFolder folder;
  MakeRun(folder / "one", 60, 1);
  MakeRun(folder / "two", 3000, 2);
  MakeEvalSamples(folder / "one", 60, "greedy", 3);
  ASSERT_OK(WriteReport({folder / "one"}, folder / "one.html"));
  const std::string one = DomOf(browser, folder / "one.html", folder);
  EXPECT_THAT(one, HasSubstr("data-ready=\"16 charts, 30 samples\""));
  EXPECT_THAT(one, HasSubstr("<title>one</title>"));
  EXPECT_THAT(one, HasSubstr("greedy at 60</option>"));
  EXPECT_THAT(one, Not(HasSubstr("<img")));
  EXPECT_THAT(one, HasSubstr("class=\"segment policy\""));
  ASSERT_OK(WriteReport({folder / "one", folder / "two"}, folder / "both.html"));
  const std::string both = DomOf(browser, folder / "both.html", folder);
  EXPECT_THAT(both, HasSubstr("data-ready=\"17 charts, 30 samples\""));
  EXPECT_THAT(both, HasSubstr("<title>2 runs</title>"));
  // For a look at the pages: where this names a folder, they are left there.
  if (const char* keep = std::getenv("ORRERY_KEEP_REPORTS")) {
    for (const char* name : {"one.html", "both.html"}) {
      fs::copy_file(folder / name, fmt::format("{}/{}", keep, name),
                    fs::copy_options::overwrite_existing);
    }
  }
}

}  // namespace
}  // namespace orrery::run
