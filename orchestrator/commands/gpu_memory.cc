// What an experiment takes of a GPU, said by those who will take it.
#include "orchestrator/base/status.h"
#include "orchestrator/commands/gpu.h"

#ifndef ORRERY_HAVE_CUDA

namespace orrery::commands {

absl::StatusOr<plan::MemoryNeeds> NeedsOnGpu(const MemoryQuestion&, const kernels::DeviceLimits&) {
  return Precondition(
      "this binary was built without a CUDA toolkit and cannot plan for a GPU: install one (nvcc) "
      "and run ./orrery build, or set run.device: cpu");
}

int64_t GpuPageBytes() { return 1; }

}  // namespace orrery::commands

#else

#include <algorithm>
#include <bit>

#include "orchestrator/commands/gpu_options.h"
#include "rollout/cuda/cuda_pass_executor.h"
#include "trainer/batch_bounds.h"
#include "trainer/cuda/cuda_executor.h"

namespace orrery::commands {
namespace {

using kernels::cuda::Numerics;
using rollout::cuda::CudaExecutor;
using rollout::cuda::CudaOps;
using rollout::cuda::CudaPassExecutor;

constexpr int64_t kGraphNodeBytes = 4096;

// Graphs of a decode step: by rows (four or so an octave) and by octave of the longest context.
int64_t GraphBytes(const MemoryQuestion& q) {
  const auto octaves = [](int64_t n) {
    return static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(n, 1))));
  };
  const int64_t rows = 4 * octaves(q.experiment.rollout.max_running);
  const int64_t contexts = std::max<int64_t>(1, octaves(SequenceTokens(q)) - 8);
  const int64_t nodes = 12 * q.spec.num_layers + 8;
  return std::min(CudaExecutor::kMostGraphBytes, rows * contexts * nodes * kGraphNodeBytes);
}

int64_t WeightBytes(const MemoryQuestion& q) {
  return kernels::cuda::PagePool::RoundUp(model::WeightLayout(q.spec).num_elements *
                                          SizeOf(ToDType(q.experiment.model)));
}

void AddTraining(const MemoryQuestion& q, const kernels::DeviceLimits& gpu,
                 plan::MemoryNeeds* needs) {
  const model::WeightLayout layout(q.spec);
  const int64_t n = layout.num_elements;
  const trainer::TrainingBytes bytes = TrainingNeeds(q, gpu);
  if (HasReference(q)) needs->gpu.push_back({"reference weights", WeightBytes(q)});
  needs->gpu.push_back({"gradients, float32", 4 * n});
  needs->gpu.push_back({"trainer: tables, inputs, libraries",
                        bytes.fixed + bytes.inputs + trainer::DeviceOptimizer::TableBytes(layout)});
  needs->optimizer = {{"master weights, float32", 4 * n}, {"moments of AdamW, float32", 8 * n}};
  needs->staging = {{"master weights and moments on their way through",
                     trainer::DeviceOptimizer::StagingBytes(layout)}};
  needs->training = {{fmt::format("activations of a micro-batch of {} tokens",
                                  trainer::LargestMicroBatchRows(BoundsOf(q))),
                      bytes.activations},
                     {"gradients inside a block", bytes.block},
                     {"logits", bytes.logits},
                     {"workspaces of training kernels", bytes.workspaces()}};
}

}  // namespace

trainer::TrainingBytes TrainingNeeds(const MemoryQuestion& q, const kernels::DeviceLimits& gpu) {
  const configs::Experiment& e = q.experiment;
  trainer::CudaTrainingOptions options;
  options.numerics = NumericsOf(e);
  options.recompute = e.trainer.recompute == "block";
  std::vector<trainer::MicroBatch> micros = trainer::LargestMicroBatches(BoundsOf(q));
  // Routing that is replayed goes to the device with every row.
  const std::vector<uint8_t> routed(
      static_cast<size_t>(q.spec.num_moe_layers() * q.spec.experts_per_token * 4));
  if (!q.supervised && e.trainer.routing_replay != "none" && q.spec.has_moe()) {
    for (trainer::MicroBatch& micro : micros) {
      micro.routed_rows.assign(micro.token_ids.size(), routed.data());
      micro.routed_layers = static_cast<int32_t>(q.spec.num_moe_layers());
      micro.routed_top_k = static_cast<int32_t>(q.spec.experts_per_token);
      micro.routed_id_bytes = q.spec.expert_id_bytes();
    }
  }
  return trainer::CudaTrainingOps::DryRun(q.spec, ToDType(e.model), gpu, options, micros);
}

Numerics NumericsOf(const configs::Experiment& experiment) {
  return experiment.run.numerics == "fast" ? Numerics::kFast : Numerics::kExact;
}

rollout::cuda::CudaPassExecutorOptions EngineOptionsOf(const configs::Experiment& e,
                                                       const model::ModelSpec& spec) {
  rollout::cuda::CudaPassExecutorOptions options;
  options.scheduler.max_running = e.rollout.max_running;
  options.scheduler.prefill_chunk_tokens = e.rollout.prefill_chunk_tokens;
  options.scheduler.max_positions = spec.max_positions;
  options.scheduler.max_draws = std::max<int64_t>(e.rollout.samples_per_prompt, 1024);
  options.top_logprobs = std::min(e.rollout.top_logprobs, spec.vocab_size);
  options.numerics = NumericsOf(e);
  if (e.rollout.kv_dtype == "float8") options.kv_format = rollout::cuda::KvFormat::kFloat8;
  return options;
}

absl::Status CheckKvFormat(rollout::cuda::KvFormat format, const model::ModelSpec& spec,
                           kernels::DType dtype) {
  if (format == rollout::cuda::KvFormat::kModel) return absl::OkStatus();
  if (kernels::cuda::KvBlocks::Float8Fits(spec.heads, dtype)) return absl::OkStatus();
  return InvalidInput(
      "rollout.kv_dtype: float8 is for bfloat16 models with heads of 64 or 128 values and at "
      "most 8 query heads a key-value head; this one has heads of {} values and {} query heads "
      "each: set "
      "rollout.kv_dtype: auto",
      spec.heads.head_dim, spec.heads.group());
}

int64_t GpuPageBytes() { return kernels::cuda::PagePool::kPageBytes; }

absl::StatusOr<plan::MemoryNeeds> NeedsOnGpu(const MemoryQuestion& q,
                                             const kernels::DeviceLimits& gpu) {
  const kernels::DType dtype = ToDType(q.experiment.model);
  const rollout::cuda::CudaPassExecutorOptions engine = EngineOptionsOf(q.experiment, q.spec);
  RETURN_IF_ERROR(CheckKvFormat(engine.kv_format, q.spec, dtype));
  plan::MemoryNeeds needs;
  needs.gpu = plan::TakenUnasked(gpu.memory_bytes - gpu.free_bytes);
  needs.gpu.push_back({"weights", WeightBytes(q)});
  if (q.for_training) AddTraining(q, gpu, &needs);
  needs.gpu.push_back(
      {"engine: buffers of a step",
       CudaExecutor::BufferBytes(q.spec, dtype, gpu, CudaPassExecutor::ToOpsLimits(engine))});
  needs.gpu.push_back({"engine: CUDA graphs, at most", GraphBytes(q)});
  needs.kv = NeedsOfKv(q, CudaOps::KvBytes(q.spec, dtype, 1, engine.kv_format));
  return needs;
}

}  // namespace orrery::commands

#endif  // ORRERY_HAVE_CUDA
