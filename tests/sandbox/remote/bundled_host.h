// A local host, a service in front of it and a client in front of that, as one host: what a test
// sees through it has gone over gRPC twice.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "sandbox/remote/remote_host.h"
#include "sandbox/remote/service.h"

namespace orrery::sandbox {

// Images that a test made up, by names of their own: a client sends no layers.
class TestImages {
 public:
  SandboxOptions Register(SandboxOptions options) {
    const std::lock_guard lock(mutex_);
    std::string name = "test-" + std::to_string(images_.size());
    images_[name] = options.image;
    options.image = {};
    options.image.id = name;
    return options;
  }
  absl::StatusOr<HeldImage> Find(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto found = images_.find(name);
    if (found == images_.end()) return absl::NotFoundError("there is no image " + name);
    return HeldImage{found->second, nullptr};
  }

 private:
  std::mutex mutex_;
  std::map<std::string, PreparedImage> images_;
};

class BundledHost : public SandboxHost {
 public:
  BundledHost(std::unique_ptr<SandboxHost> local, const std::string& address)
      : local_(std::move(local)) {
    auto service = StartSandboxService(
        local_.get(), [this](const std::string& name, bool) { return images_.Find(name); },
        {address, {}, 10'000});
    EXPECT_TRUE(service.ok()) << service.status();
    service_ = *std::move(service);
    RemoteOptions options;
    options.hosts = {address};
    client_ = *MakeRemoteHost(options);
  }

  absl::StatusOr<std::unique_ptr<Sandbox>> Create(const SandboxOptions& options) override {
    return client_->Create(images_.Register(options));
  }
  absl::StatusOr<std::unique_ptr<Sandbox>> Fork(const std::shared_ptr<const Snapshot>& snapshot,
                                                const SandboxOptions& options) override {
    return client_->Fork(snapshot, images_.Register(options));
  }
  HostLoad load() const override { return client_->load(); }

 private:
  // Destroyed from the last on.
  std::unique_ptr<SandboxHost> local_;
  TestImages images_;
  std::unique_ptr<SandboxService> service_;
  std::unique_ptr<SandboxHost> client_;
};

}  // namespace orrery::sandbox
