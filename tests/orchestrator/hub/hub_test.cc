#include "orchestrator/hub/hub.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "orchestrator/base/status.h"
#include "orchestrator/hub/cache.h"
#include "orchestrator/hub/http.h"
#include "tests/orchestrator/hub/fake_hub.h"

namespace orrery::hub {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::string Slurp(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::stringstream content;
  content << stream.rdbuf();
  return content.str();
}

// Bytes without a pattern that a shifted copy would share.
std::string Noise(size_t size) {
  RandomStream random(size);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random.Below(256));
  return bytes;
}

class HubTest : public testing::Test {
 protected:
  HubTest() {
    std::string name = testing::TempDir() + "hub.XXXXXX";
    folder_ = ::mkdtemp(name.data());
    // Loopback must not go through a proxy that the machine has set.
    ::setenv("NO_PROXY", "127.0.0.1", 1);
    ::setenv("no_proxy", "127.0.0.1", 1);
    hub_.Add("config.json", "{\"model_type\": \"llama\"}");
    hub_.Add("sub/vocab.txt", "a\nb\n");
    hub_.Add("model.safetensors", weights_, /*large=*/true);
  }
  ~HubTest() override {
    std::error_code error;
    fs::remove_all(folder_, error);
  }

  ResolveOptions Options() {
    ResolveOptions options;
    options.environment = {.cache = folder_ + "/cache", .endpoint = hub_.url()};
    options.retry.attempts = 4;
    options.retry.stall_timeout = std::chrono::seconds(2);
    options.retry.sleep = [this](milliseconds delay) { delays_.push_back(delay); };
    return options;
  }
  absl::StatusOr<std::string> Get(const std::string& source = "hf:org/name") {
    return Resolve(source, Options());
  }
  std::string Error(const std::string& source = "hf:org/name") {
    const auto resolved = Get(source);
    return resolved.ok() ? "no error" : StatusText(resolved.status());
  }
  fs::path Repo() const { return folder_ + "/cache/models--org--name"; }
  fs::path Blob(const std::string& path) const { return Repo() / "blobs" / hub_.Hash(path); }
  fs::path Incomplete(const std::string& path) const { return Blob(path).string() + ".incomplete"; }

  void ExpectWhole(const std::string& snapshot) {
    EXPECT_EQ(Slurp(snapshot + "/config.json"), "{\"model_type\": \"llama\"}");
    EXPECT_EQ(Slurp(snapshot + "/sub/vocab.txt"), "a\nb\n");
    EXPECT_EQ(Slurp(snapshot + "/model.safetensors"), weights_);
    for (const auto& entry : fs::directory_iterator(Repo() / "blobs")) {
      EXPECT_NE(entry.path().extension(), ".incomplete");
    }
  }

  const std::string weights_ = Noise(300'000);
  std::string folder_;
  std::vector<milliseconds> delays_;
  FakeHub hub_;
};

TEST_F(HubTest, FetchesARepositoryIntoTheStandardLayout) {
  const auto snapshot = Get();
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_EQ(*snapshot, Repo() / "snapshots" / FakeHub::kCommit);
  ExpectWhole(*snapshot);
  EXPECT_EQ(Slurp(Repo() / "refs/main"), FakeHub::kCommit);
  EXPECT_EQ(fs::read_symlink(*snapshot + "/config.json"),
            "../../blobs/" + hub_.Hash("config.json"));
  EXPECT_EQ(fs::read_symlink(*snapshot + "/sub/vocab.txt"),
            "../../../blobs/" + hub_.Hash("sub/vocab.txt"));
  EXPECT_TRUE(fs::exists(folder_ + "/cache/.locks/models--org--name/" + hub_.Hash("config.json") +
                         ".lock"));
  EXPECT_THAT(delays_, IsEmpty());
}

TEST_F(HubTest, WhatIsThereIsNotFetchedAgain) {
  ASSERT_TRUE(Get().ok());
  const size_t before = hub_.Requests().size();
  ASSERT_TRUE(Get().ok());
  EXPECT_EQ(hub_.Requests().size(), before + 1);  // the list alone
  // A file of a fixed commit needs not even that.
  const std::string pinned = std::string("hf:org/name@") + FakeHub::kCommit + "/config.json";
  const auto file = Get(pinned);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(Slurp(*file), "{\"model_type\": \"llama\"}");
  EXPECT_EQ(hub_.Requests().size(), before + 1);
  // A blob that another snapshot brought is linked, not fetched.
  fs::remove_all(Repo() / "snapshots");
  ASSERT_TRUE(Get().ok());
  EXPECT_EQ(hub_.NumRequests("GET /blob/"), 1u);
}

TEST_F(HubTest, TheTokenGoesToTheHubAndNotToWhereItRedirects) {
  ResolveOptions options = Options();
  options.environment->token = "hf_secret";
  ASSERT_TRUE(Resolve("hf:org/name", options).ok());
  hub_.Stop();
  EXPECT_EQ(hub_.hub_tokens.size(),
            hub_.NumRequests("GET /api") + hub_.NumRequests("GET /org") + hub_.NumRequests("HEAD"));
  EXPECT_THAT(hub_.hub_tokens, Each("Bearer hf_secret"));
  EXPECT_THAT(hub_.storage_tokens, IsEmpty());
  EXPECT_EQ(hub_.NumRequests("GET /blob/model.safetensors"), 1u);
}

TEST_F(HubTest, ABrokenDownloadGoesOnWhereItStopped) {
  hub_.FailGets("model.safetensors", {{.drop_after = 100'000}, {.drop_after = 50'000}});
  hub_.FailGets("config.json", {{.drop_after = 5}});
  const auto snapshot = Get();
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  ExpectWhole(*snapshot);
  EXPECT_THAT(hub_.Requests(), Contains("GET /blob/model.safetensors bytes=100000-"));
  EXPECT_THAT(hub_.Requests(), Contains("GET /blob/model.safetensors bytes=150000-"));
  EXPECT_EQ(delays_.size(), 3u);
}

TEST_F(HubTest, ABrokenDownloadGoesOnInTheNextCall) {
  std::vector<Fault> faults(4, {.drop_after = 0});
  faults[0].drop_after = 1000;
  faults.push_back({.drop_after = 0});
  hub_.FailGets("model.safetensors", faults);
  EXPECT_THAT(Error(), AllOf(HasSubstr("model.safetensors"), HasSubstr("given up after 4 tries"),
                             HasSubstr("1000 bytes are kept")));
  EXPECT_EQ(fs::file_size(Incomplete("model.safetensors")), 1000u);
  EXPECT_FALSE(fs::exists(Repo() / "refs/main"));  // incomplete, so not named
  hub_.FailGets("model.safetensors", {});
  const auto snapshot = Get();
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  ExpectWhole(*snapshot);
  const auto requests = hub_.Requests();
  EXPECT_EQ(*std::find_if(requests.rbegin(), requests.rend(),
                          [](const auto& request) { return request.starts_with("GET /blob/"); }),
            "GET /blob/model.safetensors bytes=1000-");
}

TEST_F(HubTest, AHubThatIgnoresTheRangeIsReadFromTheBeginning) {
  hub_.FailGets("model.safetensors", {{.drop_after = 100'000}, {.ignore_range = true}});
  const auto snapshot = Get();
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  ExpectWhole(*snapshot);
}

TEST_F(HubTest, AHubThatAlwaysBreaksAtTheSamePlaceIsGivenUp) {
  hub_.FailGets("model.safetensors",
                std::vector<Fault>(50, {.drop_after = 100'000, .ignore_range = true}));
  EXPECT_THAT(Error(), HasSubstr("given up after 4 tries"));
  EXPECT_LE(hub_.NumRequests("GET /blob/"), 6u);
}

TEST_F(HubTest, AWrongRangeIsNotAppended) {
  hub_.FailGets("model.safetensors",
                {{.drop_after = 100'000}, {.content_range = "bytes 7-9/300000"}});
  const auto snapshot = Get();
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  ExpectWhole(*snapshot);
}

TEST_F(HubTest, ASilentLineIsBrokenAndResumed) {
  hub_.FailGets("model.safetensors",
                {{.drop_after = 100'000, .stall_after_drop = milliseconds(6000)}});
  const auto begin = std::chrono::steady_clock::now();
  const auto snapshot = Get();
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(5500));
  ExpectWhole(*snapshot);
}

TEST_F(HubTest, AFileShorterThanAnnouncedIsAnError) {
  hub_.Add("model.safetensors", weights_, true, /*size_lie=*/10);
  EXPECT_THAT(Error(), AllOf(HasSubstr("has 300010 bytes, the hub sent 300000")));
  EXPECT_FALSE(fs::exists(Blob("model.safetensors")));
}

TEST_F(HubTest, AFileLongerThanAnnouncedIsAnError) {
  hub_.Add("model.safetensors", weights_, true, /*size_lie=*/-10);
  EXPECT_THAT(Error(), HasSubstr("sends more than the 299990 bytes it announced"));
  EXPECT_FALSE(fs::exists(Blob("model.safetensors")));
}

TEST_F(HubTest, WrongContentIsFetchedOnceMoreAndThenAnError) {
  std::string wrong = weights_;
  wrong[150'000] ^= 1;
  const Fault fault = {.body = wrong, .replace_body = true};
  hub_.FailGets("model.safetensors", {fault});
  const auto snapshot = Get();
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  ExpectWhole(*snapshot);

  fs::remove_all(Repo());
  hub_.FailGets("model.safetensors", {fault, fault, fault});
  const auto failed = Get();
  EXPECT_EQ(failed.status().code(), absl::StatusCode::kDataLoss) << failed.status();
  EXPECT_THAT(StatusText(failed.status()),
              AllOf(HasSubstr(Sha256(wrong)), HasSubstr(Sha256(weights_))));
  EXPECT_FALSE(fs::exists(Blob("model.safetensors")));
  EXPECT_EQ(fs::file_size(Incomplete("model.safetensors")), 0u);  // nothing wrong is kept
  EXPECT_FALSE(fs::exists(Repo() / "snapshots" / FakeHub::kCommit / "model.safetensors"));
}

TEST_F(HubTest, SmallFilesAreCheckedByGitsHash) {
  EXPECT_EQ(GitBlobSha1("hello world\n"), "3b18e512dba79e4c8300dd08aeb37f8e728b8dad");  // git's own
  const Fault fault = {.body = "{\"model_type\": \"lIama\"}", .replace_body = true};
  hub_.FailGets("config.json", {fault, fault});
  EXPECT_EQ(Get().status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(HubTest, AnInterruptedFileOfOtherContentIsReplaced) {
  fs::create_directories(Repo() / "blobs");
  std::ofstream(Incomplete("model.safetensors")) << std::string(1000, 'x');
  std::ofstream(Incomplete("config.json")) << std::string(1000, 'x');  // longer than the file
  const auto snapshot = Get();
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  ExpectWhole(*snapshot);
}

TEST_F(HubTest, RefusalsSayWhatToDo) {
  hub_.FailLists({{.status = 401}});
  const auto unknown = Get();
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(StatusText(unknown.status()),
              AllOf(HasSubstr("hf:org/name@main"), HasSubstr("401"), HasSubstr("set HF_TOKEN")));
  ResolveOptions options = Options();
  options.environment->token = "hf_secret";
  hub_.FailLists({{.status = 401}});
  const auto rejected = Resolve("hf:org/name", options);
  EXPECT_THAT(StatusText(rejected.status()),
              AllOf(HasSubstr("does not accept the token"), Not(HasSubstr("hf_secret"))));
  hub_.FailLists({{.status = 403}});
  EXPECT_THAT(Error(), HasSubstr("refuses access (HTTP 403)"));
  hub_.FailHeads("config.json", {{.status = 403, .headers = "X-Error-Code: GatedRepo\r\n"}});
  const auto gated = Get();
  EXPECT_EQ(gated.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(StatusText(gated.status()), AllOf(HasSubstr("config.json"), HasSubstr("gated"),
                                                HasSubstr(hub_.url() + "/org/name")));
  hub_.FailLists({{.status = 404, .headers = "X-Error-Code: RepoNotFound\r\n"}});
  EXPECT_THAT(Error(), HasSubstr("no such repository (HTTP 404"));
  hub_.FailLists({{.status = 404, .headers = "X-Error-Code: RevisionNotFound\r\n"}});
  EXPECT_THAT(Error("hf:org/name@v2"), AllOf(HasSubstr("@v2"), HasSubstr("no such revision")));
  hub_.FailHeads("config.json", {{.status = 404, .headers = "X-Error-Code: EntryNotFound\r\n"}});
  EXPECT_THAT(Error(), HasSubstr("no such file"));
  hub_.FailGets("config.json", {{.status = 410}});
  EXPECT_THAT(Error(), HasSubstr("unexpected answer HTTP 410"));
  EXPECT_THAT(delays_, IsEmpty());  // none of these is tried again
}

TEST_F(HubTest, ABusyHubIsAskedAgainWhenItSays) {
  hub_.FailLists({{.status = 429, .headers = "Retry-After: 7\r\n"}, {.status = 503}});
  hub_.FailHeads("config.json", {{.status = 500}});
  hub_.FailGets("model.safetensors",
                {{.drop_after = 1000},
                 {.status = 429, .headers = "Retry-After: 3\r\n", .body = "slow"},
                 {.status = 502, .body = "<html>"}});
  const auto snapshot = Get();
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  ExpectWhole(*snapshot);
  EXPECT_THAT(delays_, ElementsAre(milliseconds(7000), milliseconds(1000), milliseconds(500),
                                   milliseconds(500), milliseconds(3000), milliseconds(2000)));
}

TEST_F(HubTest, RetryAfterMayBeADateAndHasALimit) {
  const std::time_t soon = std::time(nullptr) + 60;
  char date[64];
  std::strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", std::gmtime(&soon));
  hub_.FailLists({{.status = 429, .headers = fmt::format("Retry-After: {}\r\n", date)},
                  {.status = 429, .headers = "Retry-After: 99999999999\r\n"},
                  {.status = 429, .headers = "Retry-After: soon\r\n"}});
  ASSERT_TRUE(Get().ok());
  ASSERT_EQ(delays_.size(), 3u);
  EXPECT_GE(delays_[0], milliseconds(50'000));
  EXPECT_LE(delays_[0], milliseconds(60'000));
  EXPECT_EQ(delays_[1], milliseconds(300'000));
  EXPECT_EQ(delays_[2], milliseconds(2000));
}

TEST_F(HubTest, AHubThatStaysBrokenIsAnError) {
  hub_.FailLists(std::vector<Fault>(9, {.status = 500}));
  const auto failed = Get();
  EXPECT_EQ(failed.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(StatusText(failed.status()), HasSubstr("HTTP 500"));
  EXPECT_EQ(delays_.size(), 3u);  // four tries
}

TEST_F(HubTest, WithoutNetworkTheCacheServes) {
  ASSERT_TRUE(Get().ok());
  hub_.Stop();
  const auto cached = Get();
  ASSERT_TRUE(cached.ok()) << cached.status();
  ExpectWhole(*cached);
  const absl::Status other = Get("hf:org/other").status();
  EXPECT_EQ(other.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(StatusText(other), HasSubstr("give a folder or file in its place"));
  EXPECT_EQ(Get("hf:org/name@v2").status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(HubTest, OfflineAsksNothing) {
  ResolveOptions options = Options();
  options.environment->offline = true;
  const auto missing = Resolve("hf:org/name", options);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(StatusText(missing.status()), AllOf(HasSubstr("HF_HUB_OFFLINE"), HasSubstr("cache")));
  EXPECT_THAT(hub_.Requests(), IsEmpty());
  ASSERT_TRUE(Get().ok());
  const size_t before = hub_.Requests().size();
  const auto cached = Resolve("hf:org/name", options);
  ASSERT_TRUE(cached.ok()) << cached.status();
  ExpectWhole(*cached);
  EXPECT_TRUE(Resolve("hf:org/name/sub/vocab.txt", options).ok());
  EXPECT_FALSE(Resolve("hf:org/name/other.txt", options).ok());
  options.patterns = {"*.bin"};
  EXPECT_FALSE(Resolve("hf:org/name", options).ok());
  EXPECT_EQ(hub_.Requests().size(), before);
}

TEST_F(HubTest, OnlyWantedFilesAreFetched) {
  ResolveOptions options = Options();
  options.patterns = {"*.json", "sub/*"};
  const auto snapshot = Resolve("hf:org/name", options);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_TRUE(fs::exists(*snapshot + "/config.json"));
  EXPECT_TRUE(fs::exists(*snapshot + "/sub/vocab.txt"));
  EXPECT_FALSE(fs::exists(*snapshot + "/model.safetensors"));
  options.patterns = {"*.bin"};
  EXPECT_THAT(StatusText(Resolve("hf:org/name", options).status()),
              AllOf(HasSubstr("none of its 3 files matches *.bin"), HasSubstr("config.json")));
}

TEST_F(HubTest, APathInsideIsAFileOrAFolder) {
  const auto file = Get("hf:org/name@main/config.json");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(Slurp(*file), "{\"model_type\": \"llama\"}");
  EXPECT_EQ(hub_.NumRequests("HEAD"), 1u);
  const auto folder = Get("hf:org/name/sub");
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(Slurp(*folder + "/vocab.txt"), "a\nb\n");
  EXPECT_THAT(Error("hf:org/name/none.json"), HasSubstr("is 'none.json' or below it"));
}

TEST(HubDatasets, HaveTheirOwnPlaces) {
  FakeHub hub("/api/datasets/openai/gsm8k", "/datasets/openai/gsm8k");
  hub.Add("main/train.parquet", Noise(5000), true);
  std::string folder = testing::TempDir() + "hub.XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  ResolveOptions options;
  options.kind = Kind::kDataset;
  options.environment = {.cache = folder, .endpoint = hub.url()};
  const auto file = Resolve("hf:openai/gsm8k@refs%2Fconvert%2Fparquet/main/train.parquet", options);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(Slurp(*file), Noise(5000));
  EXPECT_EQ(Slurp(folder + "/datasets--openai--gsm8k/refs/refs/convert/parquet"), FakeHub::kCommit);
  EXPECT_EQ(hub.Requests()[0],
            "GET /api/datasets/openai/gsm8k/revision/refs%2Fconvert%2Fparquet?blobs=true");
  fs::remove_all(folder);
}

TEST_F(HubTest, ProgressRisesToTheEnd) {
  ResolveOptions options = Options();
  hub_.FailGets("model.safetensors", {{.drop_after = 100'000}});
  std::vector<int64_t> bytes;
  Progress last;
  std::string last_file;
  options.progress = [&](const Progress& progress) {
    bytes.push_back(progress.done_bytes);
    last = progress;
    last_file = progress.file;
  };
  ASSERT_TRUE(Resolve("hf:org/name", options).ok());
  EXPECT_TRUE(std::is_sorted(bytes.begin(), bytes.end()));
  EXPECT_EQ(last.done_bytes, last.total_bytes);
  EXPECT_EQ(last.total_bytes, 300'000 + 23 + 4);
  EXPECT_EQ(last.num_files, 3u);
  EXPECT_EQ(last_file, "sub/vocab.txt");
}

TEST_F(HubTest, TwoAtOnceFetchEachFileOnce) {
  constexpr int kThreads = 4;
  std::atomic<int> good = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      ResolveOptions options;
      options.environment = {.cache = folder_ + "/cache", .endpoint = hub_.url()};
      good += Resolve("hf:org/name", options).ok() ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, kThreads);
  ExpectWhole((Repo() / "snapshots" / FakeHub::kCommit).string());
  EXPECT_EQ(hub_.NumRequests("GET /blob/"), 1u);
  EXPECT_EQ(hub_.NumRequests("GET /org/name/resolve/"), 3u);  // one of them redirected
}

TEST_F(HubTest, AWaitingProcessTakesOverWhereAKilledOneStopped) {
  auto lock = FileLock::Acquire(folder_ + "/cache/.locks/models--org--name/" +
                                hub_.Hash("model.safetensors") + ".lock");
  ASSERT_TRUE(lock.ok());
  auto held = std::make_unique<FileLock>(*std::move(lock));
  std::atomic<bool> done = false;
  std::thread waiting([&] {
    EXPECT_TRUE(Get().ok());
    done = true;
  });
  while (hub_.NumRequests("HEAD /org/name/resolve") < 2) std::this_thread::yield();
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_FALSE(done);
  fs::create_directories(Repo() / "blobs");
  std::ofstream(Incomplete("model.safetensors"), std::ios::binary) << weights_.substr(0, 12'345);
  held.reset();
  waiting.join();
  EXPECT_THAT(hub_.Requests(), Contains("GET /blob/model.safetensors bytes=12345-"));
}

TEST_F(HubTest, AnswersThatAreNoHubsAreErrors) {
  const auto list = [&](const std::string& body) {
    hub_.FailLists({{.body = body, .replace_body = true}});
    return Error();
  };
  EXPECT_THAT(list("<html>"), AllOf(HasSubstr("not JSON"), HasSubstr("HF_ENDPOINT")));
  EXPECT_THAT(list("[]"), HasSubstr("no commit"));
  EXPECT_THAT(list(R"({"sha":"main","siblings":[]})"), HasSubstr("no commit"));
  const std::string sha = std::string(R"({"sha":")") + FakeHub::kCommit + R"(","siblings":)";
  EXPECT_THAT(list(sha + "{}}"), HasSubstr("no list of files"));
  for (const char* name : {"../../evil", "/etc/passwd", "a//b", "", "a/./b", ".."}) {
    EXPECT_THAT(list(sha + fmt::format(R"([{{"rfilename":"{}"}}]}})", name)), HasSubstr("unsafe"))
        << name;
  }
  EXPECT_THAT(list(sha + "[{}]}"), HasSubstr("unsafe"));
  EXPECT_THAT(list(sha + "[3]}"), HasSubstr("unsafe"));
  EXPECT_THAT(list(std::string(1'000'000, '[')), HasSubstr("not JSON"));
  hub_.etag = "../../evil";
  EXPECT_THAT(Error(), HasSubstr("no usable ETag"));
  hub_.send_etag = false;
  EXPECT_THAT(Error(), HasSubstr("no usable ETag"));
}

TEST_F(HubTest, AnUnwritableCacheIsAnError) {
  std::ofstream(folder_ + "/cache") << "a file";
  EXPECT_THAT(Error(), HasSubstr(folder_ + "/cache"));
}

TEST(Http, RedirectsAreFollowedButNotForEver) {
  TestServer server([](const TestRequest& request, TestConnection& connection) {
    if (request.target == "/end") {
      connection.Send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: b \r\n\r\nok");
    } else {
      const std::string to = request.target == "/loop" ? "/loop" : "end";
      connection.Send("HTTP/1.1 307 X\r\nContent-Length: 4\r\nLocation: " + to + "\r\n\r\nbody");
    }
  });
  std::string body;
  HttpRequest request;
  request.on_body = [&](std::string_view data) {
    body += data;
    return absl::OkStatus();
  };
  request.url = server.url() + "/start";
  const auto response = Perform(request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->status, 200);
  EXPECT_EQ(response->Header("x-a"), "b");
  EXPECT_EQ(response->url, server.url() + "/end");
  EXPECT_EQ(body, "ok");
  request.url = server.url() + "/loop";
  EXPECT_THAT(StatusText(Perform(request).status()), HasSubstr("redirects"));
}

TEST(Http, BadUrlsBadServersAndRefusingCallbacksAreErrors) {
  HttpRequest request;
  for (const char* url : {"", "file:///etc/passwd", "ftp://x/y", "http://"}) {
    request.url = url;
    EXPECT_EQ(Perform(request).status().code(), absl::StatusCode::kInvalidArgument) << url;
  }
  TestServer server([](const TestRequest& request, TestConnection& connection) {
    if (request.target == "/file") {
      connection.Send(
          "HTTP/1.1 302 X\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n");
    } else if (request.target == "/noise") {
      connection.Send("this is not HTTP\r\n\r\n");
    } else if (request.target == "/headers") {
      connection.Send("HTTP/1.1 200 OK\r\n");
      for (int i = 0; i < 3000; ++i) connection.Send("X-A: " + std::string(1000, 'a') + "\r\n");
    } else if (request.target == "/body") {
      connection.Send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    }  // else: closes without a word
  });
  request.url = server.url() + "/file";
  EXPECT_EQ(Perform(request).status().code(), absl::StatusCode::kInvalidArgument);
  request.url = server.url() + "/noise";
  EXPECT_FALSE(Perform(request).ok());
  request.url = server.url() + "/headers";
  EXPECT_FALSE(Perform(request).ok());
  request.url = server.url() + "/nothing";
  EXPECT_EQ(Perform(request).status().code(), absl::StatusCode::kUnavailable);
  request.url = server.url() + "/body";
  request.on_body = [](std::string_view) { return absl::ResourceExhaustedError("full"); };
  EXPECT_EQ(Perform(request).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(Http, EscapesWhatUrlsDoNotTake) {
  EXPECT_EQ(UrlEscape("a b/ö?#%~-_.", true), "a%20b/%C3%B6%3F%23%25~-_.");
  EXPECT_EQ(UrlEscape("refs/pr/1", false), "refs%2Fpr%2F1");
}

}  // namespace
}  // namespace orrery::hub
