#include "sandbox/image/history.h"

#include "sandbox/image/view.h"
#include "tests/sandbox/image/image_testing.h"

namespace orrery::sandbox::image {
namespace {

using testing::HasSubstr;

class History : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_UNLESS_ROOT();
    SKIP_WITHOUT("git");
    std::filesystem::create_directories(repo());
    Git("init -q -b trunk . && git config user.name n && git config user.email e");
    Commit("a.txt", "one");
    Git("tag v1");
    Commit("a.txt", "base");
    base_ = Trimmed(Git("rev-parse HEAD"));
  }

  std::string repo() const { return folder_ / "root/testbed"; }
  std::string Git(const std::string& command) const {
    const ShellResult result = Shell("cd " + repo() + " && git " + command);
    EXPECT_EQ(result.code, 0) << command << result.output;
    return result.output;
  }
  void Commit(const std::string& file, const std::string& text) {
    WriteText(repo() + "/" + file, text);
    Git("add -A && git commit -q -m '" + text + "'");
  }
  static std::string Trimmed(std::string text) {
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
  }

  // The image's view as a folder, by an overlay where the kernel lets us.
  std::string Import(const std::string& base, std::string* error = nullptr) {
    const auto store = OpenStore(folder_ / "store");
    ImportOptions options;
    options.name = "task";
    options.history = {{"/testbed", base}};
    const auto image = store->Import(folder_ / "root", options);
    if (!image.ok()) {
      if (error != nullptr) *error = StatusText(image.status());
      return "";
    }
    ExpectVerified(*store);
    const auto prepared = store->Resolve("task");
    EXPECT_EQ(prepared->layers.size(), 2u);
    return prepared->layers[1] + "/testbed/.git";
  }

  // git on the new folder with the old working tree.
  std::string In(const std::string& git_dir, const std::string& command) const {
    return Shell("cd " + repo() + " && git --git-dir=" + git_dir +
                 " --work-tree=. -c safe.directory='*' " + command)
        .output;
  }

  TempFolder folder_;
  std::string base_;
};

TEST_F(History, NothingNewerThanTheBaseIsLeft) {
  const std::string secret = "the-fix-nobody-may-see";
  Commit("fix.txt", secret);
  const std::string fix = Trimmed(Git("rev-parse HEAD"));
  Git("tag future && git tag -a -m x annotated && git branch next && git notes add -m note");
  Git("update-ref refs/remotes/origin/main HEAD && git stash list");
  WriteText(repo() + "/b.txt", secret + "-stashed");
  Git("add b.txt && git stash -q && git replace v1 HEAD");
  Git("gc -q --aggressive");  // packs with everything
  Commit("loose.txt", secret + "-loose");
  WriteText(repo() + "/a.txt", "edited");
  const std::string git_dir = Import(base_);
  ASSERT_NE(git_dir, "");
  EXPECT_EQ(Trimmed(In(git_dir, "rev-parse HEAD")), base_);
  EXPECT_EQ(Trimmed(In(git_dir, "symbolic-ref HEAD")), "refs/heads/trunk");
  EXPECT_EQ(Trimmed(In(git_dir, "for-each-ref")), base_ + " commit\trefs/heads/trunk");
  EXPECT_EQ(In(git_dir, "rev-list --all --reflog --not " + base_), "");
  EXPECT_THAT(In(git_dir, "fsck --full --strict --unreachable"),
              testing::Not(HasSubstr("unreachable")));
  EXPECT_EQ(Shell("cd " + git_dir + " && git --git-dir=. cat-file -e " + fix).code == 0, false);
  // Exactly the objects that the base reaches.
  EXPECT_EQ(In(git_dir, "cat-file --batch-all-objects --batch-check='%(objectname)' | sort"),
            Shell("cd " + repo() + " && GIT_NO_REPLACE_OBJECTS=1 git rev-list --objects " + base_ +
                  " | cut -c1-40 | sort")
                .output);
  const std::string all = Shell("cd " + git_dir +
                                " && git --git-dir=. log --all -p; "
                                "git --git-dir=. log -g --all; grep -r " +
                                secret + " .")
                              .output;
  EXPECT_THAT(all, testing::Not(HasSubstr(secret)));
  EXPECT_EQ(Trimmed(In(git_dir, "rev-list --count HEAD")), "2");
  // The working tree is as it was; its difference to the base shows.
  EXPECT_THAT(In(git_dir, "status --porcelain"), HasSubstr(" M a.txt"));
  EXPECT_THAT(In(git_dir, "status --porcelain"), HasSubstr("?? fix.txt"));
}

TEST_F(History, HostileConfigAndHooksDoNotRun) {
  const std::string canary = folder_ / "canary";
  const std::string script = "#!/bin/sh\ntouch " + canary + "\n";
  for (const char* hook : {"post-checkout", "reference-transaction", "post-index-change",
                           "fsmonitor", "pre-auto-gc"}) {
    WriteText(repo() + "/.git/hooks/" + hook, script);
    Shell("chmod 755 " + repo() + "/.git/hooks/" + hook);
  }
  WriteText(repo() + "/evil.sh", script);
  Shell("chmod 755 " + repo() + "/evil.sh");
  std::ofstream(repo() + "/.git/config", std::ios::app)
      << "[core]\n\tfsmonitor = " << repo() << "/evil.sh\n\thooksPath = " << repo()
      << "/.git/hooks\n\tpager = " << repo() << "/evil.sh\n\tsshCommand = " << repo()
      << "/evil.sh\n[include]\n\tpath = /etc/passwd\n[filter \"x\"]\n\tsmudge = " << repo()
      << "/evil.sh\n\tclean = " << repo() << "/evil.sh\n[remote \"o\"]\n\tpromisor = true\n"
      << "\tvcs = evil\n[extensions]\n\tpartialClone = o\n";
  WriteText(repo() + "/.gitattributes", "* filter=x\n");
  // A neighbour of the host by alternates, and links as objects.
  Shell(
      "mkdir -p " + (folder_ / "other") + " && cd " + (folder_ / "other") +
      " && git init -q . && git -c user.name=n -c user.email=e commit -q --allow-empty -m hidden");
  const std::string hidden =
      Trimmed(Shell("cd " + (folder_ / "other") + " && git rev-parse HEAD").output);
  WriteText(repo() + "/.git/objects/info/alternates", (folder_ / "other/.git/objects") + "\n");
  Shell("ln -s /etc/shadow " + repo() + "/.git/objects/pack/pack-" + std::string(40, 'a') +
        ".pack");
  Shell("mkdir -p " + repo() + "/.git/objects/aa; ln -s /etc/shadow " + repo() +
        "/.git/objects/aa/" + std::string(38, 'b'));
  const std::string git_dir = Import(base_);
  ASSERT_NE(git_dir, "");
  EXPECT_FALSE(Exists(canary));
  EXPECT_FALSE(Exists(git_dir + "/hooks"));
  EXPECT_THAT(ReadText(git_dir + "/config"), testing::Not(HasSubstr("evil")));
  std::string error;
  EXPECT_EQ(Import(hidden, &error), "");
  EXPECT_THAT(error, HasSubstr("no commit"));
}

TEST_F(History, BaseIsHeadWhereNoneIsNamed) {
  Commit("x", "x");
  const std::string head = Trimmed(Git("rev-parse HEAD"));
  EXPECT_EQ(Trimmed(In(Import(""), "rev-parse HEAD")), head);
  Git("pack-refs --all");
  EXPECT_EQ(Trimmed(In(Import(""), "rev-parse HEAD")), head);
  Git("checkout -q --detach v1");
  const std::string git_dir = Import("");
  EXPECT_EQ(Trimmed(In(git_dir, "rev-parse HEAD")), Trimmed(Git("rev-parse v1")));
  EXPECT_EQ(In(git_dir, "for-each-ref"), "");
}

TEST_F(History, OwnerAndDigestAreStable) {
  Shell("chown -R 1000:1000 " + repo());
  const std::string first = Import(base_);
  ASSERT_NE(first, "");
  EXPECT_EQ(StatOf(first).st_uid, 1000u);
  EXPECT_EQ(StatOf(first + "/HEAD").st_uid, 1000u);
  EXPECT_EQ(Import(base_), first);
}

TEST_F(History, MistakesAreNamed) {
  std::string error;
  EXPECT_EQ(Import("HEAD", &error), "");
  EXPECT_THAT(error, HasSubstr("hexadecimal"));
  EXPECT_EQ(Import(std::string(40, '0'), &error), "");
  EXPECT_THAT(error, HasSubstr("no commit"));
  EXPECT_EQ(Import(Trimmed(Git("rev-parse HEAD^{tree}")), &error), "");
  EXPECT_THAT(error, HasSubstr("it is a tree"));
  Shell("mv " + repo() + "/.git " + repo() + "/not-git");
  EXPECT_EQ(Import(base_, &error), "");
  EXPECT_THAT(error, HasSubstr("no git repository"));
  Shell("ln -s not-git " + repo() + "/.git");
  EXPECT_EQ(Import(base_, &error), "");
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "store/staging"));
}

TEST(View, TopmostEntryWins) {
  SKIP_UNLESS_ROOT();
  TempFolder folder;
  const std::string low = folder / "low", high = folder / "high";
  Shell("cd " + folder.path() +
        " && mkdir -p low/a low/b high/a high/b && echo l > low/a/x && "
        "echo l > low/a/y && echo l > low/b/z && echo h > high/a/x && mknod high/a/y c 0 0 && "
        "echo h > high/b/n && ln -s /a/x low/link && ln -s ../../../a high/up");
  ASSERT_EQ(::system(("setfattr -n trusted.overlay.opaque -v y " + high +
                      "/b 2>/dev/null || "
                      "python3 -c \"import os; os.setxattr('" +
                      high + "/b', 'trusted.overlay.opaque', b'y')\"")
                         .c_str()),
            0);
  const LayerView view({low, high});
  EXPECT_EQ(view.Find({"a", "x"})->host_path, high + "/a/x");
  EXPECT_FALSE(view.Find({"a", "y"}).has_value());
  EXPECT_FALSE(view.Find({"b", "z"}).has_value());
  EXPECT_THAT(*view.List({"a"}), testing::ElementsAre("x"));
  EXPECT_THAT(*view.List({"b"}), testing::ElementsAre("n"));
  EXPECT_EQ(view.Follow("link")->host_path, high + "/a/x");
  EXPECT_EQ(view.Follow("up/x")->host_path, high + "/a/x");
  EXPECT_FALSE(view.Find({"link", "x"}).has_value());
}

}  // namespace
}  // namespace orrery::sandbox::image
