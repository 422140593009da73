// report.html: the curves of one or several runs and a browser for their samples, in one file that
// needs no network and no server.
//
// Bounded whatever the run: a curve has at most `max_points` points (means with a band from least
// to greatest beyond that), and samples stop at `max_sample_bytes`. Text of a run enters the page
// as escaped JSON and leaves it through textContent only; a content security policy forbids the
// rest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orrery::run {

struct ReportOptions {
  int64_t max_points = 1000;
  // Steps whose samples are shown: the first recorded one and the last of each run.
  int64_t sample_steps = 5;
  // Evaluations whose newest samples are shown, of each run.
  int64_t evals = 4;
  int64_t episodes_per_step = 128;
  int64_t max_segment_bytes = 32 << 10;
  int64_t max_sample_bytes = 12 << 20;  // of all samples together
  int64_t max_events = 200;             // the last ones
};

// The page. Directories without a readable metrics.jsonl are errors; a samples file that cannot be
// read is said so in the page.
absl::StatusOr<std::string> MakeReport(const std::vector<std::string>& run_directories,
                                       const ReportOptions& options = {});

// MakeReport into `path`, atomically.
absl::Status WriteReport(const std::vector<std::string>& run_directories, const std::string& path,
                         const ReportOptions& options = {});

}  // namespace orrery::run
