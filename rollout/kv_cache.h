// Paged keys and values of all layers in the host's memory, in blocks of 16 positions, and the pool
// that says which blocks are in use. All memory is taken at construction. The engine's thread alone
// calls; kernels read and write blocks that their batch holds.
#pragma once

#include "kernels/attention/attention.h"
#include "rollout/block_pool.h"
#include "trainer/model/model_spec.h"

namespace orrery::rollout {

class KvCache : public BlockPool {
 public:
  KvCache(const model::ModelSpec& spec, int64_t num_blocks);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  // Bytes a block takes over all layers.
  static int64_t BlockBytes(const model::ModelSpec& spec);

  kernels::KvBlocks Layer(int64_t layer) const;

 private:
  kernels::HeadShape heads_;
  int64_t layer_elements_;  // of keys, and again of values
  int64_t num_layers_;
  float* memory_;
};

}  // namespace orrery::rollout
