// The end of a process that the world, not a programmer, has broken beyond repair: a GPU that
// reports an error keeps reporting it for every later call, so nothing can be unwound or saved.
// What was saved before (checkpoints, metric lines) stays as it is.
#pragma once

#include <functional>
#include <string_view>

namespace orrery {

// Prints "orrery: error: <message>" on standard error, calls the hook of the FatalHook that was
// made last, and ends the process with exit code 1, without destructors. Any thread; of several
// threads that fail at once the first one speaks and the others wait for the end.
[[noreturn]] void EndProcess(std::string_view message);

// While it lives, `hook` hears of EndProcess before the end, on the failing thread: it must not
// wait for other threads or call the GPU. Made and destroyed on one thread, like a stack.
class FatalHook {
 public:
  explicit FatalHook(std::function<void(std::string_view message)> hook);
  ~FatalHook();
  FatalHook(const FatalHook&) = delete;
  FatalHook& operator=(const FatalHook&) = delete;
};

}  // namespace orrery
