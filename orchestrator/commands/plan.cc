// `orrery plan`: what an experiment takes of the machine's memory, and whether it fits.
#include <cstdio>

#include "configs/checks.h"
#include "configs/yaml.h"
#include "orchestrator/base/status.h"
#include "orchestrator/commands/commands.h"
#include "orchestrator/commands/session.h"

namespace orrery::commands {
namespace {

// The machine's own GPU, or one of the tables in its place.
absl::StatusOr<std::optional<kernels::DeviceLimits>> ChooseGpu(const PlanArguments& arguments,
                                                               configs::Experiment* experiment) {
  const bool asked = !arguments.gpu.empty() || arguments.device_memory > 0;
  const bool here = GpuAtHand().ok();
  if (experiment->run.device == "cpu" && !asked) return std::nullopt;
  if (experiment->run.device == "auto" && !asked && !here) return std::nullopt;
  experiment->run.device = "cuda";
  if (!arguments.gpu.empty() || !here) {
    ASSIGN_OR_RETURN(
        const kernels::DeviceLimits gpu,
        GpuOfTable(arguments.gpu.empty() ? "h200" : arguments.gpu, arguments.device_memory));
    return gpu;
  }
  ASSIGN_OR_RETURN(kernels::DeviceLimits gpu, GpuAtHand());
  if (arguments.device_memory > 0) {
    const int64_t taken = gpu.memory_bytes - gpu.free_bytes;
    gpu.memory_bytes = arguments.device_memory;
    gpu.free_bytes = std::max<int64_t>(0, gpu.memory_bytes - taken);
  }
  return gpu;
}

}  // namespace

absl::Status Plan(const PlanArguments& arguments) {
  ASSIGN_OR_RETURN(configs::Experiment experiment,
                   configs::LoadExperiment(arguments.run.file, arguments.run.overrides));
  RETURN_IF_ERROR(arguments.supervised ? configs::CheckForSft(experiment)
                                       : configs::CheckForTraining(experiment));
  ASSIGN_OR_RETURN(const auto gpu, ChooseGpu(arguments, &experiment));
  SessionOptions options;
  options.supervised = arguments.supervised;
  ASSIGN_OR_RETURN(const plan::MemoryPlan plan, PlanSession(experiment, options, gpu));
  std::fputs(plan::PlanText(plan).c_str(), stdout);
  return AsSettingsMistake(plan::CheckFits(plan));
}

}  // namespace orrery::commands
