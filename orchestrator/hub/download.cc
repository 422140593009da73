#include "orchestrator/hub/download.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>

#include "orchestrator/base/check.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"
#include "orchestrator/hub/http.h"
#include "orchestrator/hub/retry.h"

namespace orrery::hub {
namespace {

namespace fs = std::filesystem;

// What has come of a file, open for appending.
class PartialFile {
 public:
  ~PartialFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  absl::Status Open(const std::string& path) {
    path_ = path;
    fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0) return ErrnoStatus("cannot open", path, errno);
    size_ = ::lseek(fd_, 0, SEEK_END);
    if (size_ < 0) return ErrnoStatus("cannot seek in", path, errno);
    return absl::OkStatus();
  }
  int64_t size() const { return size_; }
  absl::Status Append(std::string_view data) {
    while (!data.empty()) {
      const ssize_t written = ::write(fd_, data.data(), data.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return ErrnoStatus("cannot write", path_, errno);
      size_ += written;
      data.remove_prefix(static_cast<size_t>(written));
    }
    return absl::OkStatus();
  }
  absl::Status Clear() {
    size_ = 0;
    if (::ftruncate(fd_, 0) != 0) return ErrnoStatus("cannot empty", path_, errno);
    if (::lseek(fd_, 0, SEEK_SET) != 0) return ErrnoStatus("cannot seek in", path_, errno);
    return absl::OkStatus();
  }
  absl::Status Sync() {
    if (::fsync(fd_) != 0) return ErrnoStatus("cannot sync", path_, errno);
    return absl::OkStatus();
  }

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

// How one try ended.
struct Attempt {
  enum class End {
    kComplete,
    kBroken,  // try again from where it stopped
    kWrong,   // what came cannot be part of the file: try again from the beginning
    kFailed,  // trying again would not help
  };
  End end = End::kFailed;
  absl::Status status;
  std::string retry_after;
};

// A download with its tries.
class Job {
 public:
  Job(const Download& download, const RetryPolicy& retry,
      const std::function<void(int64_t)>& bytes_so_far)
      : download_(download), retry_(retry), bytes_so_far_(bytes_so_far) {}

  absl::Status Run() {
    RETURN_IF_ERROR(file_.Open(download_.incomplete));
    Retrier retrier(retry_);
    int64_t furthest = file_.size();
    bool restarted = false;
    while (true) {
      const Attempt attempt = Try();
      if (attempt.end == Attempt::End::kComplete) return Finish();
      if (attempt.end == Attempt::End::kFailed) return attempt.status;
      if (attempt.end == Attempt::End::kWrong) {
        RETURN_IF_ERROR(file_.Clear());
        if (restarted) return attempt.status;
        restarted = true;
        furthest = 0;
      }
      // A server that starts from the beginning each time makes no progress by the same bytes.
      if (file_.size() > furthest) retrier.Reset();
      furthest = std::max(furthest, file_.size());
      if (!retrier.WaitForNext(attempt.retry_after)) return GivenUp(attempt.status);
    }
  }

 private:
  int64_t size() const { return download_.expected.size; }
  bool size_known() const { return size() >= 0; }

  Attempt Try() {
    if (size_known() && file_.size() > size()) {
      return {Attempt::End::kWrong, WrongSize()};
    }
    if (!(size_known() && file_.size() == size())) {
      Attempt attempt = Fetch();
      if (attempt.end != Attempt::End::kComplete) return attempt;
    }
    return CheckHash();
  }

  Attempt Fetch() {
    HttpRequest request;
    request.url = download_.url;
    request.token = download_.token;
    request.authorization = download_.authorization;
    request.begin = file_.size();
    request.connect_timeout = retry_.connect_timeout;
    request.stall_timeout = retry_.stall_timeout;
    wrong_ = false;
    bool is_content = false;
    request.on_headers = [&](const HttpResponse& response) {
      is_content = response.status == 200 || response.status == 206;
      return Begin(response, request.begin);
    };
    request.on_body = [&](std::string_view data) {
      return is_content ? Take(data) : absl::OkStatus();
    };
    const absl::StatusOr<HttpResponse> response = Perform(request);
    if (!response.ok()) {
      if (wrong_) return {Attempt::End::kWrong, response.status()};
      const bool broken = absl::IsUnavailable(response.status());
      return {broken ? Attempt::End::kBroken : Attempt::End::kFailed, response.status()};
    }
    return Judge(*response);
  }

  // Before the first byte: does the answer continue what is there?
  absl::Status Begin(const HttpResponse& response, int64_t begin) {
    if (response.status == 200) return file_.size() > 0 ? file_.Clear() : absl::OkStatus();
    if (response.status != 206) return absl::OkStatus();
    const std::string range = response.Header("content-range");
    if (range.starts_with(fmt::format("bytes {}-", begin))) return absl::OkStatus();
    wrong_ = true;
    return Failed("{}: asked for bytes from {}, {} sends '{}'", download_.what, begin,
                  download_.server, range);
  }

  absl::Status Take(std::string_view data) {
    if (size_known() && file_.size() + static_cast<int64_t>(data.size()) > size()) {
      wrong_ = true;
      return Failed("{}: {} sends more than the {} bytes it announced", download_.what,
                    download_.server, size());
    }
    RETURN_IF_ERROR(file_.Append(data));
    if (bytes_so_far_) bytes_so_far_(file_.size());
    return absl::OkStatus();
  }

  Attempt Judge(const HttpResponse& response) const {
    if (response.status == 200 || response.status == 206) {
      if (!size_known() || file_.size() == size()) return {Attempt::End::kComplete};
      return {Attempt::End::kBroken, WrongSize()};
    }
    const absl::Status error =
        download_.error
            ? download_.error(response)
            : HttpError(response, download_.what, !download_.token.empty(), download_.page);
    // Nothing is behind what has come: it is all (if the size was not announced), or of another
    // file.
    if (response.status == 416 && file_.size() > 0) {
      if (!size_known() && HashIsKnown()) return {Attempt::End::kComplete};
      return {Attempt::End::kWrong, WrongSize()};
    }
    if (IsPassing(response.status)) {
      return {Attempt::End::kBroken, error, response.Header("retry-after")};
    }
    return {Attempt::End::kFailed, error};
  }

  absl::Status WrongSize() const {
    return Unavailable("{}: has {} bytes, {} sent {}", download_.what, size(), download_.server,
                       file_.size());
  }

  bool HashIsKnown() const {
    const size_t length = download_.expected.hash.size();
    return length == 64 || length == 40;
  }

  Attempt CheckHash() {
    if (absl::Status status = file_.Sync(); !status.ok()) return {Attempt::End::kFailed, status};
    if (!HashIsKnown()) return {Attempt::End::kComplete};
    const std::string& expected = download_.expected.hash;
    const auto mapped = MappedFile::Open(download_.incomplete);
    if (!mapped.ok()) return {Attempt::End::kFailed, mapped.status()};
    const std::string_view content = (*mapped)->view();
    const std::string hash = expected.size() == 64 ? Sha256(content) : GitBlobSha1(content);
    if (hash == expected) return {Attempt::End::kComplete};
    return {Attempt::End::kWrong,
            absl::DataLossError(fmt::format(
                "{}: what came has the hash {} instead of {}: {} or something between changes "
                "the file; try again, or without a proxy",
                download_.what, hash, expected, download_.server))};
  }

  absl::Status Finish() const {
    if (std::rename(download_.incomplete.c_str(), download_.path.c_str()) != 0) {
      return ErrnoStatus("cannot rename onto", download_.path, errno);
    }
    return SyncPath(fs::path(download_.path).parent_path().string());
  }

  absl::Status GivenUp(const absl::Status& last) const {
    const std::string kept =
        file_.size() == 0 ? ""
                          : fmt::format(" ({} bytes are kept and the next call goes on from there)",
                                        file_.size());
    return absl::Status(
        last.code(), fmt::format("{}: given up after {} tries without a new byte{}; the last: {}",
                                 download_.what, retry_.attempts, kept, StatusText(last)));
  }

  const Download& download_;
  const RetryPolicy& retry_;
  const std::function<void(int64_t)>& bytes_so_far_;
  PartialFile file_;
  bool wrong_ = false;
};

}  // namespace

std::string GitBlobSha1(std::string_view content) {
  const std::string header = fmt::format("blob {}", content.size());
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        EVP_MD_CTX_free);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  CHECK(context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha1(), nullptr) == 1 &&
        EVP_DigestUpdate(context.get(), header.c_str(), header.size() + 1) == 1 &&
        EVP_DigestUpdate(context.get(), content.data(), content.size()) == 1 &&
        EVP_DigestFinal_ex(context.get(), digest, &length) == 1);
  std::string text;
  for (unsigned int i = 0; i < length; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

absl::Status DownloadFile(const Download& download, const RetryPolicy& retry,
                          const std::function<void(int64_t)>& bytes_so_far) {
  return Job(download, retry, bytes_so_far).Run();
}

}  // namespace orrery::hub
