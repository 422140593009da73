// "length": a penalty for long responses, in tokens the policy wrote. 0 or negative.
//
// Parameters: mode "dapo" (default) or "linear"; max_length (required); buffer (dapo; required, at
// most max_length); penalty (1: the largest deduction).
//
// dapo, the soft over-long punishment of DAPO (Yu et al. 2025, equation 13), for length L:
//   0                                          L <= max_length - buffer
//   penalty * (max_length - buffer - L)/buffer up to max_length
//   -penalty                                   beyond
// linear: -penalty * L / max_length, no less than -penalty.
#include <algorithm>

#include "orchestrator/base/status.h"
#include "rewards/factories.h"

namespace orrery::rewards {
namespace {

constexpr int64_t kLongest = int64_t{1} << 40;

class Length : public Reward {
 public:
  Length(int64_t free_length, int64_t ramp, double penalty)
      : free_length_(free_length), ramp_(ramp), penalty_(penalty) {}

  Outcome Grade(const RewardInput& input) const override {
    const int64_t over = std::clamp<int64_t>(input.num_tokens - free_length_, 0, ramp_);
    const double score = over == 0
                             ? 0.0  // not -0
                             : -penalty_ * static_cast<double>(over) / static_cast<double>(ramp_);
    return Outcome::Scored(
        score, fmt::format("{} tokens, free up to {}, full penalty from {}", input.num_tokens,
                           free_length_, free_length_ + ramp_));
  }

 private:
  int64_t free_length_;
  int64_t ramp_;
  double penalty_;
};

}  // namespace

std::unique_ptr<Reward> MakeLength(Parameters* parameters) {
  const bool linear = parameters->Choice("mode", {"dapo", "linear"}) == "linear";
  if (parameters->Required("max_length").empty()) return nullptr;
  const int64_t max_length = parameters->Integer("max_length", 1, 1, kLongest);
  const double penalty = parameters->Number("penalty", 1.0, 0.0, 1e9);
  if (linear) return std::make_unique<Length>(0, max_length, penalty);
  if (parameters->Required("buffer").empty()) return nullptr;
  const int64_t buffer = parameters->Integer("buffer", 1, 1, max_length);
  return std::make_unique<Length>(max_length - buffer, buffer, penalty);
}

}  // namespace orrery::rewards
