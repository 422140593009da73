// Rows of prompts, by index, and the order they are visited in.
//
// A dataset is complete and checked when it was opened: Row cannot fail. Constant after that, so
// any thread may call it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "orchestrator/types.h"

namespace orrery::data {

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  // REQUIRES: 0 <= index < size().
  virtual Prompt Row(int64_t index) const = 0;
  // Hash of all that Row may return, hexadecimal: a resumed run checks that its data is the same.
  virtual const std::string& fingerprint() const = 0;
};

// Rows held in memory.
class MemoryDataset : public Dataset {
 public:
  explicit MemoryDataset(std::vector<Prompt> rows);
  int64_t size() const override { return static_cast<int64_t>(rows_.size()); }
  Prompt Row(int64_t index) const override;
  const std::string& fingerprint() const override { return fingerprint_; }

 private:
  const std::vector<Prompt> rows_;
  const std::string fingerprint_;
};

// Position in the run -> row: epoch after epoch, each a full permutation of its own. A pure
// function of (size, seed, shuffle); the permutation of the latest epoch is kept under a lock.
class DatasetOrder {
 public:
  // REQUIRES: size > 0.
  DatasetOrder(int64_t size, uint64_t seed, bool shuffle);
  int64_t Epoch(int64_t position) const { return position / size_; }
  // REQUIRES: position >= 0.
  int64_t Index(int64_t position) const;

 private:
  using Permutation = std::shared_ptr<const std::vector<int64_t>>;
  Permutation OfEpoch(int64_t epoch) const;

  const int64_t size_;
  const uint64_t seed_;
  const bool shuffle_;
  mutable std::mutex mutex_;
  mutable int64_t kept_epoch_ = -1;  // guarded by mutex_
  mutable Permutation kept_;         // guarded by mutex_
};

}  // namespace orrery::data
