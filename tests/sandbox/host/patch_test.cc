// Patches: exact for every kind of change, whatever the episode did to its .git.
#include "sandbox/patch/patch.h"

#include <cstdlib>
#include <fstream>

#include "sandbox/patch/git_layer.h"
#include "tests/sandbox/host/testing.h"

namespace orrery::sandbox {
namespace {

namespace fs = std::filesystem;

int OnHost(const std::string& script) { return std::system(("set -e\n" + script).c_str()); }

class PatchTest : public HostTest {
 protected:
  void SetUp() override {
    HostTest::SetUp();
    if (IsSkipped()) return;
    layer_ = work_.path() + "/git-layer";
    const absl::Status made = MakeGitLayer(layer_);
    if (!made.ok()) GTEST_SKIP() << made;
    // The image's own repository, with one commit.
    repository_ = work_.path() + "/image/testbed";
    ASSERT_EQ(OnHost("mkdir -p " + repository_ + " && cd " + repository_ +
                     R"(
      export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
      git init -q . && printf 'one\ntwo\n' > a.py && printf 'x\r\ny\r\n' > crlf.txt
      mkdir d && echo d > d/f && echo gone > gone.py && echo run > run.sh && ln -s a.py link
      printf 'ignored.txt\n' > .gitignore && printf '\000\001\002' > bin.dat
      git add -A && git -c user.name=t -c user.email=t@example.com commit -q -m base
      git rev-parse HEAD > ../base)"),
              0);
  }

  std::string Extract(Sandbox& episode, bool ignored = false) {
    PatchOptions options;
    options.fresh = options_;
    options.git_layer = layer_;
    options.ignored = ignored;
    const auto patch = ExtractPatch(host_.get(), &episode, options);
    EXPECT_TRUE(patch.ok()) << patch.status();
    return patch.ok() ? *patch : "";
  }

  // Applies to a pristine copy by the host's git, and lists it. The patch is trusted here: this
  // test made it.
  std::string Applied(const std::string& patch, const std::string& command) {
    const std::string copy = work_.path() + "/copy";
    fs::remove_all(copy);
    std::ofstream(work_.path() + "/patch", std::ios::binary) << patch;
    EXPECT_EQ(OnHost("cp -a " + repository_ + " " + copy + " && cd " + copy +
                     " && GIT_CONFIG_GLOBAL=/dev/null git -c core.autocrlf=false apply "
                     "--whitespace=nowarn ../patch && (" +
                     command + ") > ../listing"),
              0)
        << patch;
    std::ifstream file(work_.path() + "/listing");
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  std::string layer_, repository_;
};

constexpr const char* kEdits = R"(cd /testbed
  printf 'one\n2\n' > a.py; printf 'x\r\nz\r\n' > crlf.txt; rm gone.py; mv d/f d/moved
  chmod 755 run.sh; rm link; ln -s run.sh link; printf '\003\000\377' > bin.dat
  mkdir -p new/deep; printf 'no newline' > new/deep/file; echo secret > ignored.txt
  printf 'é' > 'naïve name.txt')";
constexpr const char* kLook =
    "find . -path ./.git -prune -o -type f -print -o -type l -print | sort | while read -r p; do "
    "stat -c '%n %A' \"$p\"; readlink \"$p\" || od -c \"$p\"; done";

TEST_F(PatchTest, EveryKindOfChangeComesBack) {
  const auto episode = Make();
  EXPECT_EQ(Extract(*episode), "");
  ASSERT_TRUE(episode->Exec(Shell(kEdits)).ok());
  const std::string patch = Extract(*episode);
  EXPECT_NE(patch.find("GIT binary patch"), std::string::npos);
  EXPECT_NE(patch.find("+z\r\n"), std::string::npos) << patch;
  EXPECT_EQ(patch.find("secret"), std::string::npos);
  EXPECT_NE(Extract(*episode, true).find("+secret"), std::string::npos);
  const std::string listing = Applied(patch, kLook);
  // The same edits on a copy, by hand.
  const std::string expected_folder = work_.path() + "/expected";
  ASSERT_EQ(OnHost("cp -a " + repository_ + " " + expected_folder), 0);
  std::string edits = kEdits;
  edits.replace(edits.find("/testbed"), 8, expected_folder);
  ASSERT_EQ(OnHost("/bin/busybox sh -c \"$(cat <<'EOF'\n" + edits + "\nEOF\n)\" && cd " +
                   expected_folder + " && rm ignored.txt && (" + kLook + ") > ../expected-listing"),
            0);
  std::ifstream file(work_.path() + "/expected-listing");
  EXPECT_EQ(listing, std::string(std::istreambuf_iterator<char>(file), {}));
}

TEST_F(PatchTest, WhatTheEpisodeDidToGitHasNoPart) {
  const auto episode = Make();
  ASSERT_TRUE(episode
                  ->Exec(Shell(R"(cd /testbed
    printf 'one\nTWO\n' > a.py
    printf '*.py filter=evil diff=evil text eol=crlf\n' > .gitattributes
    printf '[filter "evil"]\n clean = touch /pwned; echo evil\n[diff "evil"]\n command = touch /pwned\n textconv = touch /pwned\n[core]\n fsmonitor = touch /pwned\n hooksPath = /testbed/hooks\n attributesFile = /testbed/.gitattributes\n' >> .git/config
    mkdir -p hooks .git/hooks; for h in post-index-change pre-commit; do printf '#!/bin/sh\ntouch /pwned\n' > hooks/$h; chmod 755 hooks/$h; cp hooks/$h .git/hooks/$h; done
    rm -f .git/index; echo garbage > .git/index
    echo 'ref: refs/heads/elsewhere' > .git/HEAD
    mkdir -p .git/refs/replace; echo 0000 > .git/refs/replace/x; echo '* binary' > .git/info/attributes
    mkdir -p sub/.git; echo x > sub/.git/config; echo in > sub/file)"))
                  .ok());
  const std::string patch = Extract(*episode);
  EXPECT_NE(patch.find("-two\n+TWO\n"), std::string::npos) << patch;
  EXPECT_EQ(patch.find("evil\n+evil"), std::string::npos);
  EXPECT_EQ(patch.find("\r"), std::string::npos) << patch;
  EXPECT_NE(patch.find("sub/file"), std::string::npos) << patch;
  EXPECT_NE(Applied(patch, "cat a.py").find("TWO"), std::string::npos);
  EXPECT_FALSE(fs::exists("/pwned"));
}

}  // namespace
}  // namespace orrery::sandbox
