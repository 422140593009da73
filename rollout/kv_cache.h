// Paged keys and values of all layers, in blocks of 16 positions. Blocks are counted references:
// sequences that share a prompt share its blocks. All memory is taken at construction. The engine's
// thread alone calls; kernels read and write blocks that their batch holds.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention/attention.h"
#include "trainer/model/model_spec.h"

namespace orrery::rollout {

class KvCache {
 public:
  KvCache(const model::ModelSpec& spec, int64_t num_blocks);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  int64_t num_blocks() const { return num_blocks_; }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  // Bytes a block takes over all layers.
  static int64_t BlockBytes(const model::ModelSpec& spec);

  // A block with one reference, or -1 where none is free.
  int32_t Allocate();
  void Retain(int32_t block);
  void Release(int32_t block);
  int32_t references(int32_t block) const { return references_[block]; }

  kernels::KvBlocks Layer(int64_t layer) const;

 private:
  kernels::HeadShape heads_;
  int64_t num_blocks_;
  int64_t layer_elements_;  // of keys, and again of values
  int64_t num_layers_;
  float* memory_;
  std::vector<int32_t> free_;  // a stack: the lowest block first, at the start
  std::vector<int32_t> references_;
};

}  // namespace orrery::rollout
