// The commands of the orrery binary, one function each. main.cc reads the command line into their
// arguments and turns the status into the exit code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "orchestrator/run/inspect.h"

namespace orrery::commands {

// How a long command ended; an error is a status.
enum class Ending : uint8_t { kDone, kInterrupted };

struct RunArguments {
  std::string file;                    // the experiment
  std::vector<std::string> overrides;  // key=value
};
absl::StatusOr<Ending> Run(const RunArguments& arguments);
absl::StatusOr<Ending> Sft(const RunArguments& arguments);
// Continues the run in `directory`, whichever of the two it is.
absl::StatusOr<Ending> Resume(const std::string& directory);

struct EvalArguments {
  RunArguments run;
  std::string checkpoint;  // instead of model.path
  std::string samples;     // folder for them; empty: they are not written
};
absl::Status Eval(const EvalArguments& arguments);

struct PlanArguments {
  RunArguments run;
  bool supervised = false;    // as `orrery sft` would run it
  int64_t device_memory = 0;  // bytes of the GPU; 0: what it has
  std::string gpu;            // h200, b200, rubin; empty: the one at hand
};
// InvalidInput where it does not fit.
absl::Status Plan(const PlanArguments& arguments);

absl::Status PrintConfig(const RunArguments& arguments, bool explain);
absl::Status Plot(const std::vector<std::string>& directories,
                  const std::vector<std::string>& metrics, const std::string& html,
                  const std::string& svg);
absl::Status Inspect(const std::string& path, const run::SampleFilter& filter);
// Re-grades a samples file (or all of a run) with the rewards of an experiment.
absl::Status Score(const std::string& path, const RunArguments& arguments);
// A recorded step again from the checkpoint before it: its training, or with `rollout` its
// sampling. An error where it is not bitwise equal.
absl::Status Replay(const std::string& directory, int64_t step, bool rollout);
// text: standard input where there is none; an empty one is a text.
absl::Status Tokenize(const std::string& model, const std::optional<std::string>& text,
                      bool decode);
absl::Status TrainTokenizer(const RunArguments& arguments, int64_t vocab_size,
                            const std::string& folder);
absl::Status Import(const std::string& file, const std::string& folder, const std::string& dtype,
                    const std::string& tokenizer);
absl::Status Doctor();

}  // namespace orrery::commands
