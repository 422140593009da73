// Grades the episodes of a rollout on a small pool of threads. Which thread grades what does not
// show: every episode gets its own outcome from its own input, in place.
//
// Only episodes that are still kRunning are graded; they become kScored or kFailed. One whose last
// sample was rejected by the engine fails, one that was aborted becomes kAborted, neither asking a
// reward. An exception out of a reward (memory, a user's library) fails that one episode.
#pragma once

#include <memory>
#include <vector>

#include "orchestrator/interfaces.h"
#include "rewards/rubric.h"

namespace orrery::rewards {

class RubricGrader : public Grader {
 public:
  // REQUIRES: num_threads >= 1. A rubric with a `program` reward wants as many as that has workers.
  RubricGrader(std::unique_ptr<const Rubric> rubric, int num_threads);

  // One call at a time.
  void Grade(std::vector<EpisodeGroup>* groups) override;

 private:
  std::unique_ptr<const Rubric> rubric_;
  int num_threads_;
};

// One episode alone, for re-grading recorded samples.
void GradeEpisode(const Rubric& rubric, const Prompt& prompt, Episode* episode);

}  // namespace orrery::rewards
