// Solutions of story_math for sft, right and corrupted. Pure functions of the random stream.
#pragma once

#include "configs/experiment.h"
#include "orchestrator/base/hash.h"
#include "orchestrator/data/story_templates.h"
#include "orchestrator/types.h"

namespace orrery::data {

// Fills solution, or solution_messages in the tool form. With probability config.noise the solution
// is corrupted: half of those carry a wrong result (tool form: a wrong call) on, the rest lack the
// "####" or stop too early. With probability config.ramble it goes on with idle steps before it
// answers. metadata["flaw"] says which it was.
void WriteSolution(const Story& story, const configs::StoryMathConfig& config, RandomStream& random,
                   Prompt& prompt);

}  // namespace orrery::data
