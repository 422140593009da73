// A direct-mapped cache from short words to their token ids: natural text repeats its words, and a
// hit costs one hash and one cache line. Words that are longer, or have more ids, are not kept.
//
// Not for use by two threads at a time; the Tokenizer keeps one for each call that is running.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace orrery::rollout {

class WordCache {
 public:
  static constexpr size_t kLongestWord = 30;
  static constexpr size_t kMostIds = 8;

  // Empty where the word is not there (no word has no ids that would be kept).
  std::span<const int32_t> Find(std::string_view word, uint64_t hash) const {
    if (entries_.empty() || word.size() > kLongestWord) return {};
    const Entry& entry = entries_[hash & kMask];
    if (entry.length != word.size() || std::memcmp(entry.word, word.data(), word.size()) != 0) {
      return {};
    }
    return {entry.ids, entry.num_ids};
  }

  void Insert(std::string_view word, uint64_t hash, std::span<const int32_t> ids) {
    if (word.empty() || word.size() > kLongestWord || ids.size() > kMostIds) return;
    if (entries_.empty()) entries_.resize(kMask + 1);
    Entry& entry = entries_[hash & kMask];
    entry.length = static_cast<uint8_t>(word.size());
    entry.num_ids = static_cast<uint8_t>(ids.size());
    std::memcpy(entry.word, word.data(), word.size());
    std::memcpy(entry.ids, ids.data(), ids.size() * sizeof(int32_t));
  }

 private:
  static constexpr size_t kMask = (1 << 14) - 1;  // 1 MiB of entries

  struct alignas(64) Entry {
    uint8_t length = 0;
    uint8_t num_ids = 0;
    char word[kLongestWord];
    int32_t ids[kMostIds];
  };

  std::vector<Entry> entries_;
};

}  // namespace orrery::rollout
