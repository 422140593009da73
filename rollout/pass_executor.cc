#include "rollout/pass_executor.h"

#include <algorithm>

#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"

namespace orrery::rollout {

int64_t MostTopLogprobs(std::span<const Draw> draws) {
  int64_t most = 0;
  for (const Draw& draw : draws) most = std::max(most, draw.request->what.top_logprobs);
  return most;
}

bool WantsRoutedExperts(std::span<const Work> pass) {
  return std::any_of(pass.begin(), pass.end(),
                     [](const Work& w) { return w.request->what.return_routed_experts; });
}

absl::Status CheckHolds(const model::WeightStore& store, PolicyVersion version) {
  if (store.in_update() || store.version() != version) {
    return Precondition("weights of version {} were announced, the store holds version {}{}",
                        version, store.version(), store.in_update() ? ", half written" : "");
  }
  return absl::OkStatus();
}

void PassExecutor::Swap(std::span<const KvSwap> swaps) {
  CHECK(swaps.empty()) << "this executor has no memory to swap to";
}

}  // namespace orrery::rollout
