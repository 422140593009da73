// How much of a KV cache one response needs to run alone. The scheduler admits requests by it, and
// a session asks it before a run begins, so that what is refused later is refused at the start.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention/attention.h"

namespace orrery::rollout {

// Blocks that hold so many tokens.
inline int64_t BlocksFor(int64_t tokens) {
  return (tokens + kernels::kBlockTokens - 1) / kernels::kBlockTokens;
}

// Tokens of a prompt and the longest response to it. REQUIRES: prompt <= max_positions.
inline int64_t LongestSequence(int64_t prompt, int64_t max_new_tokens, int64_t max_positions) {
  return prompt + std::min(max_new_tokens, max_positions - prompt);
}

// Blocks with which a sequence of so many tokens runs alone. The prompt's last block exists twice:
// the prompt's own and the response's copy.
inline int64_t BlocksToRunAlone(int64_t tokens) { return BlocksFor(tokens) + 1; }

}  // namespace orrery::rollout
