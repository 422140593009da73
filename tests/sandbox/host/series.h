// Series that run short always and long as slow tests.
#pragma once

#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "sandbox/host/leftovers.h"
#include "tests/sandbox/host/testing.h"

namespace orrery::sandbox {

inline int CountDescriptors() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    count += entry.path().empty() ? 0 : 1;
  }
  return count;
}

inline void ExpectNothingLeft(const HostOptions& options) {
  const auto left = FindLeftovers(options);
  ASSERT_TRUE(left.ok()) << left.status();
  for (const std::string& line : *left) ADD_FAILURE() << line;
}

// One whole episode, with what is easily left behind.
inline void LiveOnce(SandboxHost* host, const SandboxOptions& options) {
  auto sandbox = host->Create(options);
  ASSERT_TRUE(sandbox.ok()) << sandbox.status();
  ExecRequest request;
  request.argv = {"sh", "-c", "sleep 100 & echo x > /f; mkdir -p /a/b"};
  EXPECT_TRUE((*sandbox)->Exec(request).ok());
  EXPECT_TRUE((*sandbox)->Destroy().ok());
}

inline void LiveAtOnce(SandboxHost* host, const SandboxOptions& options, int threads,
                       int episodes) {
  std::atomic<int> next{0};
  std::vector<std::thread> workers;
  for (int i = 0; i < threads; ++i) {
    workers.emplace_back([&] {
      while (next++ < episodes && !testing::Test::HasFatalFailure()) LiveOnce(host, options);
    });
  }
  for (std::thread& worker : workers) worker.join();
}

// Of /proc/meminfo, in kB, once the kernel has given back what it may.
inline int64_t MemoryAfterReclaim(const std::string& name) {
  ::sync();
  std::ofstream("/proc/sys/vm/drop_caches") << "3\n";
  std::this_thread::sleep_for(std::chrono::seconds(1));
  std::ifstream lines("/proc/meminfo");
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name + ":")) return std::atoll(line.c_str() + name.size() + 1);
  }
  return 0;
}

// An owner that creates, runs, freezes, snapshots, forks and destroys until it is killed.
[[noreturn]] inline void OwnUntilKilled(const HostOptions& options, const SandboxOptions& sandbox,
                                        uint32_t seed) {
  auto host = MakeLocalHost(options);
  std::mt19937 random(seed);
  while (host.ok()) {
    auto made = (*host)->Create(sandbox);
    if (!made.ok()) continue;
    ExecRequest request;
    request.argv = {"sh", "-c", random() % 2 ? "sleep 100 & echo x > /f" : "echo x > /f"};
    (*made)->Exec(request);
    const auto snapshot = (*made)->TakeSnapshot();
    if (snapshot.ok()) (*host)->Fork(*snapshot, sandbox).status().IgnoreError();
    if (random() % 2) (*made)->Destroy().IgnoreError();
  }
  ::_exit(1);
}

// Kills owners at random moments; each next one sweeps. `host` is alive all the while and spared.
inline void RunOwnerKills(const HostOptions& options, const SandboxOptions& sandbox, int kills,
                          uint32_t seed) {
  std::mt19937 random(seed);
  for (int i = 0; i < kills; ++i) {
    HostOptions mine = options;
    mine.warm_sandboxes = i % 3 == 0 ? 2 : 0;
    if (i % 4 == 1) mine.disk = DiskBackend::kLoop;
    const pid_t owner = ::fork();
    if (owner == 0) OwnUntilKilled(mine, sandbox, seed + static_cast<uint32_t>(i));
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 250));
    ::kill(owner, SIGKILL);
    int status = 0;
    ::waitpid(owner, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "the owner could make no host";
  }
  const auto swept = SweepDeadHosts(options);
  EXPECT_TRUE(swept.ok()) << swept.status();
}

}  // namespace orrery::sandbox
