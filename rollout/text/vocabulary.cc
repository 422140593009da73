#include "rollout/text/vocabulary.h"

#include <cstring>

#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"

namespace orrery::rollout {

uint64_t HashBytes(std::string_view bytes) {
  uint64_t hash = bytes.size() * 0x9e3779b97f4a7c15u;
  while (bytes.size() >= 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data(), 8);
    hash = (hash ^ word) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
    bytes.remove_prefix(8);
  }
  uint64_t tail = 0;
  std::memcpy(&tail, bytes.data(), bytes.size());
  return Mix64(hash ^ tail);
}

absl::Status Vocabulary::Add(std::string_view text, int64_t id) {
  if (id < 0 || id >= kIdLimit) {
    return InvalidInput("id {} of '{}' is not between 0 and {}", id, text, kIdLimit - 1);
  }
  const auto index = static_cast<int32_t>(id);
  if (Has(index)) {
    return InvalidInput("id {} is used twice, by '{}' and '{}'", id, Text(index), text);
  }
  if (texts_.size() + text.size() > UINT32_MAX) return InvalidInput("more than 4 GiB of tokens");
  if (slots_.size() < 2 * static_cast<size_t>(size_ + 1)) Grow();
  const size_t slot = SlotOf(text);
  if (slots_[slot] != kNone) {
    entries_[slots_[slot]] = {};
    --size_;
  }
  if (entries_.size() <= static_cast<size_t>(index)) entries_.resize(index + 1);
  entries_[index] = {static_cast<uint32_t>(texts_.size()), static_cast<uint32_t>(text.size()),
                     true};
  texts_.append(text);
  slots_[slot] = index;
  ++size_;
  return absl::OkStatus();
}

int32_t Vocabulary::Find(std::string_view text) const {
  return slots_.empty() ? kNone : slots_[SlotOf(text)];
}

std::string_view Vocabulary::Text(int32_t id) const {
  if (!Has(id)) return {};
  return std::string_view(texts_).substr(entries_[id].offset, entries_[id].length);
}

bool Vocabulary::Has(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < entries_.size() && entries_[id].used;
}

// The slot that holds `text`, or the free one where it belongs.
size_t Vocabulary::SlotOf(std::string_view text) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = HashBytes(text) & mask;
  while (slots_[slot] != kNone && Text(slots_[slot]) != text) slot = (slot + 1) & mask;
  return slot;
}

void Vocabulary::Grow() {
  slots_.assign(slots_.empty() ? 512 : 2 * slots_.size(), kNone);
  for (int32_t id = 0; id < id_end(); ++id) {
    if (Has(id)) slots_[SlotOf(Text(id))] = id;
  }
}

}  // namespace orrery::rollout
