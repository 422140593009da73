#include "sandbox/image/reference.h"

#include <gtest/gtest.h>

#include "sandbox/image/registry.h"

namespace orrery::sandbox::image {
namespace {

TEST(Reference, Parts) {
  const std::string digest = "sha256:" + std::string(64, 'a');
  const auto check = [](const std::string& text, const std::string& host, const std::string& path,
                        const std::string& version) {
    const auto reference = ParseReference(text);
    ASSERT_TRUE(reference.ok()) << text << reference.status();
    EXPECT_EQ(reference->host, host) << text;
    EXPECT_EQ(reference->path, path) << text;
    EXPECT_EQ(reference->version(), version) << text;
  };
  check("debian", "docker.io", "library/debian", "latest");
  check("debian:12", "docker.io", "library/debian", "12");
  check("swebench/sweb.eval.arm64.demo_1776_demo-1:latest", "docker.io",
        "swebench/sweb.eval.arm64.demo_1776_demo-1", "latest");
  check("ghcr.io/a/b/c:v1", "ghcr.io", "a/b/c", "v1");
  check("localhost/a", "localhost", "a", "latest");
  check("127.0.0.1:5000/a:b", "127.0.0.1:5000", "a", "b");
  check("r.example:5000/a@" + digest, "r.example:5000", "a", digest);
  check("a:tag@" + digest, "docker.io", "library/a", digest);
}

TEST(Reference, Refused) {
  for (const char* text :
       {"", "A", "a:", ":a", "a@sha256:12", "a@md5:x", "../a", "a/../b", "a//b", "-a", "a b",
        "a:b c", "a/", "/a", "http://a/b", "a:-x", "a.lock/\n", "ho st:5/a"}) {
    EXPECT_FALSE(ParseReference(text).ok()) << text;
  }
}

TEST(Reference, LocalNames) {
  EXPECT_EQ(LocalName("debian"), "debian:latest");
  EXPECT_EQ(LocalName("docker.io/library/debian:12"), "debian:12");
  EXPECT_EQ(LocalName("docker.io/a/b"), "a/b:latest");
  EXPECT_EQ(LocalName("ghcr.io/a/b:1"), "ghcr.io/a/b:1");
  EXPECT_EQ(LocalName("Not A Name"), "Not A Name");
  EXPECT_EQ(NameOfFile("/x/My Image.tar.gz"), "my-image");
  EXPECT_EQ(NameOfFile("/x/dir/"), "dir");
  EXPECT_EQ(NameOfFile("/x/___"), "image");
}

TEST(Registry, Challenges) {
  const Challenge bearer = ParseChallenge(
      "Bearer "
      "realm=\"https://auth.example/token\",service=\"registry\",scope=\"repository:a/b:pull\"");
  EXPECT_EQ(bearer.scheme, "bearer");
  EXPECT_EQ(bearer.realm, "https://auth.example/token");
  EXPECT_EQ(bearer.service, "registry");
  EXPECT_EQ(bearer.scope, "repository:a/b:pull");
  EXPECT_EQ(ParseChallenge("Basic realm=\"x, \\\"y\\\"\"").realm, "x, \"y\"");
  EXPECT_EQ(ParseChallenge("BASIC").scheme, "basic");
  for (const char* odd :
       {"", " ", "Bearer", "Bearer =", "Bearer realm", "Bearer realm=\"", ",,,=,"}) {
    ParseChallenge(odd);
  }
}

}  // namespace
}  // namespace orrery::sandbox::image
