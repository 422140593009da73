#include "rollout/text/byte_level.h"

#include <array>

#include "rollout/text/utf8.h"

namespace orrery::rollout {
namespace {

constexpr int kAlphabetEnd = 256 + 68;

struct Alphabet {
  std::array<std::string, 256> char_of_byte;
  std::array<int16_t, kAlphabetEnd> byte_of_char;

  Alphabet() {
    byte_of_char.fill(-1);
    char32_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable =
          (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
      const char32_t c = printable ? static_cast<char32_t>(byte) : next++;
      char_of_byte[byte] = EncodeUtf8(c);
      byte_of_char[c] = static_cast<int16_t>(byte);
    }
  }
};

const Alphabet& TheAlphabet() {
  static const Alphabet alphabet;
  return alphabet;
}

}  // namespace

std::string_view ByteLevelChar(uint8_t byte) { return TheAlphabet().char_of_byte[byte]; }

std::string BytesToByteLevel(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) out += ByteLevelChar(static_cast<uint8_t>(byte));
  return out;
}

std::optional<std::string> ByteLevelToBytes(std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const Utf8Char c = ReadUtf8(token);
    if (!c.valid || c.code_point >= kAlphabetEnd) return std::nullopt;
    const int byte = TheAlphabet().byte_of_char[c.code_point];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    token.remove_prefix(c.length);
  }
  return bytes;
}

}  // namespace orrery::rollout
