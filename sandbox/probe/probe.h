// A program that is put into a sandbox and tries to get out of it, or to take more than its share:
// what `orrery sandbox check` and the tests run. Part of the static helper, so that it needs
// nothing of the image.
//
//   probe escape         tries every escape; one line each: "NAME held WHY" or "NAME OPEN WHAT"
//   probe LOAD [NUMBER]  loads.cc: fork bomb, memory bomb and others
#pragma once

namespace orrery::sandbox {

int RunProbe(int argc, char** argv);

// The two halves.
int TryEscapes();
int RunLoad(int argc, char** argv);

}  // namespace orrery::sandbox
