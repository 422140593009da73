#include "orchestrator/commands/bench_shapes.h"

#include "orchestrator/base/status.h"

#ifndef ORRERY_HAVE_CUDA

namespace orrery::commands {
namespace {

absl::Status NotBuilt() {
  return Precondition(
      "this binary was built without a CUDA toolkit: install one (nvcc) and run ./orrery build");
}

}  // namespace

absl::Status BenchDecode(const ShapeBenchArguments&) { return NotBuilt(); }
absl::Status BenchPrefill(const ShapeBenchArguments&) { return NotBuilt(); }
absl::Status BenchPhase(const ShapeBenchArguments&) { return NotBuilt(); }
absl::Status BenchTrain(const ShapeBenchArguments&) { return NotBuilt(); }

}  // namespace orrery::commands

#else

#include <fmt/format.h>

#include <charconv>
#include <cstdio>

#include "orchestrator/base/file.h"
#include "orchestrator/commands/memory.h"
#include "rollout/cuda/decode_bench.h"
#include "rollout/cuda/rollout_bench.h"
#include "trainer/cuda/train_bench.h"
#include "trainer/model/known_shapes.h"

namespace orrery::commands {
namespace {

using rollout::cuda::Numerics;

Numerics ToNumerics(const ShapeBenchArguments& a) {
  return a.exact ? Numerics::kExact : Numerics::kFast;
}

rollout::cuda::KvFormat ToKvFormat(const ShapeBenchArguments& a) {
  return a.float8_kv ? rollout::cuda::KvFormat::kFloat8 : rollout::cuda::KvFormat::kModel;
}

// As the first line of a report says it.
std::string NumericsText(const ShapeBenchArguments& a) {
  return fmt::format("bfloat16{}, {} numerics", a.float8_kv ? ", float8 keys and values" : "",
                     a.exact ? "exact" : "fast");
}

absl::StatusOr<int64_t> ParseLength(std::string_view text, std::string_view place) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) {
    return InvalidInput("{}: '{}' is no length (a whole number from 1 on)", place, text);
  }
  return value;
}

// A number, or a file with one a line.
absl::StatusOr<std::vector<int64_t> > ReadLengths(const std::string& source) {
  if (const absl::StatusOr<int64_t> one = ParseLength(source, "--lengths"); one.ok()) {
    return std::vector<int64_t>{*one};
  }
  ASSIGN_OR_RETURN(const std::string text, ReadFile(source));
  std::vector<int64_t> lengths;
  size_t line = 1;
  for (size_t begin = 0; begin < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view word = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (word.empty()) continue;
    ASSIGN_OR_RETURN(const int64_t length, ParseLength(word, fmt::format("{}:{}", source, line)));
    lengths.push_back(length);
  }
  if (lengths.empty()) return InvalidInput("{}: no lengths in it", source);
  return lengths;
}

absl::Status CheckPositive(std::string_view option, int64_t value) {
  if (value >= 1) return absl::OkStatus();
  return InvalidInput("{} {}: at least 1", option, value);
}

absl::StatusOr<rollout::cuda::RolloutBenchReport> RunPhase(const ShapeBenchArguments& a,
                                                           std::vector<int64_t> lengths,
                                                           int64_t repeat) {
  RETURN_IF_ERROR(CheckPositive("--prompts", a.prompts));
  RETURN_IF_ERROR(CheckPositive("--samples", a.samples));
  RETURN_IF_ERROR(CheckPositive("--prompt-tokens", a.prompt_tokens));
  RETURN_IF_ERROR(CheckPositive("--max-running", a.max_running));
  RETURN_IF_ERROR(CheckPositive("--chunk-tokens", a.prefill_chunk_tokens));
  RETURN_IF_ERROR(CheckPositive("--repeat", repeat));
  if (a.kv_tokens < 0) return InvalidInput("--kv-tokens {}: at least 0", a.kv_tokens);
  if (a.swap_tokens < 0) return InvalidInput("--swap-tokens {}: at least 0", a.swap_tokens);
  ASSIGN_OR_RETURN(const model::ModelSpec spec, model::KnownShape(a.shape));
  rollout::cuda::RolloutBenchOptions options;
  options.prompts = a.prompts;
  options.samples = a.samples;
  options.prompt_tokens = a.prompt_tokens;
  options.lengths = std::move(lengths);
  options.repeat = repeat;
  options.max_running = a.max_running;
  options.prefill_chunk_tokens = a.prefill_chunk_tokens;
  options.kv_tokens = a.kv_tokens;
  options.swap_tokens = a.swap_tokens;
  options.numerics = ToNumerics(a);
  options.kv_format = ToKvFormat(a);
  return AsSettingsMistake(rollout::cuda::RunRolloutBench(spec, options));
}

void Print(const rollout::cuda::RolloutPhase& phase) {
  fmt::print(
      "{} tokens in {:.2f} s, {:.0f} tokens/s; {} steps, {} preemptions, last tenth of the "
      "responses {:.2f} s\n",
      phase.new_tokens, phase.seconds, phase.tokens_per_second(), phase.steps, phase.preemptions,
      phase.tail_seconds);
  if (phase.swaps > 0) {
    fmt::print("{} of the preemptions by swap: {:.2f} GB to the host, {:.2f} GB back\n",
               phase.swaps, static_cast<double>(phase.swapped_out_bytes) * 1e-9,
               static_cast<double>(phase.swapped_in_bytes) * 1e-9);
  }
}

}  // namespace

absl::Status BenchDecode(const ShapeBenchArguments& a) {
  if (a.batches.empty()) return InvalidInput("--batch: no batch sizes were given");
  for (const int64_t batch : a.batches) RETURN_IF_ERROR(CheckPositive("--batch", batch));
  RETURN_IF_ERROR(CheckPositive("--steps", a.steps));
  if (a.context <= a.steps / 2) {
    return InvalidInput("--context {}: the mean over {} steps needs more than {}", a.context,
                        a.steps, a.steps / 2);
  }
  ASSIGN_OR_RETURN(const model::ModelSpec spec, model::KnownShape(a.shape));
  rollout::cuda::DecodeBenchOptions options;
  options.batches = a.batches;
  options.context = a.context;
  options.steps = a.steps;
  options.numerics = ToNumerics(a);
  options.kv_format = ToKvFormat(a);
  ASSIGN_OR_RETURN(const rollout::cuda::DecodeBenchReport report,
                   AsSettingsMistake(rollout::cuda::RunDecodeBench(spec, options)));
  fmt::print("{}, {}, mean context {}; copy ceiling {:.2f} TB/s\n", a.shape, NumericsText(a),
             a.context, report.copy_bytes_per_second * 1e-12);
  fmt::print("{:>6} {:>9} {:>10} {:>9} {:>8} {:>10} {:>7}\n", "batch", "ms/step", "tokens/s",
             "experts", "GB/step", "roof tok/s", "share");
  for (const rollout::cuda::DecodeBenchResult& r : report.results) {
    fmt::print("{:>6} {:>9.3f} {:>10.0f} {:>9.1f} {:>8.2f} {:>10.0f} {:>6.1f}%\n", r.batch,
               r.step_ms, r.tokens_per_second, r.experts_touched, r.bytes * 1e-9,
               r.roof_tokens_per_second, 100 * r.share());
  }
  return absl::OkStatus();
}

absl::Status BenchPrefill(const ShapeBenchArguments& a) {
  ShapeBenchArguments prompts_only = a;
  prompts_only.samples = 1;
  ASSIGN_OR_RETURN(const rollout::cuda::RolloutBenchReport report,
                   RunPhase(prompts_only, {1}, a.prefills));
  const double tokens = static_cast<double>(a.prompts * a.prompt_tokens);
  fmt::print("{}, {}: {} x {} prompt tokens; the first time also loads kernels\n", a.shape,
             NumericsText(a), a.prompts, a.prompt_tokens);
  for (const rollout::cuda::RolloutPhase& phase : report.phases) {
    fmt::print("{:.3f} s, {:.0f} tokens/s\n", phase.seconds, tokens / phase.seconds);
  }
  return absl::OkStatus();
}

absl::Status BenchPhase(const ShapeBenchArguments& a) {
  ASSIGN_OR_RETURN(std::vector<int64_t> lengths, ReadLengths(a.lengths));
  ASSIGN_OR_RETURN(const rollout::cuda::RolloutBenchReport report,
                   RunPhase(a, std::move(lengths), a.phases));
  fmt::print("{}, {}: {} x {} responses to prompts of {} tokens\n", a.shape, NumericsText(a),
             a.prompts, a.samples, a.prompt_tokens);
  fmt::print("ready in {:.2f} s, first token {:.1f} ms after that\n", report.load_seconds,
             report.first_token_seconds * 1e3);
  for (const rollout::cuda::RolloutPhase& phase : report.phases) Print(phase);
  return absl::OkStatus();
}

absl::Status BenchTrain(const ShapeBenchArguments& a) {
  RETURN_IF_ERROR(CheckPositive("--micro-batches", a.micro_batches));
  RETURN_IF_ERROR(CheckPositive("--sequence-tokens", a.sequence_tokens));
  RETURN_IF_ERROR(CheckPositive("--micro-batch-tokens", a.micro_batch_tokens));
  ASSIGN_OR_RETURN(model::ModelSpec spec, model::KnownShape(a.shape));
  if (a.layers < 0 || a.layers > spec.num_layers) {
    return InvalidInput("--layers {}: the shape has {}", a.layers, spec.num_layers);
  }
  if (a.sequence_tokens > spec.max_positions) {
    return InvalidInput("--sequence-tokens {}: the shape's context is {}", a.sequence_tokens,
                        spec.max_positions);
  }
  if (a.layers > 0) spec = model::FirstLayers(std::move(spec), a.layers);
  trainer::TrainBenchOptions options;
  options.micro_batch_tokens = a.micro_batch_tokens;
  options.sequence_tokens = a.sequence_tokens;
  options.micro_batches = a.micro_batches;
  options.recompute = a.recompute;
  options.numerics = ToNumerics(a);
  ASSIGN_OR_RETURN(const trainer::TrainBenchReport report,
                   AsSettingsMistake(trainer::RunTrainBench(spec, options)));
  fmt::print(
      "{}, {} layers, bfloat16, {} numerics{}: {} micro-batches of {} tokens in sequences of {}\n",
      a.shape, spec.num_layers, a.exact ? "exact" : "fast", a.recompute ? ", recompute" : "",
      a.micro_batches, a.micro_batch_tokens, a.sequence_tokens);
  fmt::print(
      "{:.3f} s a step, {:.0f} tokens/s, {:.1f} TFLOP/s of the model: {:.1f}% of the matmul "
      "ceiling {:.0f} TFLOP/s; {:.2f} GB taken on the device, {:.2f} GB planned\n",
      report.step_seconds, report.tokens_per_second,
      report.model_flops / report.step_seconds * 1e-12, 100 * report.mfu(),
      report.ceiling_flops_per_second * 1e-12, report.memory_bytes * 1e-9,
      report.planned_bytes * 1e-9);
  return absl::OkStatus();
}

}  // namespace orrery::commands

#endif  // ORRERY_HAVE_CUDA
