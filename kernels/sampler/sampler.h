// Draws one token from a row of logits.
//
// The log-prob it reports is of the unfiltered distribution at the sampling temperature
// (temperature 0, greedy: at temperature 1), before penalties: DESIGN section 5. The draw itself
// goes through, in this order: penalties, temperature, then the filters top-k, top-p and min-p on
// the tempered distribution. The uniform number is a function of (seed, position) alone.
//
//   repetition penalty r (Keskar et al. 2019): seen tokens' logits / r where positive, * r where
//   not presence penalty a: logits of tokens generated so far - a
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace orrery::kernels {

struct SamplerParams {
  float temperature = 1;  // 0: greedy, ties to the lowest id
  int64_t top_k = 0;      // 0: off
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;

  bool filters() const { return top_k > 0 || top_p < 1 || min_p > 0; }
  bool penalties() const { return repetition_penalty != 1 || presence_penalty != 0; }
  float inverse_temperature() const { return temperature > 0 ? 1 / temperature : 1; }
};

struct SampleResult {
  int32_t token_id = 0;
  float logprob = 0;
  float entropy = 0;   // of the unfiltered distribution, nats
  bool finite = true;  // false: logits hold NaN or infinity, nothing was drawn
};

struct SamplerInput {
  std::span<const float> logits;
  std::span<const int32_t> prompt_ids;     // read for the repetition penalty only
  std::span<const int32_t> generated_ids;  // read for penalties only
  std::span<const int32_t> banned_ids;     // never drawn (stop tokens before min_new_tokens)
  uint64_t seed = 0;
  uint64_t position = 0;  // index of the token in the response
};

// scratch keeps its memory between calls; one thread at a time.
SampleResult SampleToken(const SamplerInput& input, const SamplerParams& params,
                         std::vector<float>* scratch);

}  // namespace orrery::kernels
