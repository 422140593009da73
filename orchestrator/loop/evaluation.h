// Accuracy of the current policy on a dataset: n samples a prompt, their mean score with a 95 %
// confidence interval, and pass@k.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "orchestrator/data/dataset.h"
#include "orchestrator/interfaces.h"

namespace orrery {

// An evaluation asks so many prompts, then hands over their groups, and so on.
inline constexpr int64_t kPromptsAtOnce = 512;

struct EvalTask {
  std::string name;
  int64_t every = 0;    // steps; 0: before the first and after the last only
  int64_t samples = 1;  // n
  uint64_t seed = 0;    // the run's
  std::unique_ptr<data::Dataset> dataset;
  std::unique_ptr<EpisodeRunner> runner;
  Grader* grader = nullptr;  // borrowed
};

struct EvalResult {
  int64_t prompts = 0;
  int64_t failed = 0;        // episodes without a score: they count nowhere
  double accuracy = 0;       // mean over prompts of the mean score
  double low = 0, high = 0;  // of the accuracy
  double truncated_ratio = 0;
  double response_len = 0;                            // mean
  std::vector<std::pair<int64_t, double>> pass_at_k;  // k = 1, 2, 4 ... n
};

// What becomes of the groups, in the dataset's order, once they are counted.
using EvalRecord = std::function<absl::Status(std::vector<EpisodeGroup>)>;

// Seeds depend on (run seed, prompt, sample) alone: two evaluations of equal weights are equal.
absl::StatusOr<EvalResult> Evaluate(const EvalTask& task, const EvalRecord& record = nullptr);

// Wilson's score interval at 95 % for `successes` of n, successes being a sum of scores in [0, 1].
std::pair<double, double> WilsonInterval(double successes, int64_t n);

// 1 - C(n - c, k) / C(n, k): the unbiased estimate of Chen et al. 2021, eq. 1.
double PassAtK(int64_t n, int64_t correct, int64_t k);

}  // namespace orrery
