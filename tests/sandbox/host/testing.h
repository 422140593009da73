// A sandbox host for tests, with state and control groups of its own; or why there can be none
// here.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "sandbox/cgroup/cgroup.h"
#include "sandbox/host/local_host.h"
#ifdef ORRERY_REMOTE_SANDBOXES
#include "tests/sandbox/remote/bundled_host.h"
#endif

namespace orrery::sandbox {

// A folder of its own, gone with the object.
class WorkFolder {
 public:
  WorkFolder() {
    char name[] = "/tmp/orrery-sandbox-test-XXXXXX";
    path_ = ::mkdtemp(name);
    ::chmod(name, 0755);
  }
  ~WorkFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline HostOptions TestOptions(const WorkFolder& work) {
  HostOptions options;
  options.state_folder = work.path() + "/state";
  options.cgroup = "orrery-test-" + std::to_string(::getpid());
  options.launchers = 2;
  options.blanks = 3;
  options.memory_bytes = int64_t{4} << 30;
  return options;
}

// busybox as an image: every applet as a link. Empty where this machine has no static busybox.
inline std::string MakeBusyboxImage(const std::string& folder) {
  namespace fs = std::filesystem;
  const std::string busybox = "/bin/busybox";
  if (!fs::exists(busybox)) return "";
  for (const char* name : {"bin", "etc", "tmp", "root"})
    fs::create_directories(folder + "/" + name);
  fs::copy_file(busybox, folder + "/bin/busybox", fs::copy_options::overwrite_existing);
  for (const char* applet :
       {"sh",    "true",  "false",  "echo",   "cat",    "ls",      "id",    "sleep", "env",
        "head",  "yes",   "dd",     "mkdir",  "seq",    "grep",    "wc",    "df",    "touch",
        "rm",    "mv",    "nc",     "nproc",  "kill",   "pwd",     "stat",  "ln",    "find",
        "test",  "chmod", "tr",     "mkfifo", "stty",   "ps",      "chown", "cp",    "printf",
        "rmdir", "sort",  "setsid", "nohup",  "md5sum", "hostname"}) {
    std::error_code exists;
    fs::create_symlink("busybox", folder + "/bin/" + applet, exists);
  }
  std::FILE* passwd = std::fopen((folder + "/etc/passwd").c_str(), "w");
  std::fputs("root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n", passwd);
  std::fclose(passwd);
  return folder;
}

class HostTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "sandboxes need root";
    auto host = MakeLocalHost(TestOptions(work_));
    if (!host.ok()) GTEST_SKIP() << "no sandboxes here: " << host.status();
    options_.image.layers = {MakeBusyboxImage(work_.path() + "/image")};
    if (options_.image.layers[0].empty()) GTEST_SKIP() << "no static busybox (busybox-static)";
    const auto probe = (*host)->Create(options_);
    if (!probe.ok()) GTEST_SKIP() << "no sandboxes here: " << probe.status();
    ASSERT_TRUE(WaitForBlanks(host->get(), options_, 3));
    host_ = Wrap(*std::move(host));
  }

  // So that most tests run in sandboxes that were blanks; those with limits of their own do not.
  static bool WaitForBlanks(SandboxHost* host, const SandboxOptions& options, int64_t count) {
    host->Create(options).status().IgnoreError();  // a second time: they are wanted
    for (int i = 0; i < 4000 && host->load().blank != count; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return host->load().blank == count;
  }

  // The same tests run once more through a service and its client (tests/sandbox/remote).
  std::unique_ptr<SandboxHost> Wrap(std::unique_ptr<SandboxHost> local) {
#ifdef ORRERY_REMOTE_SANDBOXES
    return std::make_unique<BundledHost>(std::move(local), "unix:" + work_.path() + "/service");
#else
    return local;
#endif
  }

  // The group of all hosts stays, empty; a test takes its own away.
  void TearDown() override {
    host_.reset();
    const auto hierarchies = Hierarchies::Find();
    if (!hierarchies.ok()) return;
    const std::string group = TestOptions(work_).cgroup;
    for (const std::string& place : hierarchies->all()) {
      for (const char* suffix : {"", "-2"}) ::rmdir((place + "/" + group + suffix).c_str());
    }
  }

  std::unique_ptr<Sandbox> Make() {
    auto sandbox = host_->Create(options_);
    EXPECT_TRUE(sandbox.ok()) << sandbox.status();
    return sandbox.ok() ? *std::move(sandbox) : nullptr;
  }
  static ExecRequest Shell(const std::string& script) {
    ExecRequest request;
    request.argv = {"sh", "-c", script};
    return request;
  }

  WorkFolder work_;
  std::unique_ptr<SandboxHost> host_;
  SandboxOptions options_;
};

}  // namespace orrery::sandbox
