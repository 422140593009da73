#include "rollout/kv_cache.h"

#include <sys/mman.h>

#include "orchestrator/base/check.h"

namespace orrery::rollout {

KvCache::KvCache(const model::ModelSpec& spec, int64_t num_blocks)
    : BlockPool(num_blocks),
      heads_(spec.heads),
      layer_elements_(kernels::KvBlocks::NumElements(spec.heads, num_blocks)),
      num_layers_(spec.num_layers) {
  const int64_t bytes = 2 * num_layers_ * layer_elements_ * static_cast<int64_t>(sizeof(float));
  // Fresh pages are zero, and attention needs unwritten values to be finite.
  void* memory = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED) << "cannot map " << bytes << " bytes of KV cache";
  (void)::madvise(memory, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // where there are any
  memory_ = static_cast<float*>(memory);
}

KvCache::~KvCache() {
  ::munmap(memory_, static_cast<size_t>(2 * num_layers_ * layer_elements_) * sizeof(float));
}

int64_t KvCache::BlockBytes(const model::ModelSpec& spec) {
  return 2 * spec.num_layers * kernels::KvBlocks::NumElements(spec.heads, 1) *
         static_cast<int64_t>(sizeof(float));
}

kernels::KvBlocks KvCache::Layer(int64_t layer) const {
  float* k = memory_ + 2 * layer * layer_elements_;
  return {k, k + layer_elements_, num_blocks()};
}

}  // namespace orrery::rollout
