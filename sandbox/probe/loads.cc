#include <fcntl.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "sandbox/probe/probe.h"

namespace orrery::sandbox {
namespace {

// Every process begins others until the kernel refuses. Never ends.
int ForkBomb(long) {
  while (true) {
    if (::fork() < 0) ::usleep(1000);
  }
}

// Takes memory, page by page, for as long as it is let.
int TakeMemory(long megabytes) {
  for (long i = 0; i < megabytes; ++i) {
    void* block = ::mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (block == MAP_FAILED) return 2;
    std::memset(block, 1, 1 << 20);
  }
  return 0;
}

// Disk quota exceeded is what a project quota of ext4 says.
bool IsFull(int error) { return error == ENOSPC || error == EDQUOT; }

int FillDisk(long megabytes) {
  const int fd = ::open("/fill", O_WRONLY | O_CREAT, 0644);
  const std::string block(1 << 20, 'x');
  for (long i = 0; i < megabytes; ++i) {
    if (::write(fd, block.data(), block.size()) < 0) {
      std::printf("%s after %ld MiB\n", std::strerror(errno), i);
      return IsFull(errno) ? 0 : 1;
    }
  }
  return 1;
}

int FillInodes(long most) {
  ::mkdir("/inodes", 0755);
  for (long i = 0; i < most; ++i) {
    const int fd = ::open(("/inodes/" + std::to_string(i)).c_str(), O_WRONLY | O_CREAT, 0644);
    if (fd < 0) {
      std::printf("%s after %ld files\n", std::strerror(errno), i);
      return IsFull(errno) ? 0 : 1;
    }
    ::close(fd);
  }
  return 1;
}

int TakeInotify(long) {
  int count = 0;
  while (::inotify_init1(IN_CLOEXEC) >= 0) ++count;
  std::printf("%d\n", count);
  std::fflush(stdout);
  ::sleep(2);
  return 0;
}

// Counts what inotify tells of /dev within some seconds; opens nothing there itself.
int WatchDevices(long seconds) {
  const int watch = ::inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  for (const char* path : {"/dev", "/dev/null", "/dev/zero", "/dev/urandom"}) {
    if (::inotify_add_watch(watch, path, IN_OPEN | IN_CLOSE | IN_ACCESS) < 0) return 1;
  }
  std::puts("watching");
  std::fflush(stdout);
  int count = 0;
  for (const time_t end = ::time(nullptr) + seconds; ::time(nullptr) < end;) {
    char events[4096];
    if (::read(watch, events, sizeof(events)) > 0) ++count;
    ::usleep(10'000);
  }
  std::printf("%d events\n", count);
  return 0;
}

int Flood(long megabytes) {
  const std::string block(1 << 20, 'y');
  for (long i = 0; i < megabytes; ++i) {
    for (size_t done = 0; done < block.size();) {
      const ssize_t n = ::write(1, block.data() + done, block.size() - done);
      if (n < 0) return 1;
      done += static_cast<size_t>(n);
    }
  }
  return 0;
}

int KillAll(long) {
  ::kill(-1, SIGKILL);
  return 0;
}

int IgnoreSignals(long) {
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_IGN);
  std::puts("ignoring");
  std::fflush(stdout);
  while (true) ::pause();
}

// A process of its own session that has closed its streams, and its child that writes on.
int Daemon(long seconds) {
  if (::fork() != 0) return 7;
  ::setsid();
  if (::fork() != 0) ::_exit(0);
  for (int fd = 0; fd < 3; ++fd) ::close(fd);
  ::sleep(static_cast<unsigned>(seconds));
  return 0;
}

// Like Daemon, but it keeps its output open and fills it.
int Server(long seconds) {
  if (::fork() != 0) {
    std::puts("started");
    return 0;
  }
  ::sleep(static_cast<unsigned>(seconds));
  return 0;
}

int MakeDeep(long depth) {
  for (long i = 0; i < depth; ++i) {
    if (::mkdir("d", 0755) != 0 || ::chdir("d") != 0) {
      std::printf("%s at %ld\n", std::strerror(errno), i);
      return 1;
    }
  }
  return 0;
}

// Swaps a file for a link to another one, and back, all the time.
int RaceLinks(long seconds) {
  const time_t end = ::time(nullptr) + seconds;
  while (::time(nullptr) < end) {
    ::unlink("/tmp/race");
    if (::symlink("/proc/1/environ", "/tmp/race") != 0) continue;
    ::unlink("/tmp/race");
    const int fd = ::open("/tmp/race", O_WRONLY | O_CREAT, 0644);
    if (fd < 0) continue;
    [[maybe_unused]] const ssize_t n = ::write(fd, "inside", 6);
    ::close(fd);
  }
  return 0;
}

struct Load {
  const char* name;
  int (*run)(long number);
};
constexpr Load kLoads[] = {{"forkbomb", ForkBomb}, {"memory", TakeMemory},    {"disk", FillDisk},
                           {"inodes", FillInodes}, {"inotify", TakeInotify},  {"flood", Flood},
                           {"killall", KillAll},   {"ignore", IgnoreSignals}, {"daemon", Daemon},
                           {"server", Server},     {"deep", MakeDeep},        {"race", RaceLinks},
                           {"watch", WatchDevices}};

}  // namespace

int RunLoad(int argc, char** argv) {
  for (const Load& load : kLoads) {
    if (std::strcmp(load.name, argv[1]) == 0) return load.run(argc > 2 ? std::atol(argv[2]) : 0);
  }
  return 64;
}

int RunProbe(int argc, char** argv) {
  if (argc < 2) return 64;
  return std::strcmp(argv[1], "escape") == 0 ? TryEscapes() : RunLoad(argc, argv);
}

}  // namespace orrery::sandbox
