#include "sandbox/image/registry.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <mutex>

#include "absl/strings/escaping.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"
#include "orchestrator/base/utf8.h"
#include "orchestrator/hub/download.h"
#include "orchestrator/hub/http.h"
#include "orchestrator/hub/retry.h"
#include "sandbox/image/digest.h"
#include "sandbox/image/json.h"
#include "sandbox/image/manifest.h"

namespace orrery::sandbox::image {
namespace {

using hub::HttpRequest;
using hub::HttpResponse;

std::string Base64(const std::string& text) { return absl::Base64Escape(text); }

bool IsLoopback(const std::string& host) {
  const std::string name = host.substr(0, host.rfind(':'));
  return host == "localhost" || name == "localhost" || name.starts_with("127.") ||
         name == "[::1]" || host.starts_with("127.");
}

// What the registry says in the body of an error, for the message.
std::string ReasonIn(const std::string& body) {
  const auto json = ParseJson(body, "");
  if (!json.ok()) return "";
  const rapidjson::Value* errors = Member(*json, "errors");
  if (errors == nullptr || !errors->IsArray() || errors->Empty()) return "";
  const std::string message = StringOf((*errors)[0], "message");
  return message.empty() ? "" : ", " + ShortenUtf8(message, 200);
}

hub::RetryPolicy PolicyOf(const PullOptions& options) {
  hub::RetryPolicy policy;
  if (options.sleep) {
    policy.sleep = [sleep = options.sleep](std::chrono::milliseconds pause) {
      sleep(pause.count());
    };
  }
  return policy;
}

// One repository on one registry, with what is needed to be let in. Thread-safe.
class Registry {
 public:
  Registry(Reference reference, const PullOptions& options, Credentials credentials)
      : reference_(std::move(reference)),
        credentials_(std::move(credentials)),
        policy_(PolicyOf(options)),
        what_(reference_.host + "/" + reference_.path) {
    const bool docker = reference_.host == "docker.io";
    const std::string host = docker ? "registry-1.docker.io" : reference_.host;
    const bool plain = options.plain_http || IsLoopback(host);
    base_ = fmt::format("{}://{}/v2/{}", plain ? "http" : "https", host, reference_.path);
  }

  const std::string& what() const { return what_; }

  // A manifest or another small document, checked by its digest where it has one.
  absl::StatusOr<std::string> Get(const std::string& path, const std::string& digest,
                                  std::string_view accept) {
    HttpRequest request;
    request.url = base_ + path;
    request.accept = std::string(accept);
    std::string body;
    bool refreshed = false;
    while (true) {
      ASSIGN_OR_RETURN(request.authorization, Authorization());
      ASSIGN_OR_RETURN(const HttpResponse response, PerformPatiently(request, policy_, &body));
      if (response.status == 200) return CheckDocument(std::move(body), digest, path);
      if (response.status != 401 || refreshed) return Error(response, body);
      refreshed = true;
      RETURN_IF_ERROR(Authorize(response, request.authorization));
    }
  }

  // A layer's bytes as a file, resumed. The lock of its chain keeps others away.
  absl::Status Download(const Descriptor& layer, const std::string& path) {
    hub::Download download;
    download.what = fmt::format("{}@{}", what_, layer.digest);
    download.url = base_ + "/blobs/" + layer.digest;
    download.expected = {HexOf(layer.digest), layer.size > 0 ? layer.size : -1};
    download.path = path;
    download.incomplete = path + ".incomplete";
    download.server = "the registry";
    HttpResponse refused;
    download.error = [&](const HttpResponse& response) {
      refused = response;
      return Error(response, "");
    };
    // A token may run out while a large layer comes: as long as bytes came, a new one is fetched.
    int64_t bytes = 0, bytes_then = -1;
    while (true) {
      ASSIGN_OR_RETURN(download.authorization, Authorization());
      const absl::Status status =
          hub::DownloadFile(download, policy_, [&](int64_t so_far) { bytes = so_far; });
      if (!absl::IsUnauthenticated(status) || bytes == bytes_then) return status;
      bytes_then = bytes;
      RETURN_IF_ERROR(Authorize(refused, download.authorization));
    }
  }

 private:
  absl::StatusOr<std::string> CheckDocument(std::string body, const std::string& digest,
                                            const std::string& path) const {
    if (static_cast<int64_t>(body.size()) > kMaxDocumentBytes) {
      return InvalidInput("{}{}: a document of {} bytes", what_, path, body.size());
    }
    const std::string actual = DigestOf(body);
    if (digest.empty() || actual == digest) return body;
    return absl::DataLossError(
        fmt::format("{}{}: what came has the digest {} instead of {}: the registry or something "
                    "between changes it",
                    what_, path, actual, digest));
  }

  absl::Status Error(const HttpResponse& response, const std::string& body) const {
    const std::string reason = ReasonIn(body);
    switch (response.status) {
      case 401:
      case 403: {
        const std::string text = fmt::format(
            "{}: the registry refuses access (HTTP {}{}): {}", what_, response.status, reason,
            credentials_.user.empty()
                ? "check the name, or give --user and --password-stdin (or log in with docker, "
                  "podman or skopeo: ~/.docker/config.json, $REGISTRY_AUTH_FILE)"
                : "check user and password");
        return response.status == 401 ? absl::UnauthenticatedError(text)
                                      : absl::PermissionDeniedError(text);
      }
      case 404:
        return NotFound("{}: there is no image '{}' (HTTP 404{} from {})", what_,
                        reference_.version(), reason, response.url);
      case 429:
        return Unavailable(
            "{}: the registry's limit of requests is used up (HTTP 429{}): wait, log in, or use a "
            "mirror",
            what_, reason);
      default:
        break;
    }
    if (hub::IsPassing(response.status)) {
      return Unavailable("{}: the registry answered HTTP {}{} each time: try again later", what_,
                         response.status, reason);
    }
    return Failed("{}: unexpected answer HTTP {}{} from {}", what_, response.status, reason,
                  response.url);
  }

  absl::StatusOr<std::string> Authorization() {
    const std::lock_guard lock(mutex_);
    return authorization_;
  }

  // After a 401: does what the challenge asks for. `used` is what was refused; where another thread
  // has got a new one since, that is tried.
  absl::Status Authorize(const HttpResponse& response, const std::string& used) {
    const std::lock_guard lock(mutex_);
    if (authorization_ != used) return absl::OkStatus();
    const Challenge challenge = ParseChallenge(response.Header("www-authenticate"));
    if (challenge.scheme == "basic" && !credentials_.user.empty() && used.empty()) {
      authorization_ = Basic();
      return absl::OkStatus();
    }
    if (challenge.scheme == "bearer") return FetchToken(challenge);
    return Error(response, "");
  }

  std::string Basic() const {
    return "Basic " + Base64(credentials_.user + ":" + credentials_.password);
  }

  absl::Status FetchToken(const Challenge& challenge) {
    if (!challenge.realm.starts_with("https://") && !base_.starts_with("http://")) {
      return InvalidInput("{}: the registry sends for a token to '{}', which is not https", what_,
                          challenge.realm);
    }
    HttpRequest request;
    request.url = fmt::format(
        "{}{}service={}&scope={}", challenge.realm,
        challenge.realm.find('?') == std::string::npos ? "?" : "&",
        hub::UrlEscape(challenge.service, false),
        hub::UrlEscape(
            challenge.scope.empty() ? "repository:" + reference_.path + ":pull" : challenge.scope,
            false));
    if (!credentials_.user.empty()) request.authorization = Basic();
    std::string body;
    ASSIGN_OR_RETURN(const HttpResponse response, PerformPatiently(request, policy_, &body));
    if (response.status != 200) return Error(response, body);
    ASSIGN_OR_RETURN(const rapidjson::Document json, ParseJson(body, challenge.realm));
    std::string token = StringOf(json, "token");
    if (token.empty()) token = StringOf(json, "access_token");
    const bool printable = std::all_of(token.begin(), token.end(),
                                       [](unsigned char c) { return c > 0x20 && c < 0x7f; });
    if (token.empty() || !printable) return Failed("{}: no token in its answer", challenge.realm);
    authorization_ = "Bearer " + token;
    return absl::OkStatus();
  }

  const Reference reference_;
  const Credentials credentials_;
  const hub::RetryPolicy policy_;
  const std::string what_;
  std::string base_;
  std::mutex mutex_;
  std::string authorization_;
};

absl::StatusOr<ByteSource> FetchLayer(const StoreFiles& files, Registry* registry,
                                      const Descriptor& layer) {
  const std::string path = files.blob(layer.digest);
  // The same blob may be two layers of images that differ below it.
  ASSIGN_OR_RETURN(const Fd lock,
                   LockFile(files.locks() + "/blob-" + HexOf(layer.digest), LockMode::kExclusive));
  if (::access(path.c_str(), F_OK) != 0) RETURN_IF_ERROR(registry->Download(layer, path));
  auto file = std::make_shared<Fd>(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file->ok()) return ErrnoStatus("cannot open", path, errno);
  ByteSource source = ReadFrom(file->get(), path);
  return ByteSource([file, source = std::move(source)] { return source(); });
}

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

absl::StatusOr<Credentials> ReadCredentials(const std::string& path, const std::string& host) {
  Credentials found;
  if (::access(path.c_str(), R_OK) != 0) return found;
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  ASSIGN_OR_RETURN(const rapidjson::Document json, ParseJson(text, path));
  const rapidjson::Value* auths = Member(json, "auths");
  if (auths == nullptr) return found;
  const std::vector<std::string> keys =
      host == "docker.io" ? std::vector<std::string>{"https://index.docker.io/v1/", "docker.io"}
                          : std::vector<std::string>{host, "https://" + host, "http://" + host};
  for (const std::string& key : keys) {
    const rapidjson::Value* entry = Member(*auths, key.c_str());
    if (entry == nullptr) continue;
    std::string decoded;
    if (!absl::Base64Unescape(StringOf(*entry, "auth"), &decoded)) {
      return InvalidInput("{}: auth of '{}' is no base64", path, key);
    }
    const size_t colon = decoded.find(':');
    if (colon == std::string::npos) continue;
    return Credentials{decoded.substr(0, colon), decoded.substr(colon + 1)};
  }
  return found;
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

Challenge ParseChallenge(const std::string& header) {
  Challenge challenge;
  const size_t space = std::min(header.find(' '), header.size());
  challenge.scheme = Lower(header.substr(0, space));
  std::map<std::string, std::string> values;
  for (size_t i = space; i < header.size();) {
    const size_t begin = header.find_first_not_of(" ,\t", i);
    const size_t equals = header.find('=', i);
    if (begin == std::string::npos || equals == std::string::npos || equals < begin) break;
    const std::string name = Lower(header.substr(begin, equals - begin));
    std::string value;
    size_t at = equals + 1;
    if (at < header.size() && header[at] == '"') {
      for (++at; at < header.size() && header[at] != '"'; ++at) {
        if (header[at] == '\\' && at + 1 < header.size()) ++at;
        value += header[at];
      }
      ++at;
    } else {
      const size_t end = std::min(header.find(',', at), header.size());
      value = header.substr(at, end - at);
      at = end;
    }
    values[name] = value;
    i = at;
  }
  challenge.realm = values["realm"];
  challenge.service = values["service"];
  challenge.scope = values["scope"];
  return challenge;
}

absl::StatusOr<Credentials> FindCredentials(const std::string& host) {
  std::vector<std::string> paths;
  if (const std::string file = Environment("REGISTRY_AUTH_FILE"); !file.empty()) {
    paths.push_back(file);
  }
  if (const std::string folder = Environment("DOCKER_CONFIG"); !folder.empty()) {
    paths.push_back(folder + "/config.json");
  } else if (const std::string home = Environment("HOME"); !home.empty()) {
    paths.push_back(home + "/.docker/config.json");
  }
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(Credentials found, ReadCredentials(path, host));
    if (!found.user.empty()) return found;
  }
  return Credentials();
}

absl::StatusOr<NewImage> OpenRegistryImage(const StoreFiles& files, const Reference& reference,
                                           const PullOptions& options) {
  Credentials credentials{options.user, options.password};
  if (credentials.user.empty()) {
    ASSIGN_OR_RETURN(credentials, FindCredentials(reference.host));
  }
  auto registry = std::make_shared<Registry>(reference, options, credentials);
  const std::string what = registry->what() + ":" + reference.version();
  ASSIGN_OR_RETURN(const std::string top, registry->Get("/manifests/" + reference.version(),
                                                        reference.digest, ManifestTypes()));
  ASSIGN_OR_RETURN(const Manifest manifest, ParseManifest(top, what));
  const auto fetch = [&](const Descriptor& descriptor, bool is_manifest) {
    return registry->Get((is_manifest ? "/manifests/" : "/blobs/") + descriptor.digest,
                         descriptor.digest, is_manifest ? ManifestTypes() : std::string_view());
  };
  const std::string architecture = options.architecture.empty()
                                       ? HostArchitecture()
                                       : CanonicalArchitecture(options.architecture);
  ASSIGN_OR_RETURN(const ResolvedManifest resolved,
                   ResolveManifest(manifest, architecture, fetch, what));
  NewImage image;
  image.what = what;
  image.id = resolved.id;
  image.config = resolved.spec.config;
  for (size_t i = 0; i < resolved.layers.size(); ++i) {
    const Descriptor layer = resolved.layers[i];
    image.layers.push_back(
        {.diff_id = resolved.spec.diff_ids[i],
         .blob_digest = layer.digest,
         .open = [files, registry, layer] { return FetchLayer(files, registry.get(), layer); },
         .done = [path = files.blob(layer.digest)] { ::unlink(path.c_str()); }});
  }
  return image;
}

}  // namespace orrery::sandbox::image
