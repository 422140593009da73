// Passes on the CPU, one at a time, over a WeightStore that a trainer may write between passes.
//
// A pass is cut into shards of rows. With a small model each shard runs the whole forward pass on
// one thread (one meeting point a pass); a large model runs one shard whose operators use all
// threads. Neither changes a bit of any result.
#pragma once

#include <memory>
#include <vector>

#include "rollout/inference_ops.h"
#include "rollout/pass_executor.h"

namespace orrery::rollout {

struct CpuExecutorOptions {
  int64_t kv_blocks = 0;
  int64_t max_positions = 0;
  // Up to this many bytes of weights a core holds them close: shards run the whole pass alone.
  int64_t sharded_model_bytes = 16 << 20;
  int64_t swap_blocks = 0;  // set aside for what is preempted
};

class CpuExecutor : public PassExecutor {
 public:
  // Borrowed: weights, committed.
  CpuExecutor(const model::WeightStore* weights, const CpuExecutorOptions& options);

  const model::ModelSpec& spec() const override { return weights_.spec(); }
  BlockPool* pool() override { return &cache_; }
  PolicyVersion version() const override { return weights_.version(); }
  absl::Status TakeWeights(PolicyVersion version) override;
  absl::Status Admit(const GenerationRequest&) const override { return absl::OkStatus(); }
  void Swap(std::span<const KvSwap> swaps) override;
  int64_t BlockBytes() const override { return KvCache::BlockBytes(spec()); }
  int depth() const override { return 1; }
  void Launch(std::span<const Work> pass, std::span<const Draw> draws,
              const Copies& copies) override;
  PassResult Collect() override { return std::move(result_); }

 private:
  // Rows of one shard, ready for Forward.
  struct Shard {
    std::vector<size_t> work;  // indices in the pass
    int64_t first_row = 0;     // of the pass
    std::vector<int32_t> token_ids, positions, slots;
    std::vector<kernels::SequenceSpan> spans;
    std::vector<int32_t> logit_rows;  // one a Work that samples
    std::vector<size_t> draws;        // indices in the pass's draws
  };
  std::vector<Shard> CutIntoShards(std::span<const Work> pass, std::span<const Draw> draws) const;
  void FillShard(std::span<const Work> pass, Shard* shard) const;
  // The experts of the shard's rows into the pass's result.
  void TakeRoutedExperts(const Shard& shard, const InferenceOps& ops);
  void RunShard(std::span<const Work> pass, std::span<const Draw> draws, Shard* shard,
                InferenceOps* ops);

  const model::WeightStore& weights_;
  const CpuExecutorOptions options_;
  const kernels::RopeTable rope_;
  KvCache cache_;
  std::unique_ptr<KvCache> swapped_;                // where there is any
  std::vector<std::unique_ptr<InferenceOps>> ops_;  // one a shard
  PassResult result_;                               // of the last pass
};

}  // namespace orrery::rollout
