// What leaves the store, and whether what is in it is right. The callers hold the store's lock:
// exclusive, or for VerifyStore() shared. What is large goes to the trash, so that the lock is held
// for renames alone; the caller empties it afterwards.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sandbox/image/image.h"
#include "sandbox/image/store_files.h"

namespace orrery::sandbox::image {

// What dead processes left: staging, trash, temporary records, lock files.
absl::Status Sweep(const StoreFiles& files);

// Record, names and lease. Precondition error where a sandbox runs it.
absl::Status RemoveImage(const StoreFiles& files, const std::string& id);

struct RemovedLayers {
  int64_t layers = 0, bytes = 0;
};
absl::StatusOr<RemovedLayers> RemoveUnusedLayers(const StoreFiles& files);

absl::StatusOr<GcReport> Collect(const StoreFiles& files, std::optional<int64_t> budget_bytes);

absl::StatusOr<VerifyReport> VerifyStore(const StoreFiles& files);

}  // namespace orrery::sandbox::image
