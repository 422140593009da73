// The one pool of CPU threads of a process. Work is cut by its shape, never by the number of
// threads, so results do not depend on how many there are.
#pragma once

#include <cstdint>
#include <functional>

namespace orrery::kernels {

// Threads that take part in ParallelFor, the caller included. Call before the first ParallelFor;
// 0: as many as the process may run on. Later calls change the number between two ParallelFors.
void SetNumThreads(int num_threads);
int NumThreads();

// Runs task(0) ... task(num_tasks - 1), each once, on the pool and the caller, and returns when all
// are done. Tasks are taken in order from one counter. Inside a task it runs serially in the
// caller, so that kernels may be used both alone and under a coarser division of work; a single
// task is no division, and what it calls may use the pool. Any thread may call; one at a time has
// the pool, another waits for none and runs its tasks alone.
void ParallelFor(int64_t num_tasks, const std::function<void(int64_t)>& task);

}  // namespace orrery::kernels
