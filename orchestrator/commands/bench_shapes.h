// `orrery bench decode`, `prefill`, `phase` and `train`: speed of the rollout engine, and of the
// trainer, on the GPU at hand for the shape of a public model, with random weights.
// FailedPrecondition where there is no GPU or the binary was built without a CUDA toolkit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace orrery::commands {

struct ShapeBenchArguments {
  std::string shape = "qwen3-30b-a3b";
  bool exact = false;  // exact numerics in place of fast ones
  bool float8_kv = false;

  // decode: steps of one token a sequence around a mean context.
  std::vector<int64_t> batches = {1, 8, 64, 256, 512};
  int64_t context = 1024, steps = 128;

  // phase: prompts x samples with responses of given lengths. prefill: prompts alone.
  int64_t prompts = 256, samples = 8, prompt_tokens = 100;
  std::string lengths = "256";  // a number, or a file with one a line
  int64_t max_running = 2048, prefill_chunk_tokens = 4096;
  int64_t kv_tokens = 0, swap_tokens = 0;
  int64_t prefills = 3, phases = 1;  // times that each is measured

  // train: packed sequences of one length. layers: 0: all of the shape's.
  int64_t layers = 0, micro_batch_tokens = 16384, sequence_tokens = 2048, micro_batches = 4;
  bool recompute = false;
};

absl::Status BenchDecode(const ShapeBenchArguments& arguments);
absl::Status BenchPrefill(const ShapeBenchArguments& arguments);
absl::Status BenchPhase(const ShapeBenchArguments& arguments);
absl::Status BenchTrain(const ShapeBenchArguments& arguments);

}  // namespace orrery::commands
