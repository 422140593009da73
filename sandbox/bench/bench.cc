#include "sandbox/bench/bench.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "sandbox/bench/runc.h"
#include "sandbox/bench/times.h"
#include "sandbox/cgroup/cgroup.h"
#include "sandbox/check/probing.h"
#include "sandbox/host/leftovers.h"

namespace orrery::sandbox {
namespace {

struct Lives {
  std::vector<double> ready, exec_true, exec_bash, destroy, life;
  double cpu_ms = 0;  // of one life, of this process, the launchers and what ran inside
};

double OwnCpuMs() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto ms = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_usec) / 1e3;
  };
  return ms(usage.ru_utime) + ms(usage.ru_stime);
}

// Of everything below the hosts' group; version 2 counts it without any controller.
double GroupCpuMs(const HostOptions& options) {
  const auto hierarchies = Hierarchies::Find();
  if (!hierarchies.ok()) return 0;
  const auto text = ReadFile(hierarchies->unified() + "/" + options.cgroup + "/cpu.stat");
  const size_t at = text.ok() ? text->find("usage_usec ") : std::string::npos;
  return at == std::string::npos ? 0 : std::atof(text->c_str() + at + 11) / 1e3;
}

absl::Status NotOk(const ExecResult& result, const std::string& what) {
  return result.ok() ? absl::OkStatus() : Failed("{}: {}", what, Describe(result));
}

absl::Status OneLife(SandboxHost* host, const SandboxOptions& options, Lives& lives) {
  ExecRequest request;
  request.argv = {"true"};
  const auto begin = BenchClock::now();
  ASSIGN_OR_RETURN(const std::unique_ptr<Sandbox> sandbox, host->Create(options));
  lives.ready.push_back(MsSince(begin));
  const auto exec = BenchClock::now();
  RETURN_IF_ERROR(NotOk(sandbox->Exec(request), "true"));
  lives.exec_true.push_back(MsSince(exec));
  const auto destroy = BenchClock::now();
  RETURN_IF_ERROR(sandbox->Destroy());
  lives.destroy.push_back(MsSince(destroy));
  lives.life.push_back(MsSince(begin));
  return absl::OkStatus();
}

// What a host that nobody asks anything does by itself.
void WaitForBlanks(const BenchOptions& options, SandboxHost* host) {
  constexpr std::chrono::seconds kPatience(20);
  const auto end = BenchClock::now() + kPatience;
  while (host->load().blank < options.host.blanks && BenchClock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

absl::StatusOr<Lives> MeasureLives(const BenchOptions& options, SandboxHost* host, int count) {
  SandboxOptions sandbox;
  sandbox.image = options.image;
  sandbox.warm = false;
  Lives warm_up, lives;
  for (int i = 0; i < 10; ++i) RETURN_IF_ERROR(OneLife(host, sandbox, warm_up));
  WaitForBlanks(options, host);
  const double before = OwnCpuMs() + GroupCpuMs(options.host);
  for (int i = 0; i < count; ++i) RETURN_IF_ERROR(OneLife(host, sandbox, lives));
  WaitForBlanks(options, host);  // who takes one pays for the next
  lives.cpu_ms = (OwnCpuMs() + GroupCpuMs(options.host) - before) / count;
  return lives;
}

// With a pool that has time to refill between two lives.
absl::Status MeasurePooled(const BenchOptions& options) {
  constexpr std::chrono::seconds kPatience(10);
  HostOptions host_options = options.host;
  host_options.warm_sandboxes = 4;
  ASSIGN_OR_RETURN(const std::unique_ptr<SandboxHost> host, MakeLocalHost(host_options));
  SandboxOptions sandbox;
  sandbox.image = options.image;
  Lives warm_up, lives;
  RETURN_IF_ERROR(OneLife(host.get(), sandbox, warm_up));
  for (int i = 0; i < options.episodes; ++i) {
    const auto end = BenchClock::now() + kPatience;
    while (host->load().warm < host_options.warm_sandboxes && BenchClock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    RETURN_IF_ERROR(OneLife(host.get(), sandbox, lives));
  }
  PrintTimes("from a pool: ready", lives.ready);
  PrintTimes("from a pool: exec true", lives.exec_true);
  return absl::OkStatus();
}

std::string_view DiskName(DiskBackend disk) {
  switch (disk) {
    case DiskBackend::kTmpfs:
      return "tmpfs, inside the memory limit";
    case DiskBackend::kLoop:
      return "an ext4 file each, by a loop device";
    case DiskBackend::kProjectQuota:
      return "a folder each, by project quota";
    case DiskBackend::kUnlimited:
    case DiskBackend::kAuto:
      break;
  }
  return "nothing";
}

double LoadAverage() {
  double load[1] = {0};
  ::getloadavg(load, 1);
  return load[0];
}

// The shell of the image, which need not be bash.
std::vector<std::string> ShellTrue(Sandbox* sandbox) {
  ExecRequest request;
  request.argv = {"bash", "-c", "true"};
  if (sandbox->Exec(request).ok()) return request.argv;
  return {"sh", "-c", "true"};
}

absl::Status MeasureExec(const BenchOptions& options, SandboxHost* host) {
  SandboxOptions sandbox;
  sandbox.image = options.image;
  ASSIGN_OR_RETURN(const std::unique_ptr<Sandbox> box, host->Create(sandbox));
  ExecRequest request;
  request.argv = ShellTrue(box.get());
  std::vector<double> times;
  for (int i = 0; i < options.episodes; ++i) {
    const auto begin = BenchClock::now();
    RETURN_IF_ERROR(NotOk(box->Exec(request), request.argv[0]));
    times.push_back(MsSince(begin));
  }
  PrintTimes(request.argv[0] + " -c true", times);
  return absl::OkStatus();
}

int64_t AvailableKb() {
  const auto text = ReadFile("/proc/meminfo");
  const size_t at = text.ok() ? text->find("MemAvailable:") : std::string::npos;
  return at == std::string::npos ? 0 : std::atoll(text->c_str() + at + 13);
}

absl::Status MeasureMany(const BenchOptions& options, SandboxHost* host, int count) {
  SandboxOptions sandbox;
  sandbox.image = options.image;
  std::vector<std::unique_ptr<Sandbox>> all(static_cast<size_t>(count));
  std::atomic<int> next{0}, failed{0};
  const auto each = [&](const std::function<bool(size_t)>& work) {
    next = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = next++; i < count; i = next++) failed += work(static_cast<size_t>(i)) ? 0 : 1;
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  WaitForBlanks(options, host);
  const int64_t before = AvailableKb();
  const int64_t blanks = host->load().blank;
  auto begin = BenchClock::now();
  absl::Status first;
  std::mutex mutex;
  each([&](size_t i) {
    auto made = host->Create(sandbox);
    if (!made.ok()) {
      const std::lock_guard lock(mutex);
      first.Update(made.status());
      return false;
    }
    all[i] = *std::move(made);
    return true;
  });
  RETURN_IF_ERROR(first);
  const double up_ms = MsSince(begin);
  const int64_t memory_kb = before - AvailableKb();
  begin = BenchClock::now();
  ExecRequest request;
  request.argv = {"true"};
  each([&](size_t i) { return all[i]->Exec(request).ok(); });
  const double exec_ms = MsSince(begin);
  begin = BenchClock::now();
  each([&](size_t i) { return all[i]->Destroy().ok(); });
  std::printf(
      "%4d at once (%lld blanks waited): up in %.0f ms, all ran true in %.0f ms, destroyed in "
      "%.0f ms, %.2f MB each besides its blank, %d failed\n",
      count, static_cast<long long>(blanks), up_ms, exec_ms, MsSince(begin),
      static_cast<double>(memory_kb) / 1024 / static_cast<double>(count), failed.load());
  return absl::OkStatus();
}

// How much a neighbour that takes all it may slows a command: CPU, forks and output at their
// limits.
absl::Status MeasureNeighbour(const BenchOptions& options, SandboxHost* host) {
  SandboxOptions sandbox;
  sandbox.image = options.image;
  ASSIGN_OR_RETURN(const Probing loud, Probing::Begin(host, sandbox));
  ASSIGN_OR_RETURN(const std::unique_ptr<Sandbox> quiet, host->Create(sandbox));
  ExecRequest request;
  request.argv = ShellTrue(quiet.get());
  const auto measure = [&] {
    std::vector<double> times;
    for (int i = 0; i < 100; ++i) {
      const auto begin = BenchClock::now();
      quiet->Exec(request);
      times.push_back(MsSince(begin));
    }
    return Percentile(times, 0.5);
  };
  const double alone = measure();
  std::thread bomb([&] { loud.Run("forkbomb", 0, 8000); });
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const double beside = measure();
  bomb.join();
  std::printf("%-34s %.1f times (%.2f ms alone, %.2f ms beside a fork bomb at its limits)\n",
              "a neighbour slows a shell", beside / alone, alone, beside);
  return absl::OkStatus();
}

void PrintLives(const std::string& what, const Lives& lives) {
  PrintTimes(what + ": ready, cold", lives.ready);
  PrintTimes(what + ": exec true", lives.exec_true);
  PrintTimes(what + ": kill and delete", lives.destroy);
  PrintTimes(what + ": whole life", lives.life);
  std::printf("%-34s %.2f ms\n", (what + ": CPU of a life").c_str(), lives.cpu_ms);
}

absl::Status CompareWithRunc(const BenchOptions& options, const Lives& ours) {
  char work[] = "/tmp/orrery-bench-XXXXXX";
  if (::mkdtemp(work) == nullptr) return ErrnoStatus("cannot make", work, errno);
  ::chmod(work, 0755);
  SandboxOptions sandbox;
  sandbox.image = options.image;
  const auto runc = MeasureRunc(sandbox, work, std::clamp(options.episodes / 10, 5, 60));
  std::error_code ignored;
  std::filesystem::remove_all(work, ignored);
  if (absl::IsNotFound(runc.status())) {
    std::printf("no comparison: %s\n", StatusText(runc.status()).c_str());
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(runc.status());
  PrintTimes(runc->version + ": whole life", runc->life_ms);
  std::printf("%-34s %.2f ms\n", "runc: CPU of a life", runc->cpu_ms);
  std::printf("%-34s %.1f times by the clock (p50), %.1f times by CPU\n", "cheaper than runc",
              Percentile(runc->life_ms, 0.5) / Percentile(ours.life, 0.5),
              runc->cpu_ms / ours.cpu_ms);
  return absl::OkStatus();
}

// Once more with a large owner: what clone costs must not follow from it.
absl::Status MeasureResident(const BenchOptions& options) {
  const auto bytes = static_cast<size_t>(options.resident_gib * (1ull << 30));
  void* block = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (block == MAP_FAILED) return Exhausted("no {} GiB for the owner", options.resident_gib);
  std::memset(block, 1, bytes);
  absl::Status status;
  {
    auto host = MakeLocalHost(options.host);
    status = host.status();
    if (host.ok()) {
      auto lives = MeasureLives(options, host->get(), std::max(20, options.episodes / 4));
      status = lives.status();
      if (lives.ok()) PrintLives(fmt::format("{} GiB resident", options.resident_gib), *lives);
    }
  }
  ::munmap(block, bytes);
  return status;
}

absl::Status MeasureWithoutBlanks(const BenchOptions& options) {
  if (options.host.blanks == 0) return absl::OkStatus();
  BenchOptions without = options;
  without.host.blanks = 0;
  ASSIGN_OR_RETURN(const std::unique_ptr<SandboxHost> host, MakeLocalHost(without.host));
  ASSIGN_OR_RETURN(const Lives lives,
                   MeasureLives(without, host.get(), std::max(20, options.episodes / 4)));
  PrintLives("without blanks", lives);
  return absl::OkStatus();
}

void PrintMachine(const BenchOptions& options, const SandboxHost& host) {
  utsname name{};
  ::uname(&name);
  const auto hierarchies = Hierarchies::Find();
  std::printf(
      "%s %s %s, %u CPUs; cgroups: %s; disk limit by: %s; limits: the defaults\n", name.sysname,
      name.release, name.machine, std::thread::hardware_concurrency(),
      hierarchies.ok() ? hierarchies->Describe().c_str() : "",
      DiskName(options.host.disk == DiskBackend::kAuto ? ChooseDisk(options.host.state_folder)
                                                       : options.host.disk)
          .data());
  for (const std::string& line : host.warnings()) std::printf("warning: %s\n", line.c_str());
  std::printf("admits %lld sandboxes and %lld MiB; load of the machine before: %.1f\n",
              static_cast<long long>(host.load().max_sandboxes),
              static_cast<long long>(host.load().max_memory_bytes >> 20), LoadAverage());
}

}  // namespace

absl::Status RunBench(const BenchOptions& options) {
  Lives lives;
  {
    ASSIGN_OR_RETURN(const std::unique_ptr<SandboxHost> host, MakeLocalHost(options.host));
    PrintMachine(options, *host);
    ASSIGN_OR_RETURN(lives, MeasureLives(options, host.get(), options.episodes));
    PrintLives("one after the other", lives);
    std::printf("%-34s %d\n", "blanks that wait at most", options.host.blanks);
    RETURN_IF_ERROR(MeasureExec(options, host.get()));
    for (const int count : options.sandboxes) {
      RETURN_IF_ERROR(MeasureMany(options, host.get(), count));
    }
    RETURN_IF_ERROR(MeasureNeighbour(options, host.get()));
  }
  RETURN_IF_ERROR(MeasureWithoutBlanks(options));
  RETURN_IF_ERROR(MeasurePooled(options));
  if (options.resident_gib > 0) RETURN_IF_ERROR(MeasureResident(options));
  if (options.with_runc) RETURN_IF_ERROR(CompareWithRunc(options, lives));
  ASSIGN_OR_RETURN(const std::vector<std::string> left, FindLeftovers(options.host));
  std::printf("%-34s %zu\n", "leftovers", left.size());
  for (const std::string& line : left) std::printf("  %s\n", line.c_str());
  return left.empty() ? absl::OkStatus() : Failed("{} things are left over", left.size());
}

}  // namespace orrery::sandbox
