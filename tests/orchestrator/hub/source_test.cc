#include "orchestrator/hub/source.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "orchestrator/base/status.h"
#include "orchestrator/hub/environment.h"
#include "orchestrator/hub/hub.h"

namespace orrery::hub {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(ParseHubSource, TakesItsPartsApart) {
  const auto full = ParseHubSource("hf:Qwen/Qwen3-0.6B@v1.0/sub/config.json");
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_EQ(full->repo, "Qwen/Qwen3-0.6B");
  EXPECT_EQ(full->revision, "v1.0");
  EXPECT_EQ(full->path, "sub/config.json");
  const auto plain = ParseHubSource("hf:openai/gsm8k");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->repo, "openai/gsm8k");
  EXPECT_EQ(plain->revision, "");
  EXPECT_EQ(plain->path, "");
  EXPECT_EQ(ParseHubSource("hf:a/b/c@d")->path, "c@d");
  EXPECT_EQ(ParseHubSource("hf:a/b@main")->revision, "main");
  EXPECT_EQ(ParseHubSource("hf:a/b@refs%2Fpr%2f12")->revision, "refs/pr/12");
  EXPECT_EQ(ParseHubSource("hf:a/b@main/")->path, "");
  EXPECT_EQ(ParseHubSource("hf:a/b/")->path, "");
}

TEST(ParseHubSource, WrongSourcesAreErrorsThatShowTheForm) {
  for (const char* source :
       {"hf:", "hf:gpt2", "hf:/b", "hf:a/", "hf:a/@x", "hf:../b", "hf:a/..", "hf:a/b@", "hf:a/b@/c",
        "hf:a/b@..", "hf:a/b@..%2F..", "hf:a/b/../c", "hf:a/b//c", "hf:a b/c", "hf://a/b",
        "hf:a/b--c", "hf:-a/b", "hf:a/.b"}) {
    const auto parsed = ParseHubSource(source);
    ASSERT_FALSE(parsed.ok()) << source;
    EXPECT_THAT(StatusText(parsed.status()), HasSubstr("hf:ORG/NAME[@REVISION][/PATH]"));
  }
}

TEST(Resolve, LocalSourcesMustExist) {
  const std::string here = ORRERY_SOURCE_DIR;
  EXPECT_EQ(*Resolve(here), here);
  EXPECT_EQ(*Resolve(here + "/CMakeLists.txt"), here + "/CMakeLists.txt");
  const auto missing = Resolve("Qwen/Qwen3-0.6B");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(StatusText(missing.status()), HasSubstr("hf:Qwen/Qwen3-0.6B"));
  EXPECT_THAT(StatusText(Resolve("/no/such").status()), Not(HasSubstr("hf:")));
  EXPECT_FALSE(Resolve("").ok());
  EXPECT_FALSE(Resolve("hf:gpt2").ok());
  EXPECT_EQ(Resolve("hf:a/b", {.revision = "../x"}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Sets variables for one test and puts back what was there.
class Variables {
 public:
  ~Variables() {
    for (const auto& [name, value] : before_) {
      value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
    }
  }
  void Set(const std::string& name, const std::string& value) {
    const char* old = std::getenv(name.c_str());
    before_.emplace_back(name, old ? std::optional<std::string>(old) : std::nullopt);
    value.empty() ? ::unsetenv(name.c_str()) : ::setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

TEST(ReadHubEnvironment, FollowsTheVariablesOfThePythonLibrary) {
  Variables variables;
  for (const char* name :
       {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HF_ENDPOINT",
        "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE"}) {
    variables.Set(name, "");
  }
  variables.Set("HOME", "/home/me");
  EXPECT_EQ(ReadHubEnvironment().cache, "/home/me/.cache/huggingface/hub");
  EXPECT_EQ(ReadHubEnvironment().endpoint, "https://huggingface.co");
  EXPECT_EQ(ReadHubEnvironment().token, "");
  EXPECT_FALSE(ReadHubEnvironment().offline);
  variables.Set("XDG_CACHE_HOME", "/xdg");
  EXPECT_EQ(ReadHubEnvironment().cache, "/xdg/huggingface/hub");
  variables.Set("HF_HOME", "/hf");
  EXPECT_EQ(ReadHubEnvironment().cache, "/hf/hub");
  variables.Set("HF_HUB_CACHE", "/cache");
  EXPECT_EQ(ReadHubEnvironment().cache, "/cache");
  variables.Set("HF_ENDPOINT", "http://mirror:8080//");
  EXPECT_EQ(ReadHubEnvironment().endpoint, "http://mirror:8080");
  variables.Set("HF_HUB_OFFLINE", "yes");
  EXPECT_TRUE(ReadHubEnvironment().offline);
  variables.Set("HF_HUB_OFFLINE", "0");
  EXPECT_FALSE(ReadHubEnvironment().offline);
  const std::string file = testing::TempDir() + "token." + std::to_string(::getpid());
  std::ofstream(file) << "hf_file\n";
  variables.Set("HF_TOKEN_PATH", file);
  EXPECT_EQ(ReadHubEnvironment().token, "hf_file");
  variables.Set("HF_TOKEN", " hf_variable ");
  EXPECT_EQ(ReadHubEnvironment().token, "hf_variable");
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace orrery::hub
