// Infrastructure failures are tried again in a fresh sandbox, and never become a score; nothing
// else is tried again.
#include "sandbox/episode.h"

#include <gtest/gtest.h>

#include <set>

#include "orchestrator/base/status.h"

namespace orrery::sandbox {
namespace {

// A sandbox without anything in it: the episodes below look at its name alone.
class NamedSandbox : public Sandbox {
 public:
  explicit NamedSandbox(std::string id) : id_(std::move(id)) {}
  const std::string& id() const override { return id_; }
  ExecResult Exec(const ExecRequest&) override { return {}; }
  absl::StatusOr<SandboxEvents> Events() override { return SandboxEvents{}; }
  absl::StatusOr<std::string> Get(const std::string&, int64_t) override { return ""; }
  absl::Status Put(const std::string&, std::string_view, uint32_t) override { return {}; }
  absl::Status GetStream(const std::string&,
                         const std::function<void(std::string_view)>&) override {
    return {};
  }
  absl::Status PutStream(const std::string&, const std::function<std::string()>&,
                         uint32_t) override {
    return {};
  }
  absl::Status Link(const std::string&, const std::string&) override { return {}; }
  absl::Status Remove(const std::string&) override { return {}; }
  absl::StatusOr<FileInfo> Stat(const std::string&) override { return FileInfo{}; }
  absl::StatusOr<std::vector<FileInfo>> List(const std::string&, bool) override {
    return std::vector<FileInfo>();
  }
  absl::StatusOr<std::shared_ptr<const Snapshot>> TakeSnapshot() override {
    return absl::UnavailableError("");
  }
  absl::StatusOr<std::vector<Change>> Diff() override { return std::vector<Change>(); }
  absl::Status ReadChanged(const std::string&,
                           const std::function<void(std::string_view)>&) override {
    return {};
  }
  absl::Status Destroy() override { return {}; }

 private:
  std::string id_;
};

class NamingHost : public SandboxHost {
 public:
  absl::StatusOr<std::unique_ptr<Sandbox>> Create(const SandboxOptions&) override {
    ++created;
    if (!refusal.ok() && created <= refusals) return refusal;
    return std::unique_ptr<Sandbox>(std::make_unique<NamedSandbox>("s" + std::to_string(created)));
  }
  absl::StatusOr<std::unique_ptr<Sandbox>> Fork(const std::shared_ptr<const Snapshot>&,
                                                const SandboxOptions&) override {
    return absl::UnavailableError("");
  }
  HostLoad load() const override { return {}; }

  int created = 0, refusals = 0;
  absl::Status refusal;
};

ExecResult Ended(Ending ending, bool retryable = false) {
  ExecResult result;
  result.ending = ending;
  result.retryable = retryable;
  return result;
}

TEST(EpisodeTest, LostSandboxesAreReplacedByFreshOnes) {
  NamingHost host;
  std::set<std::string> seen;
  int retries = 0;
  EpisodeOptions options;
  options.on_retry = [&](int attempt, const ExecResult& failed) {
    EXPECT_EQ(attempt, ++retries + 1);
    EXPECT_EQ(failed.ending, Ending::kInfrastructure);
  };
  const auto result = RunEpisode(&host, options, [&](Sandbox& sandbox) {
    seen.insert(sandbox.id());
    return seen.size() < 3 ? Ended(Ending::kInfrastructure, true) : Ended(Ending::kExited);
  });
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result->ok());
  EXPECT_EQ(seen.size(), 3u);
  EXPECT_EQ(retries, 2);
}

TEST(EpisodeTest, TheLimitHoldsAndTheFailureStaysOne) {
  NamingHost host;
  int calls = 0;
  const auto result = RunEpisode(&host, {{}, 4, nullptr}, [&](Sandbox&) {
    ++calls;
    return Ended(Ending::kInfrastructure, true);
  });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->ending, Ending::kInfrastructure);
  EXPECT_EQ(calls, 4);
}

TEST(EpisodeTest, NothingElseIsTriedAgain) {
  for (const Ending ending : {Ending::kRefused, Ending::kDeadline, Ending::kOutputCap,
                              Ending::kSignalled, Ending::kExited, Ending::kInfrastructure}) {
    NamingHost host;
    const auto result = RunEpisode(&host, {}, [&](Sandbox&) { return Ended(ending); });
    EXPECT_EQ(result->ending, ending);
    EXPECT_EQ(host.created, 1);
  }
}

TEST(EpisodeTest, HostsWithoutSandboxesForNow) {
  NamingHost host;
  host.refusal = Unavailable("the host drains");
  host.refusals = 2;
  EXPECT_TRUE(RunEpisode(&host, {}, [](Sandbox&) { return Ended(Ending::kExited); })->ok());
  host.refusals = 100;
  const auto lost = RunEpisode(&host, {}, [](Sandbox&) { return Ended(Ending::kExited); });
  ASSERT_TRUE(lost.ok());
  EXPECT_EQ(lost->ending, Ending::kInfrastructure);
  EXPECT_NE(lost->why.find("drains"), std::string::npos);
  host.refusal = InvalidInput("no such limit");
  EXPECT_FALSE(RunEpisode(&host, {}, [](Sandbox&) { return Ended(Ending::kExited); }).ok());
}

}  // namespace
}  // namespace orrery::sandbox
