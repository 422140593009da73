#include "sandbox/image/unpack.h"

#include <fcntl.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#include <deque>

#include "sandbox/image/content_hash.h"
#include "sandbox/image/digest.h"
#include "sandbox/image/settle.h"
#include "sandbox/image/tree_index.h"
#include "tests/sandbox/image/image_testing.h"

namespace orrery::sandbox::image {
namespace {

using testing::HasSubstr;

class Unpack : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_UNLESS_ROOT();
    // A canary beside the tree: whatever an archive does, it stays as it is.
    WriteText(folder_ / "outside/secret", "secret");
    std::filesystem::create_directories(folder_ / "tree");
  }
  void TearDown() override {
    if (::geteuid() != 0) return;
    EXPECT_EQ(ReadText(folder_ / "outside/secret"), "secret");
    EXPECT_EQ(Shell("ls -A " + (folder_ / "outside")).output, "secret\n");
  }

  absl::StatusOr<LayerFacts> Run(const std::string& tar, UnpackOptions options = {}) {
    auto root = OpenFolder(folder_ / "tree");
    CHECK(root.ok());
    return UnpackLayer(ReadFrom(tar), root->get(), options);
  }
  std::string Error(const Tar& tar, const UnpackOptions& options = {}) {
    const auto facts = Run(tar.Finish(), options);
    return facts.ok() ? "accepted" : StatusText(facts.status());
  }
  std::string In(const std::string& name) const { return folder_ / ("tree/" + name); }

  TempFolder folder_;
};

TEST_F(Unpack, KeepsModesOwnersTimesLinksAndNames) {
  Tar tar;
  tar.Folder("./")
      .Folder("d/", 02775)
      .Add("d/f", "content", {.mode = 04751, .uid = 1000, .gid = 50});
  tar.Link("abs", "/etc/passwd").Link("d/up", "../../../../etc").HardLink("d/hard", "d/f");
  tar.Add("fifo", "", {.type = '6', .mode = 0600});
  tar.Pax("path", "e\xcc\x81-nfd").File("x", "nfd");  // as it is, not normalized
  tar.Pax("path", "\xff\xfe bytes").File("x", "not UTF-8");
  tar.Pax("path", std::string(250, 'n') + "/" + std::string(250, 'm')).File("x", "long");
  tar.Pax("mtime", "1234567890.123456789").File("time", "");
  const auto facts = Run(tar.Finish());
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->diff_id, DigestOf(tar.Finish()));
  EXPECT_EQ(StatOf(In("d")).st_mode & 07777, 02775u);
  const struct stat file = StatOf(In("d/f"));
  EXPECT_EQ(file.st_mode & 07777, 04751u);
  EXPECT_EQ(file.st_uid, 1000u);
  EXPECT_EQ(file.st_gid, 50u);
  EXPECT_EQ(file.st_nlink, 2u);
  EXPECT_EQ(file.st_mtim.tv_sec, 1'000'000'000);
  EXPECT_EQ(StatOf(In("d")).st_mtim.tv_sec, 1'000'000'000);
  EXPECT_EQ(std::filesystem::read_symlink(In("abs")), "/etc/passwd");
  EXPECT_EQ(std::filesystem::read_symlink(In("d/up")), "../../../../etc");
  EXPECT_TRUE(S_ISFIFO(StatOf(In("fifo")).st_mode));
  EXPECT_EQ(ReadText(In("e\xcc\x81-nfd")), "nfd");
  EXPECT_EQ(ReadText(In("\xff\xfe bytes")), "not UTF-8");
  EXPECT_EQ(ReadText(In(std::string(250, 'n') + "/" + std::string(250, 'm'))), "long");
  EXPECT_EQ(StatOf(In("time")).st_mtim.tv_nsec, 123456789);
}

// A folder with the set-group-id bit gives its group to what is made in it.
TEST_F(Unpack, GroupOfSetGroupIdFoldersIsNotInherited) {
  Tar tar;
  tar.Add("staff/", "", {.type = '5', .mode = 02775, .gid = 50});
  tar.Add("staff/root-file", "x", {.mode = 0644}).Folder("staff/below/", 0755);
  ASSERT_TRUE(Run(tar.Finish()).ok());
  EXPECT_EQ(StatOf(In("staff/root-file")).st_gid, 0u);
  EXPECT_EQ(StatOf(In("staff/below")).st_gid, 0u);
  EXPECT_EQ(StatOf(In("staff/below")).st_mode & 07777, 0755u);
}

TEST_F(Unpack, ParentsOutsideAreRefused) {
  EXPECT_THAT(Error(Tar().File("../outside/evil", "x")), HasSubstr("'..'"));
  EXPECT_THAT(Error(Tar().File("a/../../outside/evil", "x")), HasSubstr("'..'"));
  EXPECT_THAT(Error(Tar().File("a", "x").HardLink("b", "../outside/secret")), HasSubstr("'..'"));
  EXPECT_THAT(Error(Tar().Add("../../../.wh.etc", "", {})), HasSubstr("'..'"));
  EXPECT_THAT(Error(Tar().File("d/.wh...", "")), HasSubstr("whiteout of nothing"));
  EXPECT_THAT(Error(Tar().File("d/.wh..", "")), HasSubstr("whiteout of nothing"));
  EXPECT_THAT(Error(Tar().File("d/.wh.", "")), HasSubstr("whiteout of nothing"));
}

TEST_F(Unpack, AbsolutePathsStayInside) {
  ASSERT_TRUE(Run(Tar().File("/etc/inside", "x").Finish()).ok());
  EXPECT_EQ(ReadText(In("etc/inside")), "x");
}

// The old trick: a link out, then a file through it. The link is followed as the image would.
TEST_F(Unpack, WritesThroughLinksStayInside) {
  const std::string outside = folder_ / "outside";
  Tar tar;
  tar.Link("out", outside)
      .Link("up", "../../../../../../../" + outside)
      .Link("proc", "/proc/self/cwd");
  EXPECT_NE(Error(Tar(tar).File("out/evil", "x")), "");
  EXPECT_FALSE(Exists(outside + "/evil"));
  std::filesystem::remove_all(In(""));
  std::filesystem::create_directories(In(""));
  // With the folder inside, the file lands there.
  tar.Folder(outside.substr(1)).File("out/evil", "x").File("up/evil2", "y");
  const auto facts = Run(tar.Finish());
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(ReadText(In(outside.substr(1) + "/evil")), "x");
  EXPECT_EQ(ReadText(In(outside.substr(1) + "/evil2")), "y");
}

TEST_F(Unpack, LinksAsLastComponentAreReplacedNotFollowed) {
  const std::string secret = folder_ / "outside/secret";
  for (Tar tar :
       {Tar().Link("a", secret).File("a", "x"), Tar().Link("a", secret).Folder("a"),
        Tar().Link("a", secret).File("b", "x").HardLink("a", "b"),
        Tar().Link("a", secret).Xattr("user.k", "v").Add("a", std::string(3 << 20, 'x'), {})}) {
    std::filesystem::remove_all(In(""));
    std::filesystem::create_directories(In(""));
    ASSERT_TRUE(Run(tar.Finish()).ok());
    EXPECT_FALSE(S_ISLNK(StatOf(In("a")).st_mode));
  }
}

TEST_F(Unpack, HardLinksReachNothingOutside) {
  const std::string secret = folder_ / "outside/secret";
  EXPECT_THAT(Error(Tar().HardLink("a", secret)), HasSubstr("hard link"));
  // A link to a link is a link to the link itself.
  ASSERT_TRUE(Run(Tar().Link("l", secret).HardLink("h", "l").Finish()).ok());
  EXPECT_TRUE(S_ISLNK(StatOf(In("h")).st_mode));
  EXPECT_EQ(StatOf(secret).st_nlink, 1u);
  EXPECT_THAT(Error(Tar().Folder("d").HardLink("h2", "d")), HasSubstr("no file"));
  EXPECT_THAT(Error(Tar().Add(".wh.gone", "", {}).HardLink("h3", "gone")), HasSubstr("no file"));
}

TEST_F(Unpack, DevicesAreRefusedOrLeftOut) {
  EXPECT_THAT(Error(Tar().Device("disk", 8, 0, '4')), HasSubstr("--drop-devices"));
  EXPECT_THAT(Error(Tar().Device("usr/null", 1, 3)), HasSubstr("device node"));
  // A forged whiteout is a device too.
  EXPECT_THAT(Error(Tar().Device("etc", 0, 0)), HasSubstr("device node"));
  const auto facts = Run(Tar().Device("dev/null", 1, 3).Device("dev/sda", 8, 0, '4').Finish());
  ASSERT_TRUE(facts.ok());
  EXPECT_THAT(facts->notes, testing::ElementsAre("left out: 2 device nodes below /dev"));
  EXPECT_FALSE(Exists(In("dev/null")));
  UnpackOptions drop;
  drop.drop_devices = true;
  ASSERT_TRUE(Run(Tar().Device("disk", 8, 0, '4').Finish(), drop).ok());
  EXPECT_FALSE(Exists(In("disk")));
}

TEST_F(Unpack, OnlyHarmlessAttributesComeThrough) {
  Tar tar;
  tar.Xattr("user.good", "v")
      .Xattr("user.overlay.opaque", "y")
      .Xattr("trusted.overlay.opaque", "y");
  tar.Xattr("trusted.overlay.redirect", "/").Xattr("security.selinux", "x").Folder("d");
  tar.Xattr("user.overlay.metacopy", "").Xattr("system.posix_acl_access", "junk").File("f", "x");
  tar.Xattr("user.onlink", "x").Link("l", "f");
  // cap_net_raw=ep, version 2
  const std::string capability("\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20);
  tar.Xattr("security.capability", capability).Add("ping", "x", {.mode = 0755, .uid = 5});
  const auto facts = Run(tar.Finish());
  ASSERT_TRUE(facts.ok()) << facts.status();
  const auto names = [&](const std::string& path) {
    std::vector<std::string> found;
    const auto xattrs = ReadXattrs(In(path));
    CHECK(xattrs.ok());
    for (const Xattr& xattr : *xattrs) found.push_back(xattr.name);
    return found;
  };
  EXPECT_THAT(names("d"), testing::ElementsAre("user.good"));
  EXPECT_THAT(names("f"), testing::IsEmpty());
  EXPECT_THAT(names("l"), testing::IsEmpty());
  EXPECT_THAT(names("ping"), testing::ElementsAre("security.capability"));
  EXPECT_EQ(facts->notes.size(), 1u);
}

TEST_F(Unpack, WhiteoutsAndOpaqueFolders) {
  Tar tar;
  tar.Folder("a").Add("a/.wh.gone", "", {}).Folder("b").Add("b/.wh..wh..opq", "", {});
  tar.File("c/kept", "x").Add("c/.wh.kept", "", {});                    // its own file stays
  tar.Add(".wh.again", "", {}).Folder("again").File("again/new", "y");  // removed and made anew
  tar.Add(".wh.tree", "", {}).File("tree/below", "z");
  tar.Add(".wh..wh.plnk", "", {});
  const auto facts = Run(tar.Finish());
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_TRUE(IsWhiteout(StatOf(In("a/gone"))));
  const auto opaque = [&](const std::string& path) {
    char value = 0;
    return ::lgetxattr(In(path).c_str(), kOpaqueXattr, &value, 1) == 1 && value == 'y';
  };
  EXPECT_TRUE(opaque("b"));
  EXPECT_FALSE(opaque("a"));
  EXPECT_EQ(ReadText(In("c/kept")), "x");
  EXPECT_TRUE(opaque("again"));
  EXPECT_TRUE(opaque("tree"));
  EXPECT_EQ(ReadText(In("tree/below")), "z");
}

TEST_F(Unpack, LaterEntriesReplaceEarlierOnes) {
  Tar tar;
  tar.File("f", "one").File("f", "two").Folder("d").File("d/x", "x").File("d", "now a file");
  tar.File("g", "file").Folder("g").File("g/below", "below").File("h", "a").HardLink("i", "h");
  tar.File("h", "b").Folder("keep").File("keep/in", "in").Folder("keep", 0700);
  ASSERT_TRUE(Run(tar.Finish()).ok());
  EXPECT_EQ(ReadText(In("f")), "two");
  EXPECT_EQ(ReadText(In("d")), "now a file");
  EXPECT_EQ(ReadText(In("g/below")), "below");
  EXPECT_EQ(ReadText(In("h")), "b");
  EXPECT_EQ(ReadText(In("i")), "a");
  EXPECT_EQ(ReadText(In("keep/in")), "in");
  EXPECT_EQ(StatOf(In("keep")).st_mode & 07777, 0700u);
}

TEST_F(Unpack, ManyFilesByManyThreadsAreAllThere) {
  Tar tar;
  for (int i = 0; i < 3000; ++i) {
    tar.File("d" + std::to_string(i % 37) + "/f" + std::to_string(i), std::to_string(i));
  }
  UnpackOptions options;
  options.threads = 8;
  const auto facts = Run(tar.Finish(), options);
  ASSERT_TRUE(facts.ok());
  EXPECT_EQ(facts->tree.hashes.size(), 3000u);
  for (int i = 0; i < 3000; ++i) {
    const std::string path = "d" + std::to_string(i % 37) + "/f" + std::to_string(i);
    EXPECT_EQ(ReadText(In(path)), std::to_string(i));
    EXPECT_EQ(facts->tree.hashes.at(StatOf(In(path)).st_ino), HashContent(std::to_string(i)));
  }
}

TEST_F(Unpack, BombsAreBounded) {
  UnpackOptions few;
  few.limits.max_entries = 10;
  Tar many;
  for (int i = 0; i < 11; ++i) many.File("f" + std::to_string(i), "");
  EXPECT_THAT(Error(many, few), HasSubstr("max_entries"));
  UnpackOptions small;
  small.limits.max_bytes = 1 << 20;
  EXPECT_THAT(Error(Tar().Add("big", "", {.size = (int64_t{8} << 30) - 1}), small),
              HasSubstr("max_bytes"));
  // A sparse file of 1 EiB in a few bytes.
  Tar sparse;
  sparse.Pax("GNU.sparse.major", "1").Pax("GNU.sparse.minor", "0");
  sparse.Pax("GNU.sparse.realsize", "1152921504606846976").Pax("GNU.sparse.name", "hole");
  sparse.File("x", "1\n1152921504606846975\n1\n" + std::string(512 - 24, '\0') + "x");
  EXPECT_THAT(Error(sparse), HasSubstr("max_bytes"));
}

TEST_F(Unpack, OwnersBeyondTheMap) {
  Tar tar;
  tar.Add("f", "x", {.uid = 70'000});
  EXPECT_THAT(Error(tar), HasSubstr("--squash-owners"));
  UnpackOptions squash;
  squash.squash_owners = true;
  ASSERT_TRUE(Run(tar.Finish(), squash).ok());
  EXPECT_EQ(StatOf(In("f")).st_uid, 65534u);
}

TEST_F(Unpack, BrokenTarsAreErrors) {
  EXPECT_THAT(StatusText(Run("no tar at all, but long enough to be looked at").status()),
              HasSubstr("tar"));
  const std::string whole = Tar().File("a", std::string(5000, 'x')).Finish();
  EXPECT_FALSE(Run(whole.substr(0, 2000)).ok());
  // A file below a file.
  EXPECT_THAT(Error(Tar().File("a", "x").File("a/b", "y")), HasSubstr("no folder"));
  EXPECT_THAT(Error(Tar().Link("loop", "loop").File("loop/b", "y")), HasSubstr("loop"));
  EXPECT_FALSE(Run(Tar().Pax("path", std::string(300, 'n')).File("x", "").Finish()).ok());
}

// umoci 0.4 ends a layer behind its last byte.
TEST_F(Unpack, PaddingAtTheEndMayBeMissing) {
  const std::string bytes = Tar().File("a", "12345").Bytes();
  const auto facts = Run(bytes.substr(0, 512 + 5));
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_TRUE(facts->padded);
  EXPECT_EQ(ReadText(In("a")), "12345");
}

class Settle : public Unpack {
 protected:
  // Unpacks a layer over those before it.
  absl::Status Add(const Tar& tar) {
    const std::string tree = folder_ / ("layer" + std::to_string(trees_.size()));
    std::filesystem::create_directories(tree);
    auto root = OpenFolder(tree);
    CHECK(root.ok());
    auto facts = UnpackLayer(ReadFrom(bytes_.emplace_back(tar.Finish())), root->get(), {});
    RETURN_IF_ERROR(facts.status());
    RETURN_IF_ERROR(SettleLayer(root->get(), trees_, facts->tree));
    trees_.push_back(tree);
    return absl::OkStatus();
  }
  std::deque<std::string> bytes_;
  std::vector<std::string> trees_;
};

TEST_F(Settle, FoldersThatAreNotNamedKeepTheLowerOnesAttributes) {
  Tar lower;
  lower.Add("./", "", {.type = '5', .mode = 0711})
      .Add("tmp/", "", {.type = '5', .mode = 01777, .gid = 7});
  ASSERT_TRUE(Add(lower).ok());
  ASSERT_TRUE(Add(Tar().File("tmp/x/f", "x")).ok());
  EXPECT_EQ(StatOf(trees_[1] + "/tmp").st_mode & 07777, 01777u);
  EXPECT_EQ(StatOf(trees_[1] + "/tmp").st_gid, 7u);
  EXPECT_EQ(StatOf(trees_[1] + "/tmp").st_mtim.tv_sec, 1'000'000'000);
  EXPECT_EQ(StatOf(trees_[1]).st_mode & 07777, 0711u);
  EXPECT_EQ(StatOf(trees_[1] + "/tmp/x").st_mode & 07777, 0755u);
}

TEST_F(Settle, WhiteoutsOfNothingVanish) {
  ASSERT_TRUE(Add(Tar().File("etc/a", "a").File("etc/b", "b").Add(".wh.nothing", "", {})).ok());
  EXPECT_FALSE(Exists(trees_[0] + "/nothing"));
  Tar second;
  second.Add("etc/.wh.a", "", {}).Add("etc/.wh.never", "", {}).Folder("n").Add("n/.wh.x", "", {});
  ASSERT_TRUE(Add(second).ok());
  EXPECT_TRUE(Exists(trees_[1] + "/etc/a"));
  EXPECT_FALSE(Exists(trees_[1] + "/etc/never"));
  EXPECT_FALSE(Exists(trees_[1] + "/n/x"));
  // a is gone already, for a third layer.
  ASSERT_TRUE(Add(Tar().Add("etc/.wh.a", "", {}).Add("etc/.wh.b", "", {})).ok());
  EXPECT_FALSE(Exists(trees_[2] + "/etc/a"));
  EXPECT_TRUE(Exists(trees_[2] + "/etc/b"));
}

TEST_F(Settle, MountTargetsAreFolders) {
  for (const char* target : {"proc", "sys", "dev"}) {
    EXPECT_THAT(StatusText(Add(Tar().Link(target, "/etc"))), HasSubstr("symbolic link"));
    EXPECT_THAT(StatusText(Add(Tar().File(target, ""))), HasSubstr("no folder"));
    RemoveTree(folder_ / "layer0").IgnoreError();
  }
  ASSERT_TRUE(Add(Tar().File("etc/x", "x")).ok());
  for (const char* target : {"proc", "sys", "dev"}) {
    EXPECT_TRUE(S_ISDIR(StatOf(trees_[0] + "/" + target).st_mode));
    EXPECT_FALSE(Add(Tar().Link(target, "/etc")).ok());
    RemoveTree(folder_ / "layer1").IgnoreError();
    EXPECT_THAT(StatusText(Add(Tar().Add(std::string(".wh.") + target, "", {}))),
                HasSubstr("removed"));
    RemoveTree(folder_ / "layer1").IgnoreError();
  }
}

TEST_F(Unpack, IndexFromUnpackingEqualsIndexFromReading) {
  Tar tar;
  tar.Folder("d")
      .File("d/small", "x")
      .File("d/large", std::string(3 << 20, 'y') + std::string(1 << 20, '\0'));
  tar.HardLink("d/hard", "d/large").Link("d/l", "small").Xattr("user.a", "b").File("attr", "");
  const auto facts = Run(tar.Finish());
  ASSERT_TRUE(facts.ok());
  const auto root = OpenFolder(In(""));
  const auto known = IndexTree(root->get(), &facts->tree.hashes);
  const auto read = IndexTree(root->get(), nullptr);
  ASSERT_TRUE(known.ok() && read.ok());
  EXPECT_EQ(known->text, read->text);
  EXPECT_EQ(known->files, 7);
}

TEST(ContentHash, HolesAndZerosAreTheSame) {
  TempFolder folder;
  const std::string holes = folder / "holes", zeros = folder / "zeros";
  Shell("printf a > " + holes + "; truncate -s 5M " + holes + "; printf b >> " + holes);
  WriteText(zeros, "a" + std::string((5 << 20) - 1, '\0') + "b");
  const Fd a(::open(holes.c_str(), O_RDONLY)), b(::open(zeros.c_str(), O_RDONLY));
  EXPECT_EQ(*HashFile(a.get(), holes), *HashFile(b.get(), zeros));
  EXPECT_EQ(*HashFile(b.get(), zeros), HashContent(ReadText(zeros)));
  EXPECT_NE(HashContent("a"), HashContent(std::string("a\0", 2)));
}

TEST(RemoveTreeTest, DeepAndWide) {
  TempFolder folder;
  // 2,000 folders deep: no path reaches the bottom.
  ASSERT_EQ(
      Shell("cd " + folder.path() +
            " && mkdir deep && cd deep && for i in $(seq 50); do mkdir -p "
            "a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a && "
            "cd -P "
            "a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a "
            "2>/dev/null"
            " || exit 1; touch f; done")
          .code,
      0);
  Shell("cd " + folder.path() +
        " && mkdir wide && cd wide && for i in $(seq 300); do mkdir -p $i/x; done");
  EXPECT_TRUE(RemoveTree(folder / "deep").ok());
  EXPECT_TRUE(RemoveTree(folder / "wide").ok());
  EXPECT_TRUE(RemoveTree(folder / "nothing").ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace orrery::sandbox::image
