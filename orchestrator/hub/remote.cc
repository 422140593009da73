#include "orchestrator/hub/remote.h"

#include <rapidjson/document.h>
#include <rapidjson/error/en.h>

#include <algorithm>
#include <charconv>

#include "orchestrator/base/status.h"
#include "orchestrator/hub/cache.h"
#include "orchestrator/hub/retry.h"
#include "orchestrator/hub/source.h"

namespace orrery::hub {
namespace {

std::string_view Text(const rapidjson::Value& value) {
  return {value.GetString(), value.GetStringLength()};
}

const rapidjson::Value* Member(const rapidjson::Value& object, const char* name) {
  if (!object.IsObject()) return nullptr;
  const auto found = object.FindMember(name);
  return found == object.MemberEnd() ? nullptr : &found->value;
}

absl::StatusOr<RemoteFile> ParseSibling(const rapidjson::Value& sibling, const std::string& what) {
  const rapidjson::Value* name = Member(sibling, "rfilename");
  if (name == nullptr || !name->IsString() || !IsSafePath(Text(*name))) {
    return Failed("{}: the hub lists a file whose name is missing or unsafe", what);
  }
  RemoteFile file;
  file.path = std::string(Text(*name));
  const rapidjson::Value* size = Member(sibling, "size");
  if (size != nullptr && size->IsInt64() && size->GetInt64() >= 0) file.size = size->GetInt64();
  return file;
}

// An ETag without its quotes and the W/ of a weak one.
std::string PlainEtag(std::string etag) {
  if (etag.starts_with("W/")) etag.erase(0, 2);
  std::erase(etag, '"');
  return etag;
}

// It becomes a file name.
bool IsSafeHash(const std::string& hash) {
  return !hash.empty() && hash.size() <= 128 && hash.front() != '.' &&
         std::all_of(hash.begin(), hash.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
         });
}

int64_t ParseSize(const std::string& text) {
  int64_t size = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  const bool good = error == std::errc() && end == text.data() + text.size() && size >= 0;
  return good ? size : -1;
}

}  // namespace

std::string RemoteRepo::Name(const std::string& revision) const {
  return fmt::format("hf:{}@{}", repo_, revision);
}

std::string RemoteRepo::Page() const {
  return fmt::format("{}/{}{}", environment_.endpoint, kind_ == Kind::kDataset ? "datasets/" : "",
                     repo_);
}

std::string RemoteRepo::FileUrl(const std::string& commit, const std::string& path) const {
  return fmt::format("{}/resolve/{}/{}", Page(), UrlEscape(commit, false), UrlEscape(path, true));
}

absl::StatusOr<Listing> ParseListing(const std::string& json, const std::string& what) {
  rapidjson::Document document;
  document.Parse<rapidjson::kParseIterativeFlag>(json.data(), json.size());
  if (document.HasParseError()) {
    return Failed("{}: the hub's list of files is not JSON: {} at byte {} (is HF_ENDPOINT a hub?)",
                  what, rapidjson::GetParseError_En(document.GetParseError()),
                  document.GetErrorOffset());
  }
  const rapidjson::Value* commit = Member(document, "sha");
  const rapidjson::Value* siblings = Member(document, "siblings");
  if (commit == nullptr || !commit->IsString() || !IsCommit(Text(*commit)) || siblings == nullptr ||
      !siblings->IsArray()) {
    return Failed("{}: the hub's answer has no commit (sha) or no list of files (siblings)", what);
  }
  Listing listing;
  listing.commit = std::string(Text(*commit));
  for (const rapidjson::Value& sibling : siblings->GetArray()) {
    ASSIGN_OR_RETURN(RemoteFile file, ParseSibling(sibling, what));
    listing.files.push_back(std::move(file));
  }
  return listing;
}

absl::StatusOr<Listing> RemoteRepo::List(const std::string& revision) const {
  HttpRequest request;
  request.url =
      fmt::format("{}/api/{}/{}/revision/{}?blobs=true", environment_.endpoint,
                  kind_ == Kind::kModel ? "models" : "datasets", repo_, UrlEscape(revision, false));
  request.token = environment_.token;
  std::string body;
  const absl::StatusOr<HttpResponse> response = PerformPatiently(request, retry_, &body);
  if (!response.ok()) return Annotate(response.status(), Name(revision));
  if (response->status != 200) {
    return HttpError(*response, Name(revision), !environment_.token.empty(), Page());
  }
  return ParseListing(body, Name(revision));
}

absl::StatusOr<FileMetadata> RemoteRepo::Metadata(const std::string& commit,
                                                  const std::string& path) const {
  const std::string what = fmt::format("{}/{}", Name(commit), path);
  HttpRequest request;
  request.url = FileUrl(commit, path);
  request.head = true;
  request.token = environment_.token;
  const absl::StatusOr<HttpResponse> response = PerformPatiently(request, retry_);
  if (!response.ok()) return Annotate(response.status(), what);
  if (response->status != 200 && response->status / 100 != 3) {
    return HttpError(*response, what, !environment_.token.empty(), Page());
  }
  FileMetadata metadata;
  // Large files are answered with a redirect; what is linked to is what counts.
  const std::string linked = response->Header("x-linked-etag");
  metadata.hash = PlainEtag(linked.empty() ? response->Header("etag") : linked);
  if (!IsSafeHash(metadata.hash)) {
    return Failed("{}: the hub gives no usable ETag (is HF_ENDPOINT a hub?)", what);
  }
  metadata.size = ParseSize(response->Header("x-linked-size"));
  if (metadata.size < 0 && response->status == 200) {
    metadata.size = ParseSize(response->Header("content-length"));
  }
  return metadata;
}

}  // namespace orrery::hub
