// The vocabulary of a BPE model: token texts and ids, both ways. Ids may have gaps.
//
// Filled once, then read from any thread. Views that it returns live as long as it does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace orrery::rollout {

class Vocabulary {
 public:
  // Ids at or above this are refused, so that a lying file cannot make us allocate gigabytes.
  static constexpr int32_t kIdLimit = 1 << 24;
  static constexpr int32_t kNone = -1;

  // An error where the id is taken or out of range; a text that is there already gets the new id,
  // as the last of equal JSON keys counts.
  absl::Status Add(std::string_view text, int64_t id);

  int32_t Find(std::string_view text) const;  // kNone where absent
  // Empty where the id is unknown; Has tells.
  std::string_view Text(int32_t id) const;
  bool Has(int32_t id) const;

  int32_t size() const { return size_; }
  int32_t id_end() const { return static_cast<int32_t>(entries_.size()); }  // largest id + 1

 private:
  struct Entry {
    uint32_t offset = 0;
    uint32_t length = 0;
    bool used = false;
  };

  size_t SlotOf(std::string_view text) const;
  void Grow();

  std::string texts_;           // all token texts, one behind the other
  std::vector<Entry> entries_;  // by id
  std::vector<int32_t> slots_;  // open addressing over ids, kNone is free; a power of two long
  int32_t size_ = 0;
};

// A hash of short byte strings, for tables that live no longer than the process.
uint64_t HashBytes(std::string_view bytes);

}  // namespace orrery::rollout
