// Jobs one after another on a thread of their own, while whoever posts them goes on.
//
// One job runs and one waits in line; who posts a third waits. After an error nothing more is run:
// every later call returns it. The destructor runs what was posted and ends the thread.
// Calls come from one thread.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "absl/status/status.h"

namespace orrery {

class Background {
 public:
  using Job = std::function<absl::Status()>;

  Background() : thread_([this] { Serve(); }) {}
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // The first error so far: then the job is dropped.
  absl::Status Post(Job job);
  // Until everything posted is done, or failed.
  absl::Status Wait();

 private:
  void Serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  Job next_;              // guarded by mutex_, as all below; empty: nobody waits in line
  bool running_ = false;  // a job
  bool ending_ = false;
  absl::Status status_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace orrery
