// One factory a reward, for the table in reward.cc. Each reads its parameters; mistakes stay in
// Parameters::status(), whereupon the returned object is dropped.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "rewards/parameters.h"
#include "rewards/reward.h"

namespace orrery::rewards {

std::unique_ptr<Reward> MakeDapo(Parameters* parameters);
std::unique_ptr<Reward> MakeExact(Parameters* parameters);
std::unique_ptr<Reward> MakeFormat(Parameters* parameters);
std::unique_ptr<Reward> MakeGsm8kFlexible(Parameters* parameters);
std::unique_ptr<Reward> MakeGsm8kStrict(Parameters* parameters);
std::unique_ptr<Reward> MakeLength(Parameters* parameters);
std::unique_ptr<Reward> MakeMath(Parameters* parameters);
std::unique_ptr<Reward> MakeMathMiles(Parameters* parameters);
std::unique_ptr<Reward> MakeMathSlime(Parameters* parameters);
std::unique_ptr<Reward> MakeProgram(Parameters* parameters);
std::unique_ptr<Reward> MakeRegex(Parameters* parameters);

// For the "why" of an outcome: at most some 80 characters, readable in one line.
std::string Shorten(std::string_view text);

}  // namespace orrery::rewards
