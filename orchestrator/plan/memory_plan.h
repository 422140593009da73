// What an experiment takes of the GPU's memory and the host's, decided before anything is
// allocated: whoever allocates says what it will take (MemoryNeeds), Decide fits it into the
// machine, and the same plan is printed by `orrery plan` and obeyed, or refused, by a run.
//
// Where not everything fits at once, in this order, as far as is needed:
//   1. the KV cache gives its memory to the trainer's activations while it trains, and takes it
//      back: the larger of the two counts, not their sum;
//   2. the KV cache is smaller than every running sequence could want, at least a quarter of that;
//   3. master weights and moments lie in pinned memory of the host;
//   4. the KV cache shrinks to a single sequence.
// Pure functions. Bytes throughout.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace orrery::plan {

struct Item {
  std::string name;
  int64_t bytes = 0;
};

int64_t Sum(const std::vector<Item>& items);

enum class Offload : uint8_t { kAuto, kNever, kAlways };

struct KvNeeds {
  int64_t block_bytes = 0, block_tokens = 16;
  int64_t wanted = 0;  // blocks with which no running sequence ever waits
  int64_t least = 1;   // blocks of one sequence
  bool fixed = false;  // the experiment says how many: all or nothing
  int64_t swap = 0;    // blocks of the host's memory, pinned with a GPU, for preempted sequences
};

struct MemoryNeeds {
  // Of the device that computes; empty where that is the host.
  std::vector<Item> gpu;        // always there
  std::vector<Item> optimizer;  // master weights and moments
  std::vector<Item> staging;    // what the GPU holds of them where they lie on the host
  std::vector<Item> training;   // activations and the like: nothing of it outlives a step
  std::vector<Item> host;
  std::vector<Item> samples;  // of the host: those of steps that are made, learnt from, written
  bool refills = false;       // algorithm.max_refills makes most of them
  std::vector<Item> saving;   // of the host, where the optimizer's state lies on the GPU
  KvNeeds kv;                 // on the GPU, or else on the host
  Offload offload = Offload::kAuto;
};

struct MemoryLimits {
  std::string gpu_name;  // empty: the host computes
  int64_t gpu_bytes = 0;
  int64_t gpu_spare_bytes = 0;  // of these, to leave free
  int64_t gpu_page_bytes = 1;   // KV takes whole pages
  int64_t host_bytes = 0;
};

// What a GPU has, in bytes; some are left free for what the driver takes unasked.
MemoryLimits LimitsOfGpu(int architecture, int64_t memory_bytes, int64_t page_bytes);
// What every process has of it: what was taken before, and code as the driver loads it.
std::vector<Item> TakenUnasked(int64_t taken_bytes);

struct MemoryPlan {
  MemoryNeeds needs;
  MemoryLimits limits;
  int64_t kv_blocks = 0;
  bool kv_lends = false;   // its memory to the trainer, while it trains
  bool offloaded = false;  // the optimizer's state, to the host

  bool on_gpu() const { return !limits.gpu_name.empty(); }
  int64_t kv_bytes() const;
  int64_t gpu_bytes() const;  // at most, at any time
  int64_t host_bytes() const;
  bool fits_gpu() const;
  bool fits_host() const;
};

MemoryPlan Decide(const MemoryNeeds& needs, const MemoryLimits& limits);

// ResourceExhausted, with what is taken and which settings change it.
absl::Status CheckFits(const MemoryPlan& plan);
// The same of a plan that no experiment decides; fix: what to change.
absl::Status CheckFits(const MemoryPlan& plan, std::string_view fix);

// One line for the journal: totals, and what gave way.
std::string Summary(const MemoryPlan& plan);

// For people: every part, totals, and the verdict.
std::string PlanText(const MemoryPlan& plan);

}  // namespace orrery::plan
