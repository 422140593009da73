// A Hugging Face hub of one repository, with faults to order. Large files live on a second server,
// as on the real hub. Thread-safe.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "orchestrator/base/hash.h"
#include "orchestrator/hub/download.h"
#include "tests/orchestrator/hub/test_server.h"

namespace orrery::hub {

// One wrong answer; used up by one request.
struct Fault {
  int status = 0;             // answer this instead
  std::string headers;        // more header lines, each ending in \r\n
  int64_t drop_after = -1;    // break off after so many bytes of the body
  bool ignore_range = false;  // 200 from the beginning
  std::string content_range;  // instead of the right one
  std::string body;           // instead of the right content
  bool replace_body = false;
  std::chrono::milliseconds stall_after_drop{0};  // keep the line open, silent, before breaking it
};

class FakeHub {
 public:
  static constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

  explicit FakeHub(std::string api_path = "/api/models/org/name", std::string page = "/org/name")
      : api_path_(std::move(api_path)),
        page_(std::move(page)),
        storage_([this](const auto& request, auto& connection) { Store(request, connection); }),
        hub_([this](const auto& request, auto& connection) { Serve(request, connection); }) {}
  ~FakeHub() { Stop(); }
  void Stop() {
    hub_.Stop();
    storage_.Stop();
  }

  std::string url() const { return hub_.url(); }

  // What is in the repository. `size_lie` is added to the size the hub announces.
  void Add(const std::string& path, const std::string& content, bool large = false,
           int64_t size_lie = 0) {
    files_[path] = {content, large, size_lie};
  }
  std::string Hash(const std::string& path) const {
    const File& file = files_.at(path);
    return file.large ? Sha256(file.content) : GitBlobSha1(file.content);
  }

  // The next answers to GETs of this file's content are wrong in these ways.
  void FailGets(const std::string& path, std::vector<Fault> faults) {
    get_faults_[path] = {faults.begin(), faults.end()};
  }
  void FailHeads(const std::string& path, std::vector<Fault> faults) {
    head_faults_[path] = {faults.begin(), faults.end()};
  }
  void FailLists(std::vector<Fault> faults) { list_faults_ = {faults.begin(), faults.end()}; }

  // All requests so far, "GET /org/name/resolve/... bytes=5-".
  std::vector<std::string> Requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  size_t NumRequests(const std::string& beginning) const {
    size_t count = 0;
    for (const std::string& request : Requests()) count += request.starts_with(beginning) ? 1 : 0;
    return count;
  }
  std::vector<std::string> hub_tokens;      // Authorization headers the hub has seen
  std::vector<std::string> storage_tokens;  // and the storage; read after Stop()
  std::string etag;                         // instead of the right one, where not empty
  bool send_etag = true;

 private:
  struct File {
    std::string content;
    bool large = false;
    int64_t size_lie = 0;
    int64_t size() const { return static_cast<int64_t>(content.size()) + size_lie; }
  };

  static Fault Next(std::deque<Fault>& faults) {
    if (faults.empty()) return {};
    Fault fault = std::move(faults.front());
    faults.pop_front();
    return fault;
  }

  static void Answer(TestConnection& connection, int status, const std::string& headers,
                     const std::string& body = "") {
    connection.Send(
        fmt::format("HTTP/1.1 {} X\r\nConnection: close\r\n{}Content-Length: {}\r\n\r\n{}", status,
                    headers, body.size(), body));
  }

  void Note(const TestRequest& request, std::vector<std::string>& tokens) {
    std::string line = request.method + " " + request.target;
    if (!request.Header("range").empty()) line += " " + request.Header("range");
    requests_.push_back(line);
    if (!request.Header("authorization").empty()) {
      tokens.push_back(request.Header("authorization"));
    }
  }

  std::string ListJson() const {
    std::string siblings;
    for (const auto& [path, file] : files_) {
      siblings += fmt::format(R"({}{{"rfilename":"{}","size":{}}})", siblings.empty() ? "" : ",",
                              path, file.size());
    }
    return fmt::format(R"({{"id":"org/name","sha":"{}","siblings":[{}]}})", kCommit, siblings);
  }

  void Serve(const TestRequest& request, TestConnection& connection) {
    std::unique_lock lock(mutex_);
    Note(request, hub_tokens);
    if (request.target.starts_with(api_path_ + "/revision/")) {
      const Fault fault = Next(list_faults_);
      if (fault.status != 0) return Answer(connection, fault.status, fault.headers, fault.body);
      return Answer(connection, 200, "", fault.replace_body ? fault.body : ListJson());
    }
    const std::string prefix = page_ + "/resolve/" + kCommit + "/";
    const std::string path =
        request.target.starts_with(prefix) ? request.target.substr(prefix.size()) : "";
    const auto file = files_.find(path);
    if (file == files_.end()) {
      return Answer(connection, 404, "X-Error-Code: EntryNotFound\r\n");
    }
    if (request.method == "HEAD") return Head(path, file->second, connection);
    if (file->second.large) {
      return Answer(connection, 302, fmt::format("Location: {}/blob/{}\r\n", storage_.url(), path));
    }
    Content(request, path, file->second, connection, lock);
  }

  void Head(const std::string& path, const File& file, TestConnection& connection) {
    const Fault fault = Next(head_faults_[path]);
    if (fault.status != 0) return Answer(connection, fault.status, fault.headers);
    const std::string tag = !send_etag ? "" : etag.empty() ? Hash(path) : etag;
    std::string headers = fmt::format("X-Repo-Commit: {}\r\n", kCommit);
    if (file.large) {
      headers += fmt::format(
          "X-Linked-Size: {}\r\nX-Linked-Etag: \"{}\"\r\nEtag: \"other\"\r\n"
          "Location: {}/blob/{}\r\n",
          file.size(), tag, storage_.url(), path);
      return Answer(connection, 302, headers);
    }
    if (!tag.empty()) headers += fmt::format("ETag: W/\"{}\"\r\n", tag);
    connection.Send(
        fmt::format("HTTP/1.1 200 OK\r\nConnection: close\r\n{}Content-Length: {}\r\n\r\n", headers,
                    file.size()));
  }

  void Store(const TestRequest& request, TestConnection& connection) {
    std::unique_lock lock(mutex_);
    Note(request, storage_tokens);
    const std::string path = request.target.substr(std::string("/blob/").size());
    Content(request, path, files_.at(path), connection, lock);
  }

  void Content(const TestRequest& request, const std::string& path, const File& file,
               TestConnection& connection, std::unique_lock<std::mutex>& lock) {
    const Fault fault = Next(get_faults_[path]);
    if (fault.status != 0) return Answer(connection, fault.status, fault.headers, fault.body);
    std::string body = fault.replace_body ? fault.body : file.content;
    const std::string range = request.Header("range");
    const bool partial = !range.empty() && !fault.ignore_range;
    const size_t begin = partial ? std::stoul(range.substr(std::string("bytes=").size())) : 0;
    if (partial && begin >= body.size()) return Answer(connection, 416, "");
    std::string headers = fault.headers;
    if (partial) {
      headers += "Content-Range: " +
                 (fault.content_range.empty()
                      ? fmt::format("bytes {}-{}/{}", begin, body.size() - 1, body.size())
                      : fault.content_range) +
                 "\r\n";
      body.erase(0, begin);
    }
    std::string answer =
        fmt::format("HTTP/1.1 {} X\r\nConnection: close\r\n{}Content-Length: {}\r\n\r\n",
                    partial ? 206 : 200, headers, body.size());
    lock.unlock();
    if (fault.drop_after >= 0) body.resize(static_cast<size_t>(fault.drop_after));
    connection.Send(answer + body);
    std::this_thread::sleep_for(fault.stall_after_drop);
  }

  const std::string api_path_;
  const std::string page_;
  mutable std::mutex mutex_;
  std::map<std::string, File> files_;
  std::map<std::string, std::deque<Fault>> get_faults_;
  std::map<std::string, std::deque<Fault>> head_faults_;
  std::deque<Fault> list_faults_;
  std::vector<std::string> requests_;
  TestServer storage_;  // after what their threads use
  TestServer hub_;
};

}  // namespace orrery::hub
