#include <sys/wait.h>
#include <sys/xattr.h>

#include <random>
#include <thread>

#include "sandbox/image/digest.h"
#include "sandbox/image/install.h"
#include "tests/sandbox/image/image_testing.h"

namespace orrery::sandbox::image {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Store : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_UNLESS_ROOT();
    store_ = OpenStore(folder_ / "store");
  }
  std::string Save(const std::string& name, const std::string& bytes) {
    WriteText(folder_ / name, bytes);
    return folder_ / name;
  }
  absl::StatusOr<ImageSummary> Import(const std::string& name, const Tar& tar,
                                      const ImportOptions& options = {}) {
    return store_->Import(Save(name, tar.Finish()), options);
  }
  static Tar Root(const std::string& text) {
    return Tar().Folder("etc").File("etc/what", text).Folder("tmp", 01777);
  }
  // A folder as docker save writes it, with these layers.
  std::string DockerArchive(const std::vector<std::string>& layers, const std::string& tag,
                            const std::string& config_more = "", bool wrong = false) {
    std::string diff_ids, names;
    Tar tar;
    for (size_t i = 0; i < layers.size(); ++i) {
      const std::string name = "layer" + std::to_string(i) + ".tar";
      diff_ids += (i == 0 ? "\"" : ",\"") + DigestOf(wrong ? "x" : layers[i]) + "\"";
      names += (i == 0 ? "\"" : ",\"") + std::string("blobs/") + name + "\"";
      tar.File("blobs/" + name, layers[i]);
    }
    const std::string config = R"({"architecture":"amd64","os":"linux","config":{)" + config_more +
                               R"(},"rootfs":{"type":"layers","diff_ids":[)" + diff_ids + "]}}";
    tar.File(HexOf(DigestOf(config)) + ".json", config);
    tar.File("manifest.json", R"([{"Config":")" + HexOf(DigestOf(config)) +
                                  R"(.json","RepoTags":[")" + tag + R"("],"Layers":[)" + names +
                                  "]}]");
    return tar.Finish();
  }

  TempFolder folder_;
  std::unique_ptr<ImageStore> store_;
};

TEST_F(Store, IsPrivate) {
  EXPECT_EQ(StatOf(folder_ / "store").st_mode & 07777, 0700u);
  for (const char* name : {"images", "names", "layers", "blobs", "staging", "trash", "locks"}) {
    EXPECT_EQ(StatOf(folder_ / ("store/" + std::string(name))).st_mode & 07777, 0700u);
  }
}

TEST_F(Store, RootFileSystemsOfEachFormAreOneImage) {
  const std::string tar = Root("hello").Finish();
  ImportOptions options;
  options.config = {.env = {"A=b"}, .user = "1000", .working_dir = "/etc"};
  const auto plain = store_->Import(Save("x.tar", tar), options);
  const auto gzip = store_->Import(Save("x.tar.gz", Gzip(tar)), options);
  const auto zstd = store_->Import(Save("x.tar.zst", Zstd(tar)), options);
  ASSERT_TRUE(plain.ok() && gzip.ok() && zstd.ok()) << plain.status() << gzip.status();
  EXPECT_EQ(plain->id, gzip->id);
  EXPECT_EQ(plain->id, zstd->id);
  EXPECT_THAT(zstd->names, ElementsAre("x:latest"));
  EXPECT_EQ(zstd->architecture, HostArchitecture());
  const auto image = store_->Resolve("x");
  ASSERT_TRUE(image.ok());
  EXPECT_THAT(image->config.env, ElementsAre("A=b"));
  EXPECT_EQ(image->config.user, "1000");
  EXPECT_EQ(image->config.working_dir, "/etc");
  ASSERT_EQ(image->layers.size(), 1u);
  EXPECT_EQ(ReadText(image->layers[0] + "/etc/what"), "hello");
  ExpectVerified(*store_);
}

TEST_F(Store, AFolderBecomesTheSameTree) {
  const std::string tree = folder_ / "tree";
  Shell("mkdir -p " + tree + "/a/b && cd " + tree +
        " && echo x > a/f && ln a/f a/hard && ln -s ../.. a/l && mkfifo p && chmod 4711 a/f && "
        "chown -R 3:4 a && printf 1 > $(printf 'e\\314\\201') && mkdir proc sys dev && touch -d "
        "@1000000000.123456789 a/f a/b a . && touch -h -d @5 a/l");
  const auto image = store_->Import(tree);
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(Listing(store_->Resolve("tree")->layers[0]), Listing(tree));
  EXPECT_EQ(store_->Import(tree)->id, image->id);
}

TEST_F(Store, DockerArchivesWithLayersShareTheirBase) {
  const std::string base = Root("base").Finish();
  const std::string first = Tar().File("etc/more", "1").Add("etc/.wh.what", "", {}).Finish();
  const std::string second = Tar().File("etc/more", "2").Finish();
  const std::string settings = R"("Env":["P=/bin","Q=é"],"User":"app","WorkingDir":"/w")";
  const auto one =
      store_->Import(Save("1.tar", DockerArchive({base, Gzip(first)}, "app:1", settings, false)));
  // The layer is gzipped, so its digest is not that of the file.
  EXPECT_THAT(StatusText(one.status()), HasSubstr("digest"));
  const auto a = store_->Import(Save("a.tar", DockerArchive({base, first}, "app:1", settings)));
  const auto b = store_->Import(Save("b.tar", DockerArchive({base, second}, "app:2", settings)));
  ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
  const auto image_a = store_->Resolve("app:1"), image_b = store_->Resolve("app:2");
  ASSERT_TRUE(image_a.ok() && image_b.ok());
  EXPECT_EQ(image_a->layers[0], image_b->layers[0]);
  EXPECT_NE(image_a->layers[1], image_b->layers[1]);
  EXPECT_THAT(image_a->config.env, ElementsAre("P=/bin", "Q=é"));
  EXPECT_EQ(image_a->config.user, "app");
  EXPECT_EQ(image_a->config.working_dir, "/w");
  EXPECT_TRUE(IsWhiteout(StatOf(image_a->layers[1] + "/etc/what")));
  ExpectVerified(*store_);
}

TEST_F(Store, WrongDiffIdsAreRefusedAndLeaveNothing) {
  const auto image =
      store_->Import(Save("w.tar", DockerArchive({Root("x").Finish()}, "w:1", "", /*wrong=*/true)));
  EXPECT_EQ(image.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(*store_->List(), IsEmpty());
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "store/staging"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "store/layers"));
}

TEST_F(Store, BrokenDocumentsAreErrors) {
  const auto with = [&](const std::string& manifest, const std::string& config) {
    Tar tar;
    tar.File("blobs/x", "x").File("c.json", config).File("manifest.json", manifest);
    return StatusText(store_->Import(Save("broken.tar", tar.Finish())).status());
  };
  const std::string good = R"([{"Config":"c.json","RepoTags":null,"Layers":[]}])";
  EXPECT_THAT(with("[", "{}"), HasSubstr("JSON"));
  EXPECT_THAT(with("{}", "{}"), HasSubstr("array"));
  EXPECT_THAT(with("[]", "{}"), HasSubstr("no image"));
  EXPECT_THAT(with(good, "{}"), HasSubstr("rootfs"));
  EXPECT_THAT(with(good, R"({"rootfs":{"diff_ids":["nope"]}})"), HasSubstr("diff_id"));
  EXPECT_THAT(with(good, R"({"rootfs":{"diff_ids":[]}})"), HasSubstr("without layers"));
  EXPECT_THAT(with(good, R"({"os":"windows","rootfs":{"diff_ids":[]}})"), HasSubstr("windows"));
  EXPECT_THAT(with(good, std::string(200'000, '[')), HasSubstr("JSON"));
  EXPECT_THAT(with(R"([{"Config":"../../../etc/passwd","Layers":[]}])", "{}"),
              HasSubstr("no file"));
}

TEST_F(Store, AnotherArchitectureIsRefusedUnlessEmulated) {
  ImportOptions options;
  options.architecture = HostArchitecture() == "arm64" ? "amd64" : "arm64";
  ASSERT_TRUE(Import("foreign.tar", Root("x"), options).ok());
  const absl::Status status = store_->Resolve("foreign").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(StatusText(status), HasSubstr("emulate: true"));
  EXPECT_THAT(StatusText(status), HasSubstr("--arch " + HostArchitecture()));
  EXPECT_FALSE(store_->Acquire("foreign").ok());
  EXPECT_TRUE(store_->Resolve("foreign", /*emulate=*/true).ok());
  EXPECT_TRUE(store_->Acquire("foreign", /*emulate=*/true).ok());
}

// What the programs are for counts, not what the config says.
TEST_F(Store, ArchitectureIsThatOfThePrograms) {
  std::string elf(64, '\0');
  elf.replace(0, 6,
              "\x7f"
              "ELF\x02\x01");
  elf[18] = static_cast<char>(183);
  ASSERT_TRUE(Import("arm.tar", Tar()
                                    .Link("bin", "usr/bin")
                                    .File("usr/bin/dash", elf, 0755)
                                    .Link("usr/bin/sh", "/usr/bin/dash"))
                  .ok());
  EXPECT_EQ(store_->List()->at(0).architecture, "arm64");
}

TEST_F(Store, NamesMoveAndIdsStay) {
  const auto one = Import("one.tar", Root("1"), {.name = "task"});
  const auto two = Import("two.tar", Root("2"), {.name = "task"});
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(store_->Resolve("task")->id, two->id);
  EXPECT_EQ(store_->Resolve(one->id)->id, one->id);
  EXPECT_EQ(store_->Resolve(one->id.substr(7, 12))->id, one->id);
  EXPECT_EQ(store_->Resolve("nothing").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(Import("three.tar", Root("3"), {.name = "No Good"}).ok());
  // The one without a name goes.
  const auto report = store_->Gc(std::nullopt);
  ASSERT_TRUE(report.ok());
  EXPECT_THAT(report->removed_images, ElementsAre(one->id));
  EXPECT_EQ(report->removed_layers, 1);
  EXPECT_TRUE(store_->Resolve("task").ok());
  ExpectVerified(*store_);
}

TEST_F(Store, RemoveAndLeases) {
  ASSERT_TRUE(Import("a.tar", Root("a")).ok());
  ASSERT_TRUE(Import("a.tar", Root("a"), {.name = "b"}).ok());
  ASSERT_TRUE(store_->Remove("a").ok());
  EXPECT_FALSE(store_->Resolve("a").ok());
  {
    auto lease = store_->Acquire("b");
    ASSERT_TRUE(lease.ok());
    EXPECT_TRUE(store_->List()->at(0).in_use);
    // Another process, another ImageStore.
    const auto other = OpenStore(folder_ / "store");
    EXPECT_EQ(other->Remove("b").code(), absl::StatusCode::kFailedPrecondition);
    const auto report = other->Gc(0);
    ASSERT_TRUE(report.ok());
    EXPECT_FALSE(report->fits);
    EXPECT_THAT(report->removed_images, IsEmpty());
    ImageStore::Lease moved = *std::move(lease);
    EXPECT_FALSE(other->Remove("b").ok());
    EXPECT_TRUE(Exists(moved.image().layers[0] + "/etc/what"));
  }
  EXPECT_TRUE(store_->Remove("b").ok());
  EXPECT_THAT(*store_->List(), IsEmpty());
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "store/layers"));
  EXPECT_FALSE(store_->Remove("b").ok());
}

TEST_F(Store, ALeaseEndsWithItsProcess) {
  ASSERT_TRUE(Import("a.tar", Root("a")).ok());
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    auto lease = store_->Acquire("a");
    (void)!::write(ready[1], lease.ok() ? "y" : "n", 1);
    ::pause();
    ::_exit(0);
  }
  char answer = 0;
  ASSERT_EQ(::read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  EXPECT_FALSE(store_->Remove("a").ok());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(store_->Remove("a").ok());
}

TEST_F(Store, GcKeepsTheRecentlyUsedWithinItsBudget) {
  const auto big = [](char c) { return Tar().File("f", std::string(4 << 20, c)); };
  ASSERT_TRUE(Import("a.tar", big('a')).ok() && Import("b.tar", big('b')).ok() &&
              Import("c.tar", big('c')).ok());
  ASSERT_TRUE(store_->Acquire("b").ok());
  Shell("touch -d '2001-01-01' " + (folder_ / "store/images/*.lease"));
  ASSERT_TRUE(store_->Acquire("a").ok());
  ASSERT_TRUE(store_->Acquire("c").ok());
  const auto report = store_->Gc(9 << 20);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->removed_images.size(), 1u);
  EXPECT_TRUE(report->fits);
  EXPECT_GE(report->freed_bytes, 4 << 20);
  EXPECT_FALSE(store_->Resolve("b").ok());
  EXPECT_TRUE(store_->Resolve("a").ok() && store_->Resolve("c").ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "store/trash"));
}

TEST_F(Store, VerifySeesEveryKindOfChange) {
  ASSERT_TRUE(Import("a.tar", Root("content")).ok());
  const std::string file = store_->Resolve("a")->layers[0] + "/etc/what";
  const auto problems = [&] { return store_->Verify()->problems.size(); };
  ASSERT_EQ(problems(), 0u);
  const auto check = [&](const std::string& change, const std::string& back) {
    ASSERT_EQ(Shell(change).code, 0) << change;
    EXPECT_EQ(problems(), 1u) << change;
    ASSERT_EQ(Shell(back + "; touch -d @1000000000 " + file + " $(dirname " + file + ")").code, 0);
    EXPECT_EQ(problems(), 0u) << back;
  };
  check("printf CONTENT > " + file + "; touch -d @1000000000 " + file, "printf content > " + file);
  check("chmod 600 " + file, "chmod 644 " + file);
  check("chown 1 " + file, "chown 0 " + file);
  check("touch " + file, "true");
  check("mv " + file + " " + file + "2", "mv " + file + "2 " + file);
  EXPECT_EQ(::setxattr(file.c_str(), "user.x", "1", 1, 0), 0);
  EXPECT_EQ(problems(), 1u);
  EXPECT_EQ(::removexattr(file.c_str(), "user.x"), 0);
  Shell("rm -rf " + (folder_ / "store/layers/*"));
  EXPECT_EQ(problems(), 1u);
}

// Sixteen threads and three processes bring the same two images at once.
TEST_F(Store, ConcurrentImports) {
  Tar base = Root("base");
  for (int i = 0; i < 300; ++i) base.File("d/f" + std::to_string(i), std::string(200, 'x'));
  const std::string lower = base.Finish();
  const std::string one =
      Save("1.tar", DockerArchive({lower, Tar().File("x", "1").Finish()}, "a:1"));
  const std::string two =
      Save("2.tar", DockerArchive({lower, Tar().File("x", "2").Finish()}, "a:2"));
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto store = OpenStore(folder_ / "store");
      ::_exit(store->Import(one).ok() && store->Import(two).ok() ? 0 : 1);
    }
    children.push_back(child);
  }
  std::vector<std::thread> threads;
  std::atomic<int> failures = 0;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&, i] {
      const auto store = OpenStore(folder_ / "store");
      const auto image = store->Import(i % 2 == 0 ? one : two, {.threads = 1 + i % 3});
      if (!image.ok()) ++failures;
      if (i % 5 == 0 && !store->Gc(std::nullopt).ok()) ++failures;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(store_->List()->size(), 2u);
  EXPECT_EQ(Shell("ls " + (folder_ / "store/layers") + " | wc -l").output, "3\n");
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "store/staging"));
  ExpectVerified(*store_);
}

TEST_F(Store, TooManyLayersAndBytes) {
  ImportOptions options;
  options.limits.max_layers = 1;
  const std::string archive =
      Save("l.tar", DockerArchive({Root("x").Finish(), Root("y").Finish()}, "a:1"));
  EXPECT_EQ(store_->Import(archive, options).status().code(), absl::StatusCode::kResourceExhausted);
  options = {};
  options.limits.max_bytes = 100;
  EXPECT_EQ(store_->Import(archive, options).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "store/staging"));
}

TEST(StoreOpen, SaysWhatItNeeds) {
  SKIP_UNLESS_ROOT();
  EXPECT_FALSE(ImageStore::Open("/proc/nope/store").ok());
}

}  // namespace
}  // namespace orrery::sandbox::image
