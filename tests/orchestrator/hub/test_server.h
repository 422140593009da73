// An HTTP/1.1 server on a free port of 127.0.0.1, for tests: one request a connection, answered by
// a function that may answer wrongly or break off. The function runs on the connection's own
// thread.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "orchestrator/base/check.h"

namespace orrery::hub {

struct TestRequest {
  std::string method;
  std::string target;                          // "/a/b?c"
  std::map<std::string, std::string> headers;  // names in lower case

  std::string Header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

// What the function answers with; everything goes out as it is.
class TestConnection {
 public:
  explicit TestConnection(int fd) : fd_(fd) {}
  // A client that has gone away is no error.
  void Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }

 private:
  int fd_;
};

class TestServer {
 public:
  using Handler = std::function<void(const TestRequest&, TestConnection&)>;

  explicit TestServer(Handler handler) : handler_(std::move(handler)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(listener_ >= 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    socklen_t size = sizeof address;
    CHECK(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    CHECK(::listen(listener_, 64) == 0);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { AcceptAll(); });
  }
  ~TestServer() { Stop(); }
  TestServer(const TestServer&) = delete;
  TestServer& operator=(const TestServer&) = delete;

  // From now on connections are refused.
  void Stop() {
    if (stopped_.exchange(true)) return;
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    ::close(listener_);
    for (std::thread& thread : threads_) thread.join();
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

 private:
  void AcceptAll() {
    while (true) {
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0 || stopped_) {
        if (fd >= 0) ::close(fd);
        return;
      }
      threads_.emplace_back([this, fd] {
        Serve(fd);
        ::shutdown(fd, SHUT_RDWR);
        ::close(fd);
      });
    }
  }

  void Serve(int fd) {
    std::string text;
    char buffer[4096];
    while (text.find("\r\n\r\n") == std::string::npos) {
      const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
      if (n <= 0) return;
      text.append(buffer, static_cast<size_t>(n));
    }
    TestConnection connection(fd);
    handler_(Parse(text), connection);
  }

  static TestRequest Parse(const std::string& text) {
    TestRequest request;
    const size_t line_end = text.find("\r\n");
    const size_t first = text.find(' ');
    request.method = text.substr(0, first);
    request.target = text.substr(first + 1, text.find(' ', first + 1) - first - 1);
    for (size_t at = line_end + 2; at < text.size();) {
      const size_t end = text.find("\r\n", at);
      const std::string line = text.substr(at, end - at);
      if (line.empty()) break;
      const size_t colon = line.find(": ");
      std::string name = line.substr(0, colon);
      std::transform(name.begin(), name.end(), name.begin(),
                     [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
      request.headers[name] = line.substr(colon + 2);
      at = end + 2;
    }
    return request;
  }

  Handler handler_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stopped_ = false;
  std::thread acceptor_;
  std::vector<std::thread> threads_;  // of acceptor_ until it is joined
};

}  // namespace orrery::hub
