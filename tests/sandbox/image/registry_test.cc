// Pulls from a server that misbehaves in every way that registries do.
#include "sandbox/image/registry.h"

#include <atomic>
#include <mutex>

#include "sandbox/image/digest.h"
#include "tests/orchestrator/hub/test_server.h"
#include "tests/sandbox/image/image_testing.h"

namespace orrery::sandbox::image {
namespace {

using hub::TestConnection;
using hub::TestRequest;
using hub::TestServer;
using testing::HasSubstr;

class Pull : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_UNLESS_ROOT();
    store_ = OpenStore(folder_ / "store");
    layer_ =
        Gzip(Tar().File("etc/what", std::string(200'000, 'w')).File("noise", Noise()).Finish());
    diff_id_ =
        DigestOf(Tar().File("etc/what", std::string(200'000, 'w')).File("noise", Noise()).Finish());
    config_ = R"({"architecture":")" + HostArchitecture() +
              R"(","os":"linux","config":{"Env":["A=1"]},"rootfs":{"type":"layers","diff_ids":[")" +
              diff_id_ + "\"]}}";
    manifest_ = R"({"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",)"
                R"("config":{"mediaType":"c","digest":")" +
                DigestOf(config_) + R"(","size":)" + std::to_string(config_.size()) +
                R"(},"layers":[{"mediaType":"l","digest":")" + DigestOf(layer_) + R"(","size":)" +
                std::to_string(layer_.size()) + "}]}";
    server_ = std::make_unique<TestServer>(
        [this](const TestRequest& request, TestConnection& connection) {
          Answer(request, connection);
        });
  }

  static std::string Noise() {
    std::string noise;
    uint64_t state = 1;
    for (int i = 0; i < 300'000; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      noise += static_cast<char>(state >> 56);
    }
    return noise;
  }

  static void Reply(TestConnection& connection, int status, const std::string& body,
                    const std::string& headers = "") {
    connection.Send("HTTP/1.1 " + std::to_string(status) +
                    " X\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + headers +
                    "Connection: close\r\n\r\n" + body);
  }

  // What a right registry says; tests replace parts of it.
  void Answer(const TestRequest& request, TestConnection& connection) {
    {
      const std::lock_guard lock(mutex_);
      targets_.push_back(request.target);
      authorizations_.push_back(request.Header("authorization"));
    }
    if (before_ && before_(request, connection)) return;
    if (request.target == "/v2/a/b/manifests/1") {
      EXPECT_THAT(request.Header("accept"), HasSubstr("vnd.oci.image.index"));
      return Reply(connection, 200, manifest_);
    }
    for (const std::string& blob : {config_, layer_, other_manifest_}) {
      const std::string digest = DigestOf(blob);
      if (!request.target.ends_with(digest)) continue;
      const std::string range = request.Header("range");
      if (range.empty()) return Reply(connection, 200, blob);
      const size_t begin = std::stoul(range.substr(6));
      return Reply(connection, 206, blob.substr(begin),
                   "Content-Range: bytes " + std::to_string(begin) + "-" +
                       std::to_string(blob.size() - 1) + "/" + std::to_string(blob.size()) +
                       "\r\n");
    }
    Reply(connection, 404, R"({"errors":[{"code":"X","message":"not here"}]})");
  }

  std::string Name() const { return server_->url().substr(7) + "/a/b:1"; }
  absl::StatusOr<ImageSummary> Run(PullOptions options = {}) {
    options.sleep = [this](int64_t milliseconds) { slept_ += milliseconds; };
    return store_->Pull(Name(), options);
  }
  int Count(const std::string& target) {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(
        std::count_if(targets_.begin(), targets_.end(),
                      [&](const std::string& t) { return t.find(target) != std::string::npos; }));
  }

  TempFolder folder_;
  std::unique_ptr<ImageStore> store_;
  std::string layer_, diff_id_, config_, manifest_, other_manifest_ = "{}";
  std::function<bool(const TestRequest&, TestConnection&)> before_;
  std::mutex mutex_;
  std::vector<std::string> targets_, authorizations_;
  std::atomic<int64_t> slept_ = 0;
  std::unique_ptr<TestServer> server_;  // last
};

TEST_F(Pull, ARightRegistry) {
  const auto image = Run();
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(image->id, DigestOf(config_));
  EXPECT_THAT(image->names, testing::ElementsAre(Name()));
  EXPECT_EQ(ReadText(store_->Resolve(Name())->layers[0] + "/noise"), Noise());
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "store/blobs"));
  ASSERT_TRUE(Run().ok());  // what is there is not fetched again
  EXPECT_EQ(Count(DigestOf(layer_)), 1);
  ExpectVerified(*store_);
}

TEST_F(Pull, WrongLayerBytesAreRefused) {
  before_ = [&](const TestRequest& request, TestConnection& connection) {
    if (!request.target.ends_with(DigestOf(layer_))) return false;
    std::string wrong = layer_;
    wrong[wrong.size() / 2] ^= 1;
    Reply(connection, 200, wrong);
    return true;
  };
  const auto image = Run();
  EXPECT_EQ(image.status().code(), absl::StatusCode::kDataLoss) << image.status();
  EXPECT_THAT(StatusText(image.status()), HasSubstr("the registry"));
  EXPECT_THAT(*store_->List(), testing::IsEmpty());
}

TEST_F(Pull, WrongDocumentsAreRefused) {
  before_ = [&](const TestRequest& request, TestConnection& connection) {
    if (!request.target.ends_with(DigestOf(config_))) return false;
    Reply(connection, 200, config_ + " ");
    return true;
  };
  EXPECT_EQ(Run().status().code(), absl::StatusCode::kDataLoss);
  for (const char* odd : {"", "[]", "{}", R"({"schemaVersion":1})",
                          R"({"manifests":[{"digest":"sha256:12"}]})", R"({"manifests":[]})"}) {
    manifest_ = odd;
    before_ = nullptr;
    EXPECT_FALSE(Run().ok()) << odd;
  }
}

TEST_F(Pull, ABrokenLineIsResumed) {
  std::atomic<int> tries = 0;
  before_ = [&](const TestRequest& request, TestConnection& connection) {
    if (!request.target.ends_with(DigestOf(layer_)) || ++tries > 3) return false;
    const std::string range = request.Header("range");
    const size_t begin = range.empty() ? 0 : std::stoul(range.substr(6));
    std::string head = "HTTP/1.1 " + std::string(begin == 0 ? "200" : "206") +
                       " X\r\nContent-Length: " + std::to_string(layer_.size() - begin) +
                       "\r\nContent-Range: bytes " + std::to_string(begin) + "-/*\r\n\r\n";
    connection.Send(head + layer_.substr(begin, 50'000));
    return true;
  };
  const auto image = Run();
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(tries, 4);
  ExpectVerified(*store_);
}

// The line breaks for good; a later pull goes on from what came.
TEST_F(Pull, ALaterPullGoesOn) {
  std::string range;
  bool broken = true;
  before_ = [&](const TestRequest& request, TestConnection& connection) {
    if (!request.target.ends_with(DigestOf(layer_))) return false;
    range = request.Header("range");
    if (!broken) return false;
    if (!range.empty()) return true;  // nothing more
    connection.Send("HTTP/1.1 200 X\r\nContent-Length: " + std::to_string(layer_.size()) +
                    "\r\n\r\n" + layer_.substr(0, 70'000));
    return true;
  };
  EXPECT_FALSE(Run().ok());
  broken = false;
  store_ = OpenStore(folder_ / "store");
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(range, "bytes=70000-");
}

TEST_F(Pull, PassingErrorsAreRepeated) {
  std::atomic<int> failures = 0;
  before_ = [&](const TestRequest&, TestConnection& connection) {
    if (++failures > 2) return false;
    Reply(connection, failures == 1 ? 429 : 503, "", "Retry-After: 7\r\n");
    return true;
  };
  ASSERT_TRUE(Run().ok());
  EXPECT_GE(slept_, 14'000);
  before_ = [](const TestRequest&, TestConnection& connection) {
    Reply(connection, 429, R"({"errors":[{"message":"pull rate"}]})");
    return true;
  };
  const auto image = Run();
  EXPECT_EQ(image.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(StatusText(image.status()), HasSubstr("HTTP 429, pull rate"));
}

TEST_F(Pull, MissingImagesAreNamed) {
  before_ = [](const TestRequest&, TestConnection& connection) {
    Reply(connection, 404, R"({"errors":[{"message":"manifest unknown"}]})");
    return true;
  };
  const auto image = Run();
  EXPECT_EQ(image.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(StatusText(image.status()), HasSubstr("manifest unknown"));
}

TEST_F(Pull, TokensAreFetchedAndRenewed) {
  std::atomic<int> tokens = 0;
  bool expired = false;
  before_ = [&](const TestRequest& request, TestConnection& connection) {
    if (request.target.starts_with("/token")) {
      EXPECT_EQ(request.target, "/token?service=reg&scope=repository%3Aa%2Fb%3Apull");
      EXPECT_EQ(request.Header("authorization"), "Basic dTpw");  // u:p
      Reply(connection, 200, R"({"token":"t)" + std::to_string(++tokens) + "\"}");
      return true;
    }
    const std::string wanted = "Bearer t" + std::to_string(tokens);
    const bool blob = request.target.ends_with(DigestOf(layer_));
    if (request.Header("authorization") == wanted && (!blob || expired)) return false;
    if (blob && !expired) expired = true;
    Reply(connection, 401, "",
          "WWW-Authenticate: Bearer realm=\"" + server_->url() +
              "/token\",service=\"reg\",scope=\"repository:a/b:pull\"\r\n");
    return true;
  };
  PullOptions options;
  options.user = "u";
  options.password = "p";
  const auto image = Run(options);
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(tokens, 2);
}

TEST_F(Pull, BasicAuthentication) {
  before_ = [&](const TestRequest& request, TestConnection& connection) {
    if (request.Header("authorization") == "Basic dTpw") return false;
    Reply(connection, 401, "", "WWW-Authenticate: Basic realm=\"x\"\r\n");
    return true;
  };
  const auto without = Run();
  EXPECT_EQ(without.status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(StatusText(without.status()), HasSubstr("--password-stdin"));
  PullOptions options;
  options.user = "u";
  options.password = "wrong";
  EXPECT_THAT(StatusText(Run(options).status()), HasSubstr("check user and password"));
  options.password = "p";
  EXPECT_TRUE(Run(options).ok());
}

TEST_F(Pull, CredentialsFromTheConfiguration) {
  WriteText(folder_ / "auth.json",
            R"({"auths":{")" + server_->url().substr(7) + R"(":{"auth":"dTpw"}}})");
  ::setenv("REGISTRY_AUTH_FILE", (folder_ / "auth.json").c_str(), 1);
  before_ = [&](const TestRequest& request, TestConnection& connection) {
    if (request.Header("authorization") == "Basic dTpw") return false;
    Reply(connection, 401, "", "WWW-Authenticate: Basic realm=\"x\"\r\n");
    return true;
  };
  EXPECT_TRUE(Run().ok());
  ::unsetenv("REGISTRY_AUTH_FILE");
}

// Blobs often lie elsewhere, behind a redirect that must not see the credentials.
TEST_F(Pull, RedirectsDoNotGetTheCredentials) {
  std::string seen = "nothing";
  TestServer storage([&](const TestRequest& request, TestConnection& connection) {
    seen = request.Header("authorization");
    Reply(connection, 200, layer_);
  });
  before_ = [&](const TestRequest& request, TestConnection& connection) {
    if (request.Header("authorization").empty()) {
      Reply(connection, 401, "", "WWW-Authenticate: Basic realm=\"x\"\r\n");
      return true;
    }
    if (!request.target.ends_with(DigestOf(layer_))) return false;
    Reply(connection, 307, "", "Location: " + storage.url() + "/s\r\n");
    return true;
  };
  PullOptions options;
  options.user = "u";
  options.password = "p";
  ASSERT_TRUE(Run(options).ok());
  EXPECT_EQ(seen, "");
}

TEST_F(Pull, AnIndexIsChosenFromByArchitecture) {
  other_manifest_ = manifest_;
  const std::string foreign = HostArchitecture() == "amd64" ? "arm64" : "amd64";
  const auto index = [&](const std::string& architecture) {
    return R"({"schemaVersion":2,"manifests":[{"digest":"sha256:)" + std::string(64, '0') +
           R"(","platform":{"os":"linux","architecture":"s390x"}},{"digest":")" +
           DigestOf(other_manifest_) + R"(","platform":{"os":"linux","architecture":")" +
           architecture + R"("}}]})";
  };
  manifest_ = index(HostArchitecture());
  ASSERT_TRUE(Run().ok());
  manifest_ = index(foreign);
  const auto image = Run();
  EXPECT_EQ(image.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(StatusText(image.status()), HasSubstr("linux/" + foreign + ", linux/s390x"));
  PullOptions options;
  options.architecture = foreign;
  EXPECT_TRUE(Run(options).ok());
}

TEST_F(Pull, ConcurrentPullsFetchALayerOnce) {
  std::vector<std::thread> threads;
  std::atomic<int> failures = 0;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] { failures += Run().ok() ? 0 : 1; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(Count(DigestOf(layer_)), 1);
  ExpectVerified(*store_);
}

}  // namespace
}  // namespace orrery::sandbox::image
