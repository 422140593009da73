#include "orchestrator/data/dataset.h"

#include <fmt/format.h>

#include <numeric>
#include <string_view>

#include "orchestrator/base/check.h"
#include "orchestrator/base/hash.h"

namespace orrery::data {
namespace {

// With the length before it, so that no two rows run into the same text.
void AppendField(std::string_view text, std::string& out) {
  out += fmt::format("{}:", text.size());
  out += text;
}

void AppendMessages(const std::vector<Message>& messages, std::string& out) {
  out += fmt::format("[{}", messages.size());
  for (const Message& message : messages) {
    AppendField(message.role, out);
    AppendField(message.content, out);
  }
}

std::string Serialize(const Prompt& prompt) {
  std::string out;
  for (const std::string* text : {&prompt.id, &prompt.text, &prompt.answer, &prompt.solution}) {
    AppendField(*text, out);
  }
  AppendMessages(prompt.messages, out);
  AppendMessages(prompt.solution_messages, out);
  for (const auto& [key, value] : prompt.metadata) {
    AppendField(key, out);
    AppendField(value, out);
  }
  return out;
}

std::string Fingerprint(const std::vector<Prompt>& rows) {
  std::string hash = Sha256(fmt::format("{} rows", rows.size()));
  for (const Prompt& row : rows) hash = Sha256(hash + Serialize(row));
  return hash;
}

}  // namespace

MemoryDataset::MemoryDataset(std::vector<Prompt> rows)
    : rows_(std::move(rows)), fingerprint_(Fingerprint(rows_)) {}

Prompt MemoryDataset::Row(int64_t index) const {
  CHECK_GE(index, 0);
  CHECK_LT(index, size());
  return rows_[static_cast<size_t>(index)];
}

DatasetOrder::DatasetOrder(int64_t size, uint64_t seed, bool shuffle)
    : size_(size), seed_(seed), shuffle_(shuffle) {
  CHECK_GT(size, 0);
}

int64_t DatasetOrder::Index(int64_t position) const {
  CHECK_GE(position, 0);
  const int64_t offset = position % size_;
  if (!shuffle_) return offset;
  return (*OfEpoch(Epoch(position)))[static_cast<size_t>(offset)];
}

// Fisher and Yates, from the back.
DatasetOrder::Permutation DatasetOrder::OfEpoch(int64_t epoch) const {
  constexpr uint64_t kPurpose = 0x6f72646572;  // "order": no other use of the seed gets this stream
  const std::lock_guard<std::mutex> lock(mutex_);
  if (kept_epoch_ == epoch) return kept_;
  std::vector<int64_t> rows(static_cast<size_t>(size_));
  std::iota(rows.begin(), rows.end(), 0);
  RandomStream stream(HashSeed({seed_, kPurpose, static_cast<uint64_t>(epoch)}));
  for (size_t i = rows.size() - 1; i > 0; --i) std::swap(rows[i], rows[stream.Below(i + 1)]);
  kept_ = std::make_shared<const std::vector<int64_t>>(std::move(rows));
  kept_epoch_ = epoch;
  return kept_;
}

}  // namespace orrery::data
