// A run killed at random moments and resumed each time, against an uninterrupted one.
#pragma once

#include <random>

#include "tests/e2e/e2e_testing.h"

namespace orrery::e2e {

// Moments are drawn over the time that the uninterrupted run took, so that they hit start-up,
// sampling, training and the writing of checkpoints (one a step) alike.
inline void KillSeries(int kills, uint64_t seed) {
  constexpr int64_t kSteps = 12;
  TempFolder folder;
  const auto experiment = [&](const char* name) {
    const std::string path = SmallExperiment(folder, name, kSteps);
    Put(path, std::regex_replace(Get(path), std::regex("every: 2"), "every: 1"));
    return path;
  };
  const auto start = std::chrono::steady_clock::now();
  const Ended whole = Orrery({"run", experiment("whole")});
  ASSERT_EQ(whole.code, 0) << whole;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;

  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> moment(0, seconds.count() * 0.9);
  const std::string run = folder / "cut", file = experiment("cut");
  int killed = 0;
  for (int i = 0; i < 8 * kills && killed < kills; ++i) {
    // Where the kill came before the folder was a run, it begins anew.
    const bool begun = fs::exists(run + "/experiment.yaml");
    Process process(OrreryWords(begun ? Words{"resume", run} : Words{"run", file}));
    std::this_thread::sleep_for(std::chrono::duration<double>(moment(random)));
    process.Signal(SIGKILL);
    const Ended ended = process.Wait();
    if (ended.signal == SIGKILL) {
      ++killed;
      continue;
    }
    // It was done before: this series is complete, another one begins.
    ASSERT_EQ(ended.code, 0) << ended;
    ExpectSameRun(folder / "whole", run, kSteps);
    fs::remove_all(run);
  }
  EXPECT_EQ(killed, kills);
  if (!fs::exists(run + "/experiment.yaml")) {
    ASSERT_EQ(Orrery({"run", file}).code, 0);
  }
  const Ended rest = Orrery({"resume", run});
  ASSERT_EQ(rest.code, 0) << rest;
  ExpectSameRun(folder / "whole", run, kSteps);
}

}  // namespace orrery::e2e
