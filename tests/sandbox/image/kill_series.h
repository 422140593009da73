// Imports that are killed at random moments: what is left after the next start is whole.
#pragma once

#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <random>
#include <thread>

#include "tests/sandbox/image/image_testing.h"

namespace orrery::sandbox::image {

inline void RunKillSeries(int kills, unsigned seed) {
  const TempFolder folder;
  std::mt19937 random(seed);
  std::vector<std::string> tars;
  for (int k = 0; k < 3; ++k) {
    Tar tar;
    tar.File("which", std::to_string(k)).Link("link", "which");
    for (int i = 0; i < 400; ++i) {
      tar.File("d" + std::to_string(i % 20) + "/f" + std::to_string(i),
               std::string(1 + i * 13 % 5000, 'x'));
    }
    tars.push_back(folder / ("t" + std::to_string(k) + ".tar.gz"));
    WriteText(tars.back(), Gzip(tar.Finish()));
  }
  const std::string root = folder / "store";
  // How long one import and one collection take undisturbed here.
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(OpenStore(root)->Import(tars[0]).ok());
  const auto whole = std::chrono::steady_clock::now() - begin;
  int finished = 0;
  for (int i = 0; i < kills; ++i) {
    const std::string tar = tars[random() % tars.size()];
    const int action = static_cast<int>(random() % 4);
    const pid_t child = ::fork();
    if (child == 0) {
      const auto store = ImageStore::Open(root);
      bool ok = store.ok();
      if (ok && action < 2) ok = (*store)->Gc(0).ok();
      if (ok) ok = (*store)->Import(tar).ok();
      if (ok && action == 3) ok = (*store)->Remove(std::filesystem::path(tar).stem().stem()).ok();
      ::_exit(ok ? 0 : 1);
    }
    const double share = std::uniform_real_distribution<double>(0, 1.3)(random);
    std::this_thread::sleep_for(whole * share);
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << status;
    finished += WIFEXITED(status) ? 1 : 0;
    const auto store = OpenStore(root);
    ExpectVerified(*store);
    for (const char* name : {"staging", "trash", "locks"}) {
      EXPECT_TRUE(std::filesystem::is_empty(root + "/" + name)) << name << " after kill " << i;
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_LT(finished, kills) << "no kill came in time";
  const auto store = OpenStore(root);
  for (const std::string& tar : tars) ASSERT_TRUE(store->Import(tar).ok());
  ExpectVerified(*store);
}

}  // namespace orrery::sandbox::image
