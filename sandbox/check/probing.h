// A sandbox with the probe in it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "sandbox/sandbox.h"

namespace orrery::sandbox {

class Probing {
 public:
  static absl::StatusOr<Probing> Begin(SandboxHost* host, const SandboxOptions& options);

  Sandbox& sandbox() const { return *sandbox_; }
  // The request that runs a load.
  static ExecRequest Request(const std::string& load, int64_t number, int64_t timeout_ms);
  ExecResult Run(const std::string& load, int64_t number, int64_t timeout_ms) const {
    return sandbox_->Exec(Request(load, number, timeout_ms));
  }
  // Whether the sandbox still serves.
  bool Answers() const;

 private:
  explicit Probing(std::unique_ptr<Sandbox> sandbox) : sandbox_(std::move(sandbox)) {}
  std::unique_ptr<Sandbox> sandbox_;
};

}  // namespace orrery::sandbox
