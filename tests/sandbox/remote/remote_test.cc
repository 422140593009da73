// What only a sandbox host on another machine has: who may come in, several hosts, and hosts and
// clients that die.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <chrono>
#include <fstream>
#include <set>
#include <thread>

#include "sandbox/host/leftovers.h"
#include "sandbox/remote/security.h"
#include "tests/sandbox/host/testing.h"

namespace orrery::sandbox {
namespace {

using Clock = std::chrono::steady_clock;
constexpr char kRole[] = "ORRERY_TEST_SERVICE";  // "ADDRESS FOLDER": this process serves

bool Within(int seconds, const std::function<bool()>& holds) {
  const auto end = Clock::now() + std::chrono::seconds(seconds);
  while (!holds()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

HostOptions OptionsIn(const std::string& folder, const std::string& cgroup) {
  HostOptions options;
  options.state_folder = folder + "/state";
  options.cgroup = cgroup;
  options.launchers = 1;
  options.memory_bytes = int64_t{4} << 30;
  return options;
}

absl::StatusOr<HeldImage> FolderImage(const std::string& folder, bool) {
  if (!std::filesystem::exists(folder)) return absl::NotFoundError("no image " + folder);
  HeldImage held;
  held.image.id = folder;
  held.image.layers = {folder};
  return held;
}

ExecRequest Shell(const std::string& script) {
  ExecRequest request;
  request.argv = {"sh", "-c", script};
  return request;
}

// A service of its own process, which can be killed.
class ServiceProcess {
 public:
  ServiceProcess(const std::string& folder, const std::string& cgroup)
      : address_("unix:" + folder + "/service"), options_(OptionsIn(folder, cgroup)) {
    std::filesystem::create_directories(folder);
    const std::string role = std::string(kRole) + "=" + folder + " " + cgroup;
    std::string filter = "--gtest_filter=ServiceProcessTest.Serves";
    char name[] = "service";
    char* argv[] = {name, filter.data(), nullptr};
    std::string entry = role;
    char* envp[] = {entry.data(), nullptr};
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    EXPECT_EQ(::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv, envp), 0);
    ::posix_spawn_file_actions_destroy(&actions);
  }
  ~ServiceProcess() {
    Kill();
    SweepDeadHosts(options_).status().IgnoreError();
    const auto hierarchies = Hierarchies::Find();
    if (!hierarchies.ok()) return;
    for (const std::string& place : hierarchies->all()) {
      ::rmdir((place + "/" + options_.cgroup).c_str());
    }
  }
  void Signal(int signal) const {
    if (pid_ > 0) ::kill(pid_, signal);
  }
  void Kill() {
    if (pid_ <= 0) return;
    Signal(SIGKILL);
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
  }
  const std::string& address() const { return address_; }
  const HostOptions& options() const { return options_; }

 private:
  std::string address_;
  HostOptions options_;
  pid_t pid_ = 0;
};

// Not a test of its own: the body of a ServiceProcess, and nothing where none was asked for.
TEST(ServiceProcessTest, Serves) {
  const char* role = std::getenv(kRole);
  if (role == nullptr) return;
  std::istringstream words(role);
  std::string folder, cgroup;
  words >> folder >> cgroup;
  auto host = MakeLocalHost(OptionsIn(folder, cgroup));
  ASSERT_TRUE(host.ok()) << host.status();
  const auto service =
      StartSandboxService(host->get(), FolderImage, {"unix:" + folder + "/service", {}, 2000});
  ASSERT_TRUE(service.ok()) << service.status();
  ::pause();
}

class RemoteTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "sandboxes need root";
    image_ = MakeBusyboxImage(work_.path() + "/image");
    if (image_.empty()) GTEST_SKIP() << "no static busybox (busybox-static)";
    options_.image.id = image_;
  }
  std::unique_ptr<ServiceProcess> Serve(const std::string& name) {
    return std::make_unique<ServiceProcess>(
        work_.path() + "/" + name, "orrery-test-" + std::to_string(::getpid()) + "-" + name);
  }
  std::unique_ptr<SandboxHost> Connect(const std::vector<std::string>& hosts) {
    RemoteOptions options;
    options.hosts = hosts;
    options.keepalive_ms = 2000;
    auto client = MakeRemoteHost(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  WorkFolder work_;
  std::string image_;
  SandboxOptions options_;
};

TEST_F(RemoteTest, DeathOfTheHostIsAnInfrastructureFailureAndItsSandboxesAreRetriedElsewhere) {
  auto a = Serve("a");
  const auto b = Serve("b");
  const auto client = Connect({a->address(), b->address()});
  ASSERT_TRUE(Within(20, [&] { return client->load().max_sandboxes == 1024; }));
  // Eight on two hosts that are equally free: some on each.
  std::vector<std::unique_ptr<Sandbox>> sandboxes;
  std::set<std::string> places;
  for (int i = 0; i < 8; ++i) {
    auto sandbox = client->Create(options_);
    ASSERT_TRUE(sandbox.ok()) << sandbox.status();
    places.insert((*sandbox)->id().substr(0, (*sandbox)->id().rfind('/')));
    sandboxes.push_back(*std::move(sandbox));
    std::this_thread::sleep_for(std::chrono::milliseconds(250));  // a report of load
  }
  EXPECT_EQ(places.size(), 2u);
  std::vector<ExecResult> results(sandboxes.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < sandboxes.size(); ++i) {
    threads.emplace_back([&, i] {
      ExecRequest request = Shell("echo begun; sleep 3; echo ended");
      results[i] = sandboxes[i]->Exec(request);
    });
  }
  std::this_thread::sleep_for(std::chrono::seconds(1));
  a->Kill();
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < sandboxes.size(); ++i) {
    if (sandboxes[i]->id().starts_with(b->address())) {
      EXPECT_EQ(results[i].output.Text(), "begun\nended\n") << Describe(results[i]);
      continue;
    }
    EXPECT_EQ(results[i].ending, Ending::kInfrastructure) << Describe(results[i]);
    EXPECT_TRUE(results[i].retryable);
    EXPECT_NE(results[i].why.find(a->address()), std::string::npos) << results[i].why;
    EXPECT_EQ(sandboxes[i]->Get("/f", 10).status().code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(sandboxes[i]->Destroy().ok());
  }
  for (int i = 0; i < 3; ++i) {
    auto sandbox = client->Create(options_);
    ASSERT_TRUE(sandbox.ok()) << sandbox.status();
    EXPECT_TRUE((*sandbox)->id().starts_with(b->address()));
    EXPECT_TRUE((*sandbox)->Exec(Shell("true")).ok());
  }
  sandboxes.clear();
  // The host comes back and is found again; what it had left is swept.
  a = nullptr;
  a = Serve("a");
  EXPECT_TRUE(Within(20, [&] { return client->load().max_sandboxes == 1024; }));
}

TEST_F(RemoteTest, NothingIsLeftOfAClientThatIsGone) {
  auto local = MakeLocalHost(TestOptions(work_));
  if (!local.ok()) GTEST_SKIP() << "no sandboxes here: " << local.status();
  const std::string address = "unix:" + work_.path() + "/service";
  auto service = StartSandboxService(local->get(), FolderImage, {address, {}, 1000});
  ASSERT_TRUE(service.ok()) << service.status();
  auto client = Connect({address});
  auto sandbox = client->Create(options_);
  ASSERT_TRUE(sandbox.ok()) << sandbox.status();
  const auto snapshot = (*sandbox)->TakeSnapshot();
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  auto fork = client->Fork(*snapshot, options_);
  ASSERT_TRUE(fork.ok()) << fork.status();
  ExecResult result;
  std::thread runner([&] { result = (*fork)->Exec(Shell("sleep 300")); });
  ASSERT_TRUE(Within(10, [&] { return (*local)->load().sandboxes == 2; }));
  // The session's stream ends with the service, as it would with a cut cable; the client sees it.
  service->reset();
  runner.join();
  EXPECT_EQ(result.ending, Ending::kInfrastructure) << Describe(result);
  EXPECT_TRUE(result.retryable);
  EXPECT_EQ((*local)->load().sandboxes, 0);
  EXPECT_EQ(client->Fork(*snapshot, options_).status().code(), absl::StatusCode::kUnavailable);
  // And once more, by a client that ends with sandboxes alive: a lost process looks the same.
  service = StartSandboxService(local->get(), FolderImage, {address, {}, 1000});
  ASSERT_TRUE(service.ok()) << service.status();
  auto second = Connect({address});
  auto kept = second->Create(options_);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ((*local)->load().sandboxes, 1);
  second.reset();  // its session ends; the sandbox was not destroyed by anybody
  EXPECT_TRUE(Within(10, [&] { return (*local)->load().sandboxes == 0; }));
  kept->reset();  // lost with its session: asks nobody
  service->reset();
  local->reset();
  const auto left = FindLeftovers(TestOptions(work_));
  ASSERT_TRUE(left.ok()) << left.status();
  for (const std::string& line : *left) ADD_FAILURE() << line;
  const auto hierarchies = Hierarchies::Find();
  for (const std::string& place : hierarchies->all()) {
    ::rmdir((place + "/" + TestOptions(work_).cgroup).c_str());
  }
}

TEST_F(RemoteTest, StreamsAreExactAndOversizedRequestsAreNoLostHost) {
  const auto a = Serve("a");
  const auto client = Connect({a->address()});
  auto sandbox = client->Create(options_);
  ASSERT_TRUE(sandbox.ok()) << sandbox.status();
  ExecRequest request = Shell("true");
  request.argv.push_back(std::string(20 << 20, 'x'));
  const ExecResult refused = (*sandbox)->Exec(request);
  EXPECT_EQ(refused.ending, Ending::kRefused) << Describe(refused).substr(0, 500);
  // 200 MB in and out, in pieces, with input that outruns output and the other way round.
  constexpr int64_t kPieces = 200;
  const std::string piece(1 << 20, 'p');
  int64_t sent = 0, received = 0;
  request = Shell("cat");
  request.next_input = [&] { return sent++ < kPieces ? piece : std::string(); };
  request.on_output = [&](std::string_view bytes, bool) {
    received += static_cast<int64_t>(bytes.size());
  };
  request.timeout_ms = 120'000;
  const ExecResult result = (*sandbox)->Exec(request);
  EXPECT_TRUE(result.ok()) << Describe(result);
  EXPECT_EQ(received, kPieces << 20);
}

TEST_F(RemoteTest, AFrozenHostIsFoundOut) {
  const auto a = Serve("a");
  const auto client = Connect({a->address()});
  auto sandbox = client->Create(options_);
  ASSERT_TRUE(sandbox.ok()) << sandbox.status();
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    a->Signal(SIGSTOP);
  });
  const auto begin = Clock::now();
  const ExecResult result = (*sandbox)->Exec(Shell("echo begun; sleep 100"));
  stopper.join();
  EXPECT_EQ(result.ending, Ending::kInfrastructure) << Describe(result);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
  a->Signal(SIGCONT);
}

TEST_F(RemoteTest, DrainingTakesNothingNewAndWaits) {
  auto local = MakeLocalHost(TestOptions(work_));
  if (!local.ok()) GTEST_SKIP() << "no sandboxes here: " << local.status();
  const std::string address = "unix:" + work_.path() + "/service";
  auto service = StartSandboxService(local->get(), FolderImage, {address, {}, 10'000});
  ASSERT_TRUE(service.ok()) << service.status();
  const auto client = Connect({address});
  auto sandbox = client->Create(options_);
  ASSERT_TRUE(sandbox.ok()) << sandbox.status();
  EXPECT_FALSE((*service)->Drain(50));
  EXPECT_EQ(client->Create(options_).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE((*sandbox)->Exec(Shell("true")).ok());
  std::thread ender([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    EXPECT_TRUE((*sandbox)->Destroy().ok());
  });
  EXPECT_TRUE((*service)->Drain(20'000));
  ender.join();
  service->reset();
  local->reset();
  const auto hierarchies = Hierarchies::Find();
  for (const std::string& place : hierarchies->all()) {
    ::rmdir((place + "/" + TestOptions(work_).cgroup).c_str());
  }
}

// Hosts that refuse before a sandbox is asked for need none.
class NoHost : public SandboxHost {
 public:
  absl::StatusOr<std::unique_ptr<Sandbox>> Create(const SandboxOptions&) override {
    return absl::UnavailableError("none");
  }
  absl::StatusOr<std::unique_ptr<Sandbox>> Fork(const std::shared_ptr<const Snapshot>&,
                                                const SandboxOptions&) override {
    return absl::UnavailableError("none");
  }
  HostLoad load() const override {
    HostLoad load;
    load.max_sandboxes = 7;
    return load;
  }
};

absl::StatusOr<std::unique_ptr<SandboxHost>> Client(const std::string& address,
                                                    const RemoteSecurity& security) {
  RemoteOptions options;
  options.hosts = {address};
  options.security = security;
  options.tls_name = "orrery-test";
  options.connect_timeout_ms = 1500;
  return MakeRemoteHost(options);
}

TEST(SecurityTest, TokensAreChecked) {
  NoHost host;
  RemoteSecurity security;
  security.token = "a token of many letters";
  const auto service = StartSandboxService(&host, FolderImage, {"127.0.0.1:0", security, 10'000});
  ASSERT_TRUE(service.ok()) << service.status();
  const auto right = Client((*service)->address(), security);
  EXPECT_TRUE(Within(10, [&] { return (*right)->load().max_sandboxes == 7; }));
  for (const char* token : {"", "a token of many lettert", "a token of many letters."}) {
    RemoteSecurity wrong;
    wrong.token = token;
    const auto client = Client((*service)->address(), wrong);
    const auto refused = (*client)->Create({});
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_NE(refused.status().ToString().find("token"), std::string::npos) << refused.status();
    EXPECT_EQ((*client)->load().max_sandboxes, 0);
  }
}

TEST(SecurityTest, OpenDoorsAreRefused) {
  NoHost host;
  RemoteSecurity token;
  token.token = "a token of many letters";
  EXPECT_FALSE(StartSandboxService(&host, FolderImage, {"127.0.0.1:0", {}, 10'000}).ok());
  EXPECT_FALSE(StartSandboxService(&host, FolderImage, {"0.0.0.0:0", token, 10'000}).ok());
  EXPECT_FALSE(StartSandboxService(&host, FolderImage, {"nonsense", token, 10'000}).ok());
  EXPECT_FALSE(Client("198.51.100.7:1", token).ok());
  EXPECT_FALSE(MakeRemoteHost({}).ok());
  EXPECT_TRUE(SameToken("abc", "abc"));
  EXPECT_FALSE(SameToken("abc", "abd"));
  EXPECT_FALSE(SameToken("abc", "ab"));
  EXPECT_FALSE(SameToken("abc", "abcd"));
}

TEST(SecurityTest, UnixSocketIsRootsAlone) {
  NoHost host;
  const WorkFolder work;
  const std::string path = work.path() + "/service";
  const auto service = StartSandboxService(&host, FolderImage, {"unix:" + path, {}, 10'000});
  ASSERT_TRUE(service.ok()) << service.status();
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

// Two authorities of their own, made by the openssl program.
class TlsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system("command -v openssl > /dev/null") != 0) GTEST_SKIP() << "no openssl program";
    for (const char* name : {"ours", "theirs"}) {
      ASSERT_EQ(std::system(Fill("cd DIR && openssl req -x509 -newkey ec -pkeyopt "
                                 "ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=NAME-authority "
                                 "-keyout NAME-ca.key -out NAME-ca.pem 2> /dev/null && "
                                 "printf 'subjectAltName=DNS:orrery-test' > NAME.ext && "
                                 "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "
                                 "-subj /CN=orrery-test -keyout NAME.key -out NAME.csr "
                                 "2> /dev/null && openssl x509 -req -in NAME.csr -CA NAME-ca.pem "
                                 "-CAkey NAME-ca.key -CAcreateserial -days 2 -extfile NAME.ext "
                                 "-out NAME.pem 2> /dev/null",
                                 name)
                                .c_str()),
                0);
    }
  }
  std::string Fill(std::string text, const std::string& name) const {
    for (const auto& [key, value] : {std::pair<std::string, std::string>{"DIR", work_.path()},
                                     std::pair<std::string, std::string>{"NAME", name}}) {
      for (size_t at = 0; (at = text.find(key, at)) != std::string::npos; at += value.size()) {
        text.replace(at, key.size(), value);
      }
    }
    return text;
  }
  RemoteSecurity Security(const std::string& own, const std::string& authority) const {
    const std::string folder = work_.path() + "/";
    const auto security =
        ReadSecurity("", own.empty() ? "" : folder + own + ".pem",
                     own.empty() ? "" : folder + own + ".key", folder + authority + "-ca.pem");
    EXPECT_TRUE(security.ok()) << security.status();
    return *security;
  }

  WorkFolder work_;
};

TEST_F(TlsTest, BothSidesShowTheirCertificates) {
  NoHost host;
  const auto service =
      StartSandboxService(&host, FolderImage, {"127.0.0.1:0", Security("ours", "ours"), 10'000});
  ASSERT_TRUE(service.ok()) << service.status();
  const auto answers = [&](const RemoteSecurity& security, int seconds) {
    const auto client = Client((*service)->address(), security);
    EXPECT_TRUE(client.ok()) << client.status();
    return Within(seconds, [&] { return (*client)->load().max_sandboxes == 7; });
  };
  EXPECT_TRUE(answers(Security("ours", "ours"), 10));
  EXPECT_FALSE(answers(Security("theirs", "ours"), 1)) << "a client of another authority";
  EXPECT_FALSE(answers(Security("", "ours"), 1)) << "a client without a certificate";
  EXPECT_FALSE(answers(Security("ours", "theirs"), 1)) << "a host of another authority";
  EXPECT_FALSE(answers({}, 1)) << "a client in the clear";
}

}  // namespace
}  // namespace orrery::sandbox
