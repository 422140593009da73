#include "orchestrator/hub/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"

namespace orrery::hub {
namespace {

constexpr int kMaxRedirects = 10;
constexpr size_t kMaxHeaderBytes = 1 << 20;

using Curl = std::unique_ptr<CURL, decltype(&curl_easy_cleanup)>;
using CurlList = std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)>;
using CurlUrl = std::unique_ptr<CURLU, decltype(&curl_url_cleanup)>;

void InitCurlOnce() {
  static std::once_flag once;
  std::call_once(once, [] { CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK); });
}

std::string Part(CURLU* url, CURLUPart part, unsigned flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url, part, &text, flags) != CURLUE_OK) return "";
  std::string value(text);
  curl_free(text);
  return value;
}

struct ParsedUrl {
  std::string full;
  std::string scheme;
  std::string origin;  // "https://host:443"
};

// `target` may be relative to `base` (empty: there is none).
absl::StatusOr<ParsedUrl> ParseUrl(const std::string& base, const std::string& target) {
  const CurlUrl url(curl_url(), curl_url_cleanup);
  if (!base.empty()) curl_url_set(url.get(), CURLUPART_URL, base.c_str(), 0);
  if (curl_url_set(url.get(), CURLUPART_URL, target.c_str(), 0) != CURLUE_OK) {
    return InvalidInput("'{}' is not a URL", target);
  }
  ParsedUrl parsed;
  parsed.full = Part(url.get(), CURLUPART_URL);
  parsed.scheme = Part(url.get(), CURLUPART_SCHEME);
  parsed.origin = fmt::format("{}://{}:{}", parsed.scheme, Part(url.get(), CURLUPART_HOST),
                              Part(url.get(), CURLUPART_PORT, CURLU_DEFAULT_PORT));
  if (parsed.scheme != "http" && parsed.scheme != "https") {
    return InvalidInput("'{}' is neither http nor https", target);
  }
  return parsed;
}

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

bool IsRedirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

// One exchange, without redirects: what curl's callbacks need.
class Exchange {
 public:
  Exchange(const HttpRequest& request, const ParsedUrl& url, bool with_token)
      : request_(request), url_(url), with_token_(with_token) {
    response_.url = url.full;
  }

  absl::StatusOr<HttpResponse> Run() {
    const Curl curl(curl_easy_init(), curl_easy_cleanup);
    CHECK(curl != nullptr);
    const CurlList headers = RequestHeaders();
    SetOptions(curl.get(), headers.get());
    const CURLcode code = curl_easy_perform(curl.get());
    if (!status_.ok()) return status_;
    if (code != CURLE_OK) {
      return Unavailable("{}: {}", url_.full,
                         error_[0] != '\0' ? error_ : curl_easy_strerror(code));
    }
    RETURN_IF_ERROR(GiveHeaders());  // where there was no body
    return std::move(response_);
  }

 private:
  CurlList RequestHeaders() const {
    curl_slist* list = curl_slist_append(nullptr, "Accept-Encoding: identity");
    if (!request_.accept.empty()) {
      list = curl_slist_append(list, ("Accept: " + request_.accept).c_str());
    }
    if (with_token_ && !request_.authorization.empty()) {
      list = curl_slist_append(list, ("Authorization: " + request_.authorization).c_str());
    } else if (with_token_ && !request_.token.empty()) {
      list = curl_slist_append(list, ("Authorization: Bearer " + request_.token).c_str());
    }
    return CurlList(list, curl_slist_free_all);
  }

  void SetOptions(CURL* curl, curl_slist* headers) {
    curl_easy_setopt(curl, CURLOPT_URL, url_.full.c_str());
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "orrery/0.1");
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(curl, CURLOPT_NOBODY, request_.head ? 1L : 0L);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, error_);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS,
                     static_cast<long>(request_.connect_timeout.count()));
    // Not CURLOPT_LOW_SPEED_TIME: it averages over seconds in which bytes still came.
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &Exchange::OnTick);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, this);
    if (request_.begin > 0) {
      curl_easy_setopt(curl, CURLOPT_RANGE, fmt::format("{}-", request_.begin).c_str());
    }
    // libcurl itself does not read these, its command-line tool does.
    for (const char* name : {"CURL_CA_BUNDLE", "SSL_CERT_FILE"}) {
      const char* file = std::getenv(name);
      if (file == nullptr || *file == '\0') continue;
      curl_easy_setopt(curl, CURLOPT_CAINFO, file);
      break;
    }
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &Exchange::OnHeader);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, this);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &Exchange::OnBody);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, this);
  }

  static size_t OnHeader(char* data, size_t size, size_t count, void* self) {
    return static_cast<Exchange*>(self)->TakeHeader({data, size * count}) ? size * count : 0;
  }
  static size_t OnBody(char* data, size_t size, size_t count, void* self) {
    return static_cast<Exchange*>(self)->TakeBody({data, size * count}) ? size * count : 0;
  }

  // Called about once a second; anything but 0 ends the exchange.
  static int OnTick(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return static_cast<Exchange*>(self)->Stalled() ? 1 : 0;
  }

  bool Stalled() {
    const auto silent = std::chrono::steady_clock::now() - last_byte_;
    if (silent < request_.stall_timeout) return false;
    status_ = Unavailable("{}: nothing came for {} s", url_.full, request_.stall_timeout.count());
    return true;
  }

  bool TakeHeader(std::string_view line) {
    last_byte_ = std::chrono::steady_clock::now();
    header_bytes_ += line.size();
    if (header_bytes_ > kMaxHeaderBytes) {
      status_ = Failed("{}: sends more than {} bytes of headers", url_.full, kMaxHeaderBytes);
      return false;
    }
    if (line.starts_with("HTTP/")) {  // also after an interim 100
      response_.headers.clear();
      const size_t space = line.find(' ');
      response_.status =
          space == std::string_view::npos ? 0 : std::atoi(std::string(line.substr(space)).c_str());
      return true;
    }
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return true;
    std::string name(line.substr(0, colon));
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    response_.headers[name] = std::string(Trim(line.substr(colon + 1)));
    return true;
  }

  bool TakeBody(std::string_view data) {
    last_byte_ = std::chrono::steady_clock::now();
    if (IsRedirect(response_.status)) return true;  // its body is for people
    status_ = GiveHeaders();
    if (status_.ok() && request_.on_body) status_ = request_.on_body(data);
    last_byte_ = std::chrono::steady_clock::now();  // a slow disk is no silent line
    return status_.ok();
  }

  absl::Status GiveHeaders() {
    if (given_ || IsRedirect(response_.status) || !request_.on_headers) return absl::OkStatus();
    given_ = true;
    return request_.on_headers(response_);
  }

  const HttpRequest& request_;
  const ParsedUrl& url_;
  bool with_token_;
  HttpResponse response_;
  absl::Status status_;
  std::chrono::steady_clock::time_point last_byte_ = std::chrono::steady_clock::now();
  size_t header_bytes_ = 0;
  bool given_ = false;
  char error_[CURL_ERROR_SIZE] = "";
};

}  // namespace

std::string HttpResponse::Header(const std::string& lower_case_name) const {
  const auto found = headers.find(lower_case_name);
  return found == headers.end() ? "" : found->second;
}

absl::StatusOr<HttpResponse> Perform(const HttpRequest& request) {
  InitCurlOnce();
  ASSIGN_OR_RETURN(ParsedUrl url, ParseUrl("", request.url));
  const std::string first_origin = url.origin;
  for (int i = 0; i <= kMaxRedirects; ++i) {
    ASSIGN_OR_RETURN(HttpResponse response,
                     Exchange(request, url, url.origin == first_origin).Run());
    const std::string location = response.Header("location");
    if (!IsRedirect(response.status) || location.empty()) return response;
    ASSIGN_OR_RETURN(ParsedUrl next, ParseUrl(url.full, location));
    if (request.head && next.origin != url.origin) return response;
    if (url.scheme == "https" && next.scheme != "https") {
      return InvalidInput("{}: redirects from https to '{}', which is not followed", url.full,
                          next.full);
    }
    url = std::move(next);
  }
  return Failed("{}: more than {} redirects", request.url, kMaxRedirects);
}

std::string UrlEscape(std::string_view text, bool keep_slashes) {
  std::string escaped;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (byte < 0x80 && std::isalnum(byte) != 0) || c == '-' || c == '.' ||
                       c == '_' || c == '~' || (c == '/' && keep_slashes);
    escaped += plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return escaped;
}

}  // namespace orrery::hub
