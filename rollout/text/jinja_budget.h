// What one rendering of a template may consume. Templates come with checkpoints from strangers: one
// that loops for ever, doubles a string or nests without end becomes an error, never a hang or an
// exhausted process. One Budget belongs to one rendering on one thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "orchestrator/base/status.h"

namespace orrery::rollout::jinja {

// Far above any real conversation: a million characters through Qwen3.5's template take about ten
// megabytes of strings and some ten thousand steps.
struct Limits {
  int64_t max_steps = 20'000'000;             // evaluated nodes, and bytes of work / 64
  size_t max_allocated_bytes = 256ULL << 20;  // all strings and lists made, freed ones included
  size_t max_output_bytes = 64ULL << 20;
  int max_depth = 400;  // nesting of evaluation, macro calls included
};

// Nesting of lists and mappings: their printing, comparison and destruction recurse.
inline constexpr int kMaxValueDepth = 200;

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}

  absl::Status Step(int64_t steps = 1) {
    steps_ += steps;
    if (steps_ <= limits_.max_steps) return absl::OkStatus();
    return Exhausted(
        "the template takes more than {} steps: a loop without end, or a hostile template",
        limits_.max_steps);
  }

  // Reading `bytes` of text.
  absl::Status Scan(size_t bytes) { return Step(static_cast<int64_t>(bytes / 64)); }

  // Making `bytes` of strings or list elements. Never given back: the sum bounds time as well.
  absl::Status Allocate(size_t bytes) {
    allocated_ += bytes;
    if (allocated_ <= limits_.max_allocated_bytes) return Scan(bytes);
    return Exhausted("the template makes more than {} bytes of text and lists",
                     limits_.max_allocated_bytes);
  }

  const Limits& limits() const { return limits_; }

  // One level of recursion, for the life of the object.
  class Nested {
   public:
    explicit Nested(Budget& budget) : budget_(budget) { ++budget_.depth_; }
    ~Nested() { --budget_.depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;
    absl::Status Check() const {
      if (budget_.depth_ <= budget_.limits_.max_depth) return absl::OkStatus();
      return Exhausted(
          "evaluation nests deeper than {} levels: a macro that calls itself without end?",
          budget_.limits_.max_depth);
    }

   private:
    Budget& budget_;
  };

 private:
  const Limits limits_;
  int depth_ = 0;
  int64_t steps_ = 0;
  size_t allocated_ = 0;
};

}  // namespace orrery::rollout::jinja
