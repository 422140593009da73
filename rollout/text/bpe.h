// Byte pair encoding of one word: its characters (or bytes) become tokens, then the adjacent pair
// of the lowest rank is merged, leftmost first, until no pair has a rank. Same ids as the BPE model
// of Hugging Face's tokenizers, including ignore_merges, unknown tokens and byte fallback.
//
// Immutable; any thread may call, each with its own scratch.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "rollout/text/vocabulary.h"
#include "rollout/text/word_cache.h"

namespace orrery::rollout {

struct BpeOptions {
  bool byte_level = false;  // words are bytes, the vocabulary is in GPT-2's alphabet
  bool ignore_merges = false;
  bool byte_fallback = false;  // characters not in the vocabulary become <0xNN> tokens
  bool fuse_unk = false;
  std::string unk_token;  // empty: characters without a token vanish
};

// What a merge gives; rank kNoRank where the pair has none.
struct Merge {
  static constexpr uint32_t kNoRank = UINT32_MAX;
  uint32_t rank = kNoRank;
  int32_t id = 0;
};

// Ranks by pair of ids: open addressing, 16 bytes a slot.
class MergeTable {
 public:
  void Reserve(size_t count);
  void Set(int32_t left, int32_t right, Merge merge);  // the last one counts
  Merge Find(int32_t left, int32_t right) const {
    if (slots_.empty()) return {};
    const uint64_t key = Key(left, right);
    for (size_t slot = Start(key);; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return slots_[slot].merge;
      if (slots_[slot].key == kFree) return {};
    }
  }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};
  struct Slot {
    uint64_t key = kFree;
    Merge merge;
  };

  static uint64_t Key(int32_t left, int32_t right) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) |
           static_cast<uint32_t>(right);
  }
  size_t Start(uint64_t key) const { return ((key * 0x9e3779b97f4a7c15u) >> 20) & mask_; }

  std::vector<Slot> slots_;
  size_t mask_ = 0;
};

class BpeModel {
 public:
  // The memory that EncodeWord works in, kept from word to word.
  struct Scratch {
    struct Symbol {
      int32_t id;
      int32_t previous;  // position of the neighbour, -1 at the end
      int32_t next;
    };
    struct Candidate {
      uint64_t order;  // rank, then position
      int32_t id;
    };
    std::vector<int32_t> ids;
    std::vector<Merge> merges;
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
    WordCache cache;
  };

  // Errors name merges[i] and the token that is missing.
  static absl::StatusOr<BpeModel> Create(Vocabulary vocabulary,
                                         std::vector<std::pair<std::string, std::string>> merges,
                                         BpeOptions options);

  const Vocabulary& vocabulary() const { return *vocabulary_; }

  // Appends the ids of `word`, which is not empty.
  void EncodeWord(std::string_view word, Scratch* scratch, std::vector<int32_t>* out) const;

 private:
  void InitialIds(std::string_view word, std::vector<int32_t>* ids) const;
  void AddBytes(std::string_view word, std::vector<int32_t>* ids) const;
  void AddCharacters(std::string_view word, std::vector<int32_t>* ids) const;
  bool AddByteFallback(std::string_view character, std::vector<int32_t>* ids) const;
  void MergeShort(Scratch* scratch) const;
  void MergeLong(Scratch* scratch) const;
  void PushCandidate(int32_t position, Scratch* scratch) const;
  int32_t WholeWord(std::string_view word) const;

  // Behind a pointer, so that views into it survive a move of the model.
  std::unique_ptr<Vocabulary> vocabulary_;
  MergeTable merges_;
  BpeOptions options_;
  int32_t unk_id_ = Vocabulary::kNone;
  std::array<int32_t, 256> byte_ids_{};  // of the byte's character, or of its <0xNN>
};

}  // namespace orrery::rollout
