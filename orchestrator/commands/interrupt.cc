#include "orchestrator/commands/interrupt.h"

#include <signal.h>
#include <unistd.h>

namespace orrery::commands {
namespace {

std::atomic<bool> interrupted{false};

void Handle(int) {
  if (interrupted.exchange(true)) ::_exit(130);
  constexpr char kText[] = "\ninterrupted: ending after this step (again to end at once)\n";
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, kText, sizeof kText - 1);
}

}  // namespace

const std::atomic<bool>& InterruptFlag() {
  struct sigaction action = {};
  action.sa_handler = Handle;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  return interrupted;
}

}  // namespace orrery::commands
