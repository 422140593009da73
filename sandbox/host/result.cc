// Texts of results (sandbox.h).
#include <cstring>

#include "orchestrator/base/status.h"
#include "sandbox/sandbox.h"

namespace orrery::sandbox {

void AddEvents(const SandboxEvents& before, const SandboxEvents& after, ExecResult& result) {
  result.out_of_memory = after.oom_kills > before.oom_kills;
  result.process_limit = after.process_limit_hits > before.process_limit_hits;
  result.disk_full = after.disk_full;
}

std::string_view EndingName(Ending ending) {
  switch (ending) {
    case Ending::kRefused:
      return "refused";
    case Ending::kInfrastructure:
      return "infrastructure";
    case Ending::kDeadline:
      return "deadline";
    case Ending::kOutputCap:
      return "output cap";
    case Ending::kSignalled:
      return "signalled";
    case Ending::kExited:
      return "exited";
  }
  return "unknown";
}

std::string Describe(const ExecResult& result) {
  std::string text(EndingName(result.ending));
  if (result.ending == Ending::kExited) text += fmt::format(" {}", result.code);
  if (result.ending == Ending::kSignalled) {
    const char* name = ::sigabbrev_np(result.code);
    text += fmt::format(" {}", name != nullptr ? name : std::to_string(result.code));
  }
  if (!result.why.empty()) text += ": " + result.why;
  if (result.out_of_memory) text += " [out of memory]";
  if (result.disk_full) text += " [disk full]";
  if (result.process_limit) text += " [process limit]";
  return text;
}

std::string Output::Text() const {
  if (dropped_bytes() <= 0) return head + tail;
  return head + fmt::format("\n[{} bytes left out]\n", dropped_bytes()) + tail;
}

}  // namespace orrery::sandbox
