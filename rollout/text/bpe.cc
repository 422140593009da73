#include "rollout/text/bpe.h"

#include <algorithm>

#include "orchestrator/base/status.h"
#include "rollout/text/byte_level.h"
#include "rollout/text/utf8.h"

namespace orrery::rollout {
namespace {

// Up to here a scan over all pairs for each merge is faster than a heap.
constexpr size_t kLongestScanned = 48;

bool Later(const BpeModel::Scratch::Candidate& a, const BpeModel::Scratch::Candidate& b) {
  return a.order > b.order;
}

}  // namespace

void MergeTable::Reserve(size_t count) {
  size_t size = 16;
  while (size < 2 * count) size *= 2;
  slots_.assign(size, {});
  mask_ = size - 1;
}

void MergeTable::Set(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = Key(left, right);
  size_t slot = Start(key);
  while (slots_[slot].key != kFree && slots_[slot].key != key) slot = (slot + 1) & mask_;
  slots_[slot] = {key, merge};
}

absl::StatusOr<BpeModel> BpeModel::Create(Vocabulary vocabulary,
                                          std::vector<std::pair<std::string, std::string>> merges,
                                          BpeOptions options) {
  BpeModel model;
  model.vocabulary_ = std::make_unique<Vocabulary>(std::move(vocabulary));
  const Vocabulary& known = *model.vocabulary_;
  model.merges_.Reserve(merges.size());
  std::string joined;
  for (size_t i = 0; i < merges.size(); ++i) {
    const auto& [left, right] = merges[i];
    joined = left;
    joined += right;
    const int32_t ids[] = {known.Find(left), known.Find(right), known.Find(joined)};
    for (int part = 0; part < 3; ++part) {
      if (ids[part] != Vocabulary::kNone) continue;
      return InvalidInput("merges[{}]: '{}' is not in the vocabulary", i,
                          part == 0   ? left
                          : part == 1 ? right
                                      : joined);
    }
    model.merges_.Set(ids[0], ids[1], {static_cast<uint32_t>(i), ids[2]});
  }
  for (int byte = 0; byte < 256; ++byte) {
    model.byte_ids_[byte] = options.byte_level
                                ? known.Find(ByteLevelChar(static_cast<uint8_t>(byte)))
                                : known.Find(fmt::format("<0x{:02X}>", byte));
  }
  if (!options.unk_token.empty()) model.unk_id_ = known.Find(options.unk_token);
  // With a token for every byte nothing is ever unknown, and files name an unk_token all the same.
  const bool all_bytes =
      options.byte_level && !std::ranges::count(model.byte_ids_, Vocabulary::kNone);
  if (!options.unk_token.empty() && model.unk_id_ == Vocabulary::kNone && !all_bytes) {
    return InvalidInput("unk_token: '{}' is not in the vocabulary", options.unk_token);
  }
  model.options_ = std::move(options);
  return model;
}

void BpeModel::EncodeWord(std::string_view word, Scratch* scratch,
                          std::vector<int32_t>* out) const {
  const uint64_t hash = word.size() <= WordCache::kLongestWord ? HashBytes(word) : 0;
  const std::span<const int32_t> cached = scratch->cache.Find(word, hash);
  if (!cached.empty()) {
    out->insert(out->end(), cached.begin(), cached.end());
    return;
  }
  std::vector<int32_t>& ids = scratch->ids;
  ids.clear();
  const int32_t whole = options_.ignore_merges ? WholeWord(word) : Vocabulary::kNone;
  if (whole != Vocabulary::kNone) {
    ids.push_back(whole);
  } else {
    InitialIds(word, &ids);
    ids.size() <= kLongestScanned ? MergeShort(scratch) : MergeLong(scratch);
  }
  if (!ids.empty()) scratch->cache.Insert(word, hash, ids);
  out->insert(out->end(), ids.begin(), ids.end());
}

int32_t BpeModel::WholeWord(std::string_view word) const {
  return options_.byte_level ? vocabulary_->Find(BytesToByteLevel(word)) : vocabulary_->Find(word);
}

void BpeModel::InitialIds(std::string_view word, std::vector<int32_t>* ids) const {
  options_.byte_level ? AddBytes(word, ids) : AddCharacters(word, ids);
}

void BpeModel::AddBytes(std::string_view word, std::vector<int32_t>* ids) const {
  bool pending_unk = false;
  for (const char c : word) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    if (id == Vocabulary::kNone) {
      if (unk_id_ == Vocabulary::kNone) continue;
      if (pending_unk && !options_.fuse_unk) ids->push_back(unk_id_);
      pending_unk = true;
      continue;
    }
    if (pending_unk) ids->push_back(unk_id_);
    pending_unk = false;
    ids->push_back(id);
  }
  if (pending_unk) ids->push_back(unk_id_);
}

// An unknown token is held back until a known character follows, while byte fallback does not wait
// for it: so do Hugging Face's tokenizers, and it decides the order of ids.
void BpeModel::AddCharacters(std::string_view word, std::vector<int32_t>* ids) const {
  bool pending_unk = false;
  while (!word.empty()) {
    const std::string_view character = word.substr(0, ReadUtf8(word).length);
    word.remove_prefix(character.size());
    const int32_t id = vocabulary_->Find(character);
    if (id != Vocabulary::kNone) {
      if (pending_unk) ids->push_back(unk_id_);
      pending_unk = false;
      ids->push_back(id);
      continue;
    }
    if (options_.byte_fallback && AddByteFallback(character, ids)) continue;
    if (unk_id_ == Vocabulary::kNone) continue;
    if (pending_unk && !options_.fuse_unk) ids->push_back(unk_id_);
    pending_unk = true;
  }
  if (pending_unk) ids->push_back(unk_id_);
}

// All bytes of the character, or none of them.
bool BpeModel::AddByteFallback(std::string_view character, std::vector<int32_t>* ids) const {
  const auto id_of = [&](char c) { return byte_ids_[static_cast<uint8_t>(c)]; };
  for (const char c : character) {
    if (id_of(c) == Vocabulary::kNone) return false;
  }
  for (const char c : character) ids->push_back(id_of(c));
  return true;
}

void BpeModel::MergeShort(Scratch* scratch) const {
  std::vector<int32_t>& ids = scratch->ids;
  std::vector<Merge>& merges = scratch->merges;  // merges[i] joins ids[i] and ids[i + 1]
  merges.clear();
  for (size_t i = 0; i + 1 < ids.size(); ++i) merges.push_back(merges_.Find(ids[i], ids[i + 1]));
  while (!merges.empty()) {
    const auto best = std::min_element(merges.begin(), merges.end(),
                                       [](Merge a, Merge b) { return a.rank < b.rank; });
    if (best->rank == Merge::kNoRank) return;
    const size_t i = best - merges.begin();
    ids[i] = best->id;
    ids.erase(ids.begin() + i + 1);
    merges.erase(best);
    if (i > 0) merges[i - 1] = merges_.Find(ids[i - 1], ids[i]);
    if (i < merges.size()) merges[i] = merges_.Find(ids[i], ids[i + 1]);
  }
}

void BpeModel::PushCandidate(int32_t position, Scratch* scratch) const {
  const Scratch::Symbol& left = scratch->symbols[position];
  if (left.next < 0) return;
  const Merge merge = merges_.Find(left.id, scratch->symbols[left.next].id);
  if (merge.rank == Merge::kNoRank) return;
  const uint64_t order =
      (static_cast<uint64_t>(merge.rank) << 32) | static_cast<uint32_t>(position);
  scratch->heap.push_back({order, merge.id});
  std::push_heap(scratch->heap.begin(), scratch->heap.end(), Later);
}

// The same merges in the same order from a heap of candidates. A candidate is stale when its pair
// has changed; a changed pair is a longer text, so that its merge gives another token.
void BpeModel::MergeLong(Scratch* scratch) const {
  constexpr int32_t kDead = -1;
  std::vector<Scratch::Symbol>& symbols = scratch->symbols;
  symbols.clear();
  scratch->heap.clear();
  const auto count = static_cast<int32_t>(scratch->ids.size());
  for (int32_t i = 0; i < count; ++i) {
    symbols.push_back({scratch->ids[i], i - 1, i + 1 < count ? i + 1 : -1});
  }
  for (int32_t i = 0; i < count; ++i) PushCandidate(i, scratch);
  while (!scratch->heap.empty()) {
    std::pop_heap(scratch->heap.begin(), scratch->heap.end(), Later);
    const Scratch::Candidate top = scratch->heap.back();
    scratch->heap.pop_back();
    const auto position = static_cast<int32_t>(top.order & 0xFFFFFFFF);
    Scratch::Symbol& left = symbols[position];
    if (left.id == kDead || left.next < 0) continue;
    Scratch::Symbol& right = symbols[left.next];
    const Merge now = merges_.Find(left.id, right.id);
    if (now.rank == Merge::kNoRank || now.id != top.id) continue;
    left.id = top.id;
    left.next = right.next;
    right.id = kDead;
    if (left.next >= 0) symbols[left.next].previous = position;
    if (left.previous >= 0) PushCandidate(left.previous, scratch);
    PushCandidate(position, scratch);
  }
  scratch->ids.clear();
  for (int32_t i = count > 0 ? 0 : -1; i >= 0; i = symbols[i].next) {
    scratch->ids.push_back(symbols[i].id);
  }
}

}  // namespace orrery::rollout
