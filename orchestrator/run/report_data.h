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

// {"run":R,"step":N,"total":T,"problem":"..","episodes":[..]}. `budget` is the number of bytes that
// may still be spent, and is reduced.
std::string SampleStepJson(const std::string& run_directory, int64_t run, int64_t step,
                           double total, const ReportOptions& options, int64_t* budget);

}  // namespace orrery::run
