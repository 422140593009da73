#include "orchestrator/base/checksum.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>

#include "orchestrator/base/check.h"

namespace orrery {

static_assert(std::endian::native == std::endian::little,
              "hashes of pieces are hashed as they lie");

void Checksum::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

Checksum::Checksum() : piece_(XXH3_createState()), pieces_(XXH3_createState()) {
  CHECK(piece_ != nullptr && pieces_ != nullptr);
  XXH3_64bits_reset(piece_.get());
  XXH3_64bits_reset(pieces_.get());
}

void Checksum::Add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const uint64_t room = kChecksumPieceBytes - num_bytes_ % kChecksumPieceBytes;
    const size_t count = std::min<uint64_t>(room, bytes.size());
    XXH3_64bits_update(piece_.get(), bytes.data(), count);
    num_bytes_ += count;
    bytes = bytes.subspan(count);
    if (count < room) continue;
    const uint64_t piece = XXH3_64bits_digest(piece_.get());
    XXH3_64bits_update(pieces_.get(), &piece, sizeof piece);
    XXH3_64bits_reset(piece_.get());
  }
}

uint64_t Checksum::Value() const {
  if (num_bytes_ % kChecksumPieceBytes == 0) return XXH3_64bits_digest(pieces_.get());
  const uint64_t piece = XXH3_64bits_digest(piece_.get());
  const State all(XXH3_createState());
  CHECK(all != nullptr);
  XXH3_copyState(all.get(), pieces_.get());
  XXH3_64bits_update(all.get(), &piece, sizeof piece);
  return XXH3_64bits_digest(all.get());
}

uint64_t ChecksumOf(std::string_view content) {
  Checksum checksum;
  checksum.Add(std::as_bytes(std::span(content)));
  return checksum.Value();
}

uint64_t ChecksumOfPieces(std::span<const uint64_t> pieces) {
  return XXH3_64bits(pieces.data(), pieces.size_bytes());
}

uint64_t ChecksumOfPiece(std::span<const std::byte> piece) {
  CHECK_LE(piece.size(), kChecksumPieceBytes);
  return XXH3_64bits(piece.data(), piece.size());
}

std::string ChecksumText(uint64_t checksum) { return fmt::format("{:016x}", checksum); }

}  // namespace orrery
