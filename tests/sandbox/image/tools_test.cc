// Our trees against those of other programs: GNU tar, umoci, skopeo, a real registry.
#include <signal.h>

#include "tests/sandbox/image/image_testing.h"

namespace orrery::sandbox::image {
namespace {

// A tree with what file systems have: links, set-id bits, owners, times, holes, odd names.
void MakeTree(const std::string& tree) {
  ASSERT_EQ(Shell("mkdir -p " + tree + " && cd " + tree + R"sh( && umask 022
    mkdir -p bin etc/deep/er usr/bin var/tmp dev proc sys empty
    printf '#!/bin/sh\n' > usr/bin/tool && chmod 4755 usr/bin/tool && ln usr/bin/tool usr/bin/alias
    ln -s ../usr/bin/tool bin/tool && ln -s /etc/deep absolute && ln -s nowhere dangling
    chmod 1777 var/tmp && chmod 2770 etc/deep && chown 7:50 etc/deep && mkfifo var/pipe
    truncate -s 3M var/hole && printf end >> var/hole && printf x | dd of=var/hole bs=1 seek=1M conv=notrunc
    head -c 2500000 /dev/urandom > var/large && : > var/none
    printf a > "$(printf 'etc/nfd-e\314\201')" && printf b > "$(printf 'etc/bytes-\377\376')"
    printf c > 'etc/with space' && printf d > etc/-dash
    name=$(printf 'n%.0s' $(seq 240)) && mkdir $name && printf long > $name/$name
    ln -s "$(printf 't%.0s' $(seq 300))" longlink
    chown -h 1000:1001 longlink usr/bin/alias && chmod 4755 usr/bin/alias
    for i in $(seq 200); do printf $i > etc/deep/er/$i; done
    find . -depth -exec touch -h -d @1234567890 {} + 2>/dev/null )sh")
                .code,
            0);
}

class Tools : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_UNLESS_ROOT();
    MakeTree(tree());
    store_ = OpenStore(folder_ / "store");
  }
  std::string tree() const { return folder_ / "tree"; }

  std::string Layer(const std::string& reference, size_t i = 0) {
    const auto image = store_->Resolve(reference);
    return image.ok() ? image->layers[i] : StatusText(image.status());
  }

  TempFolder folder_;
  std::unique_ptr<ImageStore> store_;
};

TEST_F(Tools, GnuTarInEachFormat) {
  for (const std::string& how :
       {std::string("--format=pax"), std::string("--format=gnu"),
        std::string("--format=gnu --sparse"), std::string("--format=pax --sparse"),
        std::string("--format=pax --sparse --sparse-version=0.0"),
        std::string("--format=pax --sparse --sparse-version=0.1"), std::string("--format=gnu -z"),
        std::string("--format=gnu --zstd")}) {
    if (how.ends_with("--zstd") && !HaveTool("zstd")) continue;
    const std::string tar = folder_ / "t.tar";
    ASSERT_EQ(Shell("tar -cf " + tar + " " + how + " -C " + tree() + " .").code, 0);
    const auto image = store_->Import(tar);
    ASSERT_TRUE(image.ok()) << how << image.status();
    EXPECT_EQ(Listing(Layer("t")), Listing(tree())) << how;
  }
  ExpectVerified(*store_);
}

TEST_F(Tools, UmociAndSkopeo) {
  SKIP_WITHOUT("umoci");
  SKIP_WITHOUT("skopeo");
  const std::string layout = folder_ / "layout";
  ASSERT_EQ(Shell("cd " + folder_.path() +
                  R"( && umoci init --layout layout && umoci new --image layout:v1 &&
    umoci insert --image layout:v1 tree / && printf new > one && umoci insert --image layout:v1 one /etc/deep/er/1 &&
    umoci insert --image layout:v1 --whiteout /etc/deep/er/2 && mkdir over && printf o > over/only &&
    umoci insert --image layout:v1 --opaque over /var/tmp &&
    umoci config --image layout:v1 --config.env A=B --config.env C=d --config.user 1000 --config.workingdir /etc)")
                .code,
            0);
  const auto image = store_->Import(layout + ":v1");
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_THAT(image->names, testing::ElementsAre("layout:v1"));
  EXPECT_EQ(Listing(Layer("layout:v1")), Listing(tree()));
  const auto prepared = store_->Resolve("layout:v1");
  EXPECT_THAT(prepared->config.env, testing::IsSupersetOf({"A=B", "C=d"}));
  EXPECT_EQ(prepared->config.user, "1000");
  EXPECT_EQ(prepared->config.working_dir, "/etc");

  // The layers under one overlay show what umoci unpacks.
  ASSERT_EQ(Shell("umoci unpack --image " + layout + ":v1 " + (folder_ / "bundle")).code, 0);
  std::string lower;
  for (auto layer = prepared->layers.rbegin(); layer != prepared->layers.rend(); ++layer) {
    lower += (lower.empty() ? "" : ":") + *layer;
  }
  const ShellResult merged =
      Shell("unshare -m sh -c 'mkdir " + (folder_ / "merged") +
            " && mount -t overlay overlay -o lowerdir=" + lower + " " + (folder_ / "merged") +
            " && cp -a " + (folder_ / "merged") + " " + (folder_ / "copy") + "'");
  ASSERT_EQ(merged.code, 0) << merged.output;
  const auto without_times = [](const std::string& folder) {
    return Shell("cd '" + folder +
                 "' && find . -mindepth 1 -printf '%y %m %U %G %p %l\\n' | sort && "
                 "find . -type f -print0 | sort -z | xargs -0 sha256sum")
        .output;
  };
  EXPECT_EQ(without_times(folder_ / "copy"), without_times(folder_ / "bundle/rootfs"));
  EXPECT_EQ(ReadText(folder_ / "copy/etc/deep/er/1"), "new");
  EXPECT_FALSE(Exists(folder_ / "copy/etc/deep/er/2"));

  // The same image by skopeo's other formats has the same id.
  ASSERT_EQ(Shell("skopeo copy -q oci:" + layout + ":v1 docker-archive:" + (folder_ / "saved.tar") +
                  ":me/app:v2")
                .code,
            0);
  const auto saved = store_->Import(folder_ / "saved.tar");
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_THAT(saved->names, testing::Contains("me/app:v2"));
  EXPECT_EQ(store_->Resolve("me/app:v2")->layers, prepared->layers);
  ASSERT_EQ(Shell("skopeo copy -q oci:" + layout + ":v1 oci-archive:" + (folder_ / "oci.tar")).code,
            0);
  const auto archived = store_->Import(folder_ / "oci.tar");
  ASSERT_TRUE(archived.ok()) << archived.status();
  EXPECT_EQ(archived->id, image->id);
  ExpectVerified(*store_);
}

// docker-registry on a free port, until the end of the test.
class RegistryProcess {
 public:
  explicit RegistryProcess(const TempFolder& folder) {
    for (int port = 20'000 + ::getpid() % 20'000; port < 41'000; ++port) {
      port_ = port;
      WriteText(folder / "registry.yml",
                "version: 0.1\nstorage: {filesystem: {rootdirectory: " + (folder / "registry") +
                    "}}\nhttp: {addr: \"127.0.0.1:" + std::to_string(port) + "\"}\n");
      const ShellResult started = Shell("docker-registry serve " + (folder / "registry.yml") +
                                        " >" + (folder / "registry.log") +
                                        " 2>&1 & echo $!; for i in $(seq 50); do sleep 0.1; bash "
                                        "-c \"exec 3<>/dev/tcp/127.0.0.1/" +
                                        std::to_string(port) + "\" 2>/dev/null && break; done");
      pid_ = std::atoi(started.output.c_str());
      if (pid_ > 0 && ::kill(pid_, 0) == 0) return;
    }
  }
  ~RegistryProcess() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
  }
  std::string host() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  int port_ = 0;
  pid_t pid_ = 0;
};

TEST_F(Tools, ARealRegistry) {
  SKIP_WITHOUT("umoci");
  SKIP_WITHOUT("skopeo");
  SKIP_WITHOUT("docker-registry");
  const RegistryProcess registry(folder_);
  const std::string name = registry.host() + "/swebench/sweb.eval.arm64.demo_1776_demo-1:latest";
  ASSERT_EQ(Shell("cd " + folder_.path() +
                  R"( && umoci init --layout layout && umoci new --image layout:v1 &&
    umoci insert --image layout:v1 tree / && umoci insert --image layout:v1 --whiteout /empty)")
                .code,
            0);
  const ShellResult pushed =
      Shell("skopeo copy -q --dest-tls-verify=false oci:" + (folder_ / "layout:v1") + " docker://" +
            name);
  ASSERT_EQ(pushed.code, 0) << pushed.output << ReadText(folder_ / "registry.log");
  const auto image = store_->Pull(name);
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(Listing(Layer(name)), Listing(tree()));
  const auto local = store_->Import(folder_ / "layout:v1");
  ASSERT_TRUE(local.ok());
  EXPECT_EQ(local->id, image->id);
  EXPECT_TRUE(IsWhiteout(StatOf(Layer(name, 1) + "/empty")));
  EXPECT_EQ(store_->Pull(registry.host() + "/no/such:1").status().code(),
            absl::StatusCode::kNotFound);
  ExpectVerified(*store_);
}

}  // namespace
}  // namespace orrery::sandbox::image
