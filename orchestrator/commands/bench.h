// What `orrery bench` measures and how it is printed. Runs the real path of an experiment (session,
// runner, engine, grader, batcher, trainer) a number of times over the same prompts and shapes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "orchestrator/commands/commands.h"

namespace orrery::commands {

enum class BenchKind : uint8_t { kRollout, kStep };

struct BenchArguments {
  RunArguments run;
  int64_t repeat = 5;  // measured runs; one more goes before them
  bool json = false;   // one line for programs instead of the text
};

// rollout: sampling alone, in tokens a second. step: a whole step of training, by its parts.
absl::Status Bench(BenchKind kind, const BenchArguments& arguments);

// One measured run, in seconds; parts that were not run are 0.
struct BenchRun {
  double rollout = 0, reward = 0, train = 0, sync = 0, other = 0;
  int64_t prompt_tokens = 0;     // of all prompts, each counted once
  int64_t generated_tokens = 0;  // sampled
  double total() const { return rollout + reward + train + sync + other; }
};

// What all runs have in common.
struct BenchSetting {
  BenchKind kind = BenchKind::kRollout;
  std::string model, dtype, machine;
  int64_t threads = 0, prompts = 0, samples = 0;
};

// The middle value, or the mean of the middle two. REQUIRES: not empty.
double Median(std::vector<double> values);
std::string BenchText(const BenchSetting& setting, const std::vector<BenchRun>& runs);
std::string BenchJson(const BenchSetting& setting, const std::vector<BenchRun>& runs);

}  // namespace orrery::commands
