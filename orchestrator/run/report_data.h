// The two bulky parts of a report's data, as JSON for a <script> element (see report.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/run/metrics.h"
#include "orchestrator/run/report.h"

namespace orrery::run {

// A number for a picture: 6 significant figures, null for what is not finite.
void AppendPictureNumber(std::string* out, double value);

// "bucket":N,"steps":[..],"series":{"name":{"mean":[..],"low":[..],"high":[..]}}; low and high only
// where a point stands for several steps.
std::string CurvesJson(const std::vector<StepMetrics>& steps, int64_t max_points);

// A samples file to show.
struct ShownSamples {
  int64_t run = 0;
  int64_t step = 0;
  std::string path;
  std::string eval;  // of this evaluation; empty: of the rollout
  double total = 0;  // episodes that it holds, where known
};

// {"run":R,"step":N,"eval":"..","total":T,"more":true,"problem":"..","episodes":[..]}; "more":
// episodes were left out. `budget` is the number of bytes that may be spent.
std::string SamplesFileJson(const ShownSamples& shown, const ReportOptions& options,
                            int64_t budget);

}  // namespace orrery::run
