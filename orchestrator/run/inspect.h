// `orrery inspect`: recorded samples in the terminal.
//
// What a model wrote may hold control characters; none of it reaches the terminal unescaped.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "orchestrator/run/console.h"
#include "orchestrator/run/samples.h"

namespace orrery::run {

struct SampleFilter {
  std::optional<int64_t> step;      // the last recorded one where not given
  std::optional<std::string> eval;  // of this evaluation; otherwise of training
  std::optional<double> min_reward;
  std::optional<double> max_reward;
  std::optional<FinishReason> finish_reason;
  std::optional<uint64_t> group_id;
  std::string text;           // in the prompt's or the policy's or a tool's words, case and all
  int64_t limit = 10;         // 0: all
  bool top_logprobs = false;  // show them, a line a token
};

// Whether the filter, but for step and limit, lets the episode through. Failed episodes have no
// reward, so a bound on it leaves them out.
bool Matches(const SampleFilter& filter, const RecordedEpisode& recorded);

// Line breaks and tabs stay; other control characters (C0, DEL, C1) become \xNN, broken UTF-8
// becomes U+FFFD.
std::string ForTerminal(std::string_view text);

// `path` is a run directory or a samples file. Prints what matches and one line that counts it;
// returns how many matched.
absl::StatusOr<int64_t> PrintSamples(const std::string& path, const SampleFilter& filter,
                                     const ConsoleTraits& traits, std::FILE* out);

}  // namespace orrery::run
