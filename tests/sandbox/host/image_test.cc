// What the image store unpacks, seen from inside a sandbox: whiteouts, opaque folders, owners, the
// image's settings.
#include "sandbox/image/image.h"

#include "tests/sandbox/host/testing.h"
#include "tests/sandbox/image/image_testing.h"

namespace orrery::sandbox {
namespace {

// A docker archive of two layers over busybox.
std::string MakeArchive(const std::string& work) {
  const std::string script = "set -e; cd " + work + R"sh(
    mkdir -p up/etc/opaque up/private up/etc/changed
    mkdir -p image/etc/opaque image/etc/changed image/private image/proc image/sys image/dev
    echo low > image/etc/gone; echo low > image/etc/opaque/low; echo low > image/etc/changed/low
    echo mine > image/private/file; chmod 700 image/private; chown -R 1000:1000 image/private
    cp image/bin/busybox image/bin/set-uid; chmod 4755 image/bin/set-uid
    : > up/etc/.wh.gone; : > up/etc/opaque/.wh..wh..opq; echo high > up/etc/opaque/high
    echo high > up/etc/changed/high
    tar -C image -cf low.tar . ; tar -C up -cf high.tar etc
    low=$(sha256sum < low.tar | cut -c1-64); high=$(sha256sum < high.tar | cut -c1-64)
    printf '{"architecture":"%s","os":"linux","config":{"Env":["GREETING=hello there"],"User":"1000:1000","WorkingDir":"/private"},"rootfs":{"type":"layers","diff_ids":["sha256:%s","sha256:%s"]}}' )sh" +
                             HostArchitecture() + R"sh( $low $high > config.json
    echo '[{"Config":"config.json","RepoTags":["two/layers:1"],"Layers":["low.tar","high.tar"]}]' > manifest.json
    tar -cf archive.tar manifest.json config.json low.tar high.tar)sh";
  const image::ShellResult made = image::Shell(script);
  EXPECT_EQ(made.code, 0) << made.output;
  return work + "/archive.tar";
}

TEST_F(HostTest, ImagesLayersAndSettings) {
  auto store = ImageStore::Open(work_.path() + "/store");
  ASSERT_TRUE(store.ok()) << store.status();
  const auto image = (*store)->Import(MakeArchive(work_.path()));
  ASSERT_TRUE(image.ok()) << image.status();
  const auto lease = (*store)->Acquire("two/layers:1");
  ASSERT_TRUE(lease.ok()) << lease.status();
  options_.image = lease->image();
  const auto sandbox = Make();
  ASSERT_NE(sandbox, nullptr);
  const auto run = [&](const std::string& script, const std::string& user = "") {
    ExecRequest request = Shell(script);
    request.user = user;
    return sandbox->Exec(request).output.Text();
  };
  EXPECT_EQ(run("id -u; pwd; echo $GREETING"), "1000\n/private\nhello there\n");
  // A folder that only its owner may enter, which is not root.
  EXPECT_EQ(run("cat file && echo more >> file && cat /private/file"), "mine\nmine\nmore\n");
  EXPECT_EQ(run("stat -c '%u %g %a' /private /bin/set-uid /etc", "root"),
            "1000 1000 700\n0 0 4755\n0 0 755\n");
  EXPECT_EQ(
      run("ls /etc/opaque; cat /etc/opaque/high; ls /etc | grep -c gone; cat /etc/gone", "root"),
      "high\nhigh\n0\ncat: can't open '/etc/gone': No such file or directory\n");
  EXPECT_EQ(run("ls /etc/changed", "root"), "high\nlow\n");
  // What is taken away can be made again, and layers stay as they are.
  EXPECT_EQ(
      run("echo new > /etc/gone && cat /etc/gone && rm -r /etc/opaque && ls /etc/opaque", "root"),
      "new\nls: /etc/opaque: No such file or directory\n");
  // While it runs the image stays.
  EXPECT_EQ((*store)->Remove("two/layers:1").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(sandbox->Destroy().ok());
  const auto report = (*store)->Verify();
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->problems.empty()) << report->problems[0];
}

}  // namespace
}  // namespace orrery::sandbox
