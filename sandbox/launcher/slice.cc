#include "sandbox/launcher/slice.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace orrery::sandbox {
namespace {

constexpr uint64_t kTurnNs = 100'000;

// struct sched_attr of the kernel, its first version.
struct Attributes {
  uint32_t size = sizeof(Attributes);
  uint32_t policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0, deadline = 0, period = 0;
};

}  // namespace

void AskForShortTurns() {
  Attributes attributes;
  if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return;
  if (attributes.policy != 0) return;
  attributes.runtime = kTurnNs;
  ::syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace orrery::sandbox
