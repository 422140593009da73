// How soon a process gets a processor when it wakes.
#pragma once

namespace orrery::sandbox {

// Asks for short turns (Linux 6.12), for all that this process begins as well: who takes short ones
// is let in sooner, and gets no more in all. Without it all is slower where processors are busy.
void AskForShortTurns();

}  // namespace orrery::sandbox
