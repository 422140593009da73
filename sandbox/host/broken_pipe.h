// Keeps SIGPIPE from the calling thread while it writes to a pipe whose reader may be gone.
#pragma once

#include <signal.h>
#include <time.h>

namespace orrery::sandbox {

class BrokenPipeIgnored {
 public:
  BrokenPipeIgnored() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~BrokenPipeIgnored() {
    const timespec now{};
    while (::sigtimedwait(&pipe_, nullptr, &now) > 0) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_, before_;
};

}  // namespace orrery::sandbox
