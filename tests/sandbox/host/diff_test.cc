// Diff: what an episode changed, and nothing else. A tree edited at random, its diff applied to a
// pristine copy gives the same tree.
#include "sandbox/diff/diff.h"

#include <random>

#include "tests/sandbox/host/testing.h"

namespace orrery::sandbox {
namespace {

namespace fs = std::filesystem;

class DiffTest : public HostTest {
 protected:
  // "+/path", "~/path", "!/path" (content), "-/path"
  static std::string Summary(Sandbox& sandbox) {
    const auto changes = sandbox.Diff();
    if (!changes.ok()) return changes.status().ToString();
    std::string text;
    for (const Change& change : *changes) {
      text += change.kind == Change::Kind::kAdded     ? "+"
              : change.kind == Change::Kind::kDeleted ? "-"
              : change.content                        ? "!"
                                                      : "~";
      text += change.path + " ";
    }
    return text;
  }
};

TEST_F(DiffTest, NothingChangedIsEmpty) {
  const auto sandbox = Make();
  EXPECT_EQ(Summary(*sandbox), "");
  sandbox->Exec(
      Shell("cat /etc/passwd > /tmp/p; rm /tmp/p; cp /etc/passwd /tmp/q; cat /tmp/q > "
            "/etc/passwd; rm /tmp/q; touch /bin/busybox"));
  EXPECT_EQ(Summary(*sandbox), "");
}

TEST_F(DiffTest, EveryKindOfChange) {
  const auto sandbox = Make();
  sandbox->Exec(
      Shell("mkdir -p /new/empty; echo x > /new/f; rm /bin/seq; chmod 700 /tmp; "
            "echo y >> /etc/passwd; rm /bin/ls; ln -s elsewhere /bin/ls; "
            "chown 5:6 /root"));
  EXPECT_EQ(Summary(*sandbox),
            "!/bin/ls -/bin/seq !/etc/passwd +/new +/new/empty +/new/f ~/root ~/tmp ");
  const auto changes = *sandbox->Diff();
  EXPECT_EQ(changes[0].info.target, "elsewhere");
  EXPECT_EQ(changes[6].info.uid, 5u);
  EXPECT_EQ(changes[6].info.gid, 6u);
  std::string content;
  EXPECT_TRUE(sandbox->ReadChanged("/new/f", [&](std::string_view b) { content += b; }).ok());
  EXPECT_EQ(content, "x\n");
}

TEST_F(DiffTest, ReplacedFolderShowsWhatIsGone) {
  const auto sandbox = Make();
  sandbox->Exec(Shell("/bin/busybox rm -r /etc; /bin/busybox mkdir /etc; echo n > /etc/new"));
  EXPECT_EQ(Summary(*sandbox), "-/etc/hosts +/etc/new -/etc/passwd ");
}

TEST_F(DiffTest, LooksThroughSnapshots) {
  const auto sandbox = Make();
  sandbox->Exec(Shell("echo 1 > /a; echo 1 > /b; rm /bin/seq"));
  ASSERT_TRUE(sandbox->TakeSnapshot().ok());
  sandbox->Exec(Shell("rm /a; echo 2 > /b; ln -s busybox /bin/seq"));
  EXPECT_EQ(Summary(*sandbox), "+/b ");
}

// Applies a diff to a copy of the image.
void Apply(Sandbox& sandbox, const std::vector<Change>& changes, const std::string& root) {
  for (const Change& change : changes) {
    const std::string path = root + change.path;
    if (change.kind == Change::Kind::kDeleted || change.content) {
      struct stat info {};
      const bool stays =
          ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && S_ISDIR(change.info.mode);
      if (!stays) fs::remove_all(path);
    }
    if (change.kind == Change::Kind::kDeleted) continue;
    const mode_t type = change.info.mode & S_IFMT;
    if (type == S_IFDIR) fs::create_directory(path);
    if (type == S_IFLNK && change.content) fs::create_symlink(change.info.target, path);
    if (type == S_IFREG && change.content) {
      std::FILE* file = std::fopen(path.c_str(), "w");
      const absl::Status read = sandbox.ReadChanged(
          change.path, [&](std::string_view b) { std::fwrite(b.data(), 1, b.size(), file); });
      EXPECT_TRUE(read.ok()) << read;
      std::fclose(file);
    }
    EXPECT_EQ(::lchown(path.c_str(), change.info.uid, change.info.gid), 0);
    if (type != S_IFLNK) {
      EXPECT_EQ(::chmod(path.c_str(), change.info.mode & 07777), 0);
    }
  }
}

// A script of random edits below /t.
std::string RandomEdits(std::mt19937& random, int count) {
  const auto path = [&] {
    std::string text = "/t";
    for (unsigned depth = 1 + random() % 3; depth > 0; --depth) {
      text += "/" + std::string(1, static_cast<char>('a' + random() % 4));
    }
    return text;
  };
  std::string script;
  for (int i = 0; i < count; ++i) {
    const std::string a = path(), b = path();
    switch (random() % 8) {
      case 0:
        script += "echo " + std::to_string(random() % 3) + " > " + a;
        break;
      case 1:
        script += "mkdir -p " + a;
        break;
      case 2:
        script += "rm -rf " + a;
        break;
      case 3:
        script += "mv " + a + " " + b;
        break;
      case 4:
        script += "ln -sfn " + b + " " + a;
        break;
      case 5:
        script += "chmod " + std::to_string(600 + random() % 3 * 55) + " " + a;
        break;
      case 6:
        script += "chown " + std::to_string(random() % 3) + " " + a;
        break;
      case 7:
        script += "cp -a " + a + " " + b;
        break;
    }
    script += " 2>/dev/null\n";
  }
  return script;
}

// Every path below /t with type, permissions, owner, target and bytes.
constexpr const char* kLook = R"(find /t | sort | while read -r p; do
  stat -c '%n %f %u %g' "$p"
  if test -L "$p"; then ls -l "$p" | grep -o '[^ ]*$'; elif test -f "$p"; then cat "$p"; fi
done)";

TEST_F(DiffTest, RandomTreesComeBack) {
  std::mt19937 random(5);
#ifdef ORRERY_LONG_SERIES
  const int trees = 1000;
#else
  const int trees = std::getenv("ORRERY_LONG") != nullptr ? 1000 : 25;
#endif
  const std::string base = work_.path() + "/image";
  for (int i = 0; i < trees; ++i) {
    fs::remove_all(base + "/t");
    fs::create_directories(base + "/t/a/b");
    const std::string first = work_.path() + "/first";
    fs::remove_all(first);
    const auto maker = Make();  // the image's own tree is made by random edits too
    maker->Exec(Shell(RandomEdits(random, 20)));
    fs::create_directories(first);
    fs::copy(base, first, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    Apply(*maker, *maker->Diff(), first);

    SandboxOptions options = options_;
    options.image.layers = {first};
    auto sandbox = host_->Create(options);
    ASSERT_TRUE(sandbox.ok()) << sandbox.status();
    const std::string script = RandomEdits(random, 25);
    (*sandbox)->Exec(Shell(script));
    if (i % 3 == 0) {
      ASSERT_TRUE((*sandbox)->TakeSnapshot().ok());
      (*sandbox)->Exec(Shell(RandomEdits(random, 10)));
    }
    const auto changes = (*sandbox)->Diff();
    ASSERT_TRUE(changes.ok()) << changes.status();
    const std::string copy = work_.path() + "/copy";
    fs::remove_all(copy);
    fs::copy(first, copy, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    for (const auto& entry : fs::recursive_directory_iterator(first)) {
      struct stat info {};
      ::lstat(entry.path().c_str(), &info);
      const std::string path = copy + entry.path().string().substr(first.size());
      ASSERT_EQ(::lchown(path.c_str(), info.st_uid, info.st_gid), 0);
      if (!entry.is_symlink()) {
        ASSERT_EQ(::chmod(path.c_str(), info.st_mode & 07777), 0);
      }
    }
    Apply(**sandbox, *changes, copy);
    // The view from inside of both.
    options.image.layers = {copy};
    auto other = host_->Create(options);
    ASSERT_TRUE(other.ok()) << other.status();
    const ExecRequest look = Shell(kLook);
    const std::string seen = (*sandbox)->Exec(look).output.Text();
    ASSERT_EQ(seen, (*other)->Exec(look).output.Text()) << script;
    ASSERT_NE(seen.find("/t "), std::string::npos) << seen;
  }
}

}  // namespace
}  // namespace orrery::sandbox
