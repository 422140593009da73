// GPT-2's alphabet of 256 printable characters, one for each byte (Radford et al. 2019; every
// byte-level BPE vocabulary is written in it): the printable Latin-1 bytes stand for themselves,
// the other 68 take U+0100, U+0101, ... in byte order. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace orrery::rollout {

// The character of a byte, as UTF-8.
std::string_view ByteLevelChar(uint8_t byte);

std::string BytesToByteLevel(std::string_view bytes);

// The bytes that a token of such a vocabulary stands for; nothing where the token has a character
// outside the alphabet (special tokens with spaces, say).
std::optional<std::string> ByteLevelToBytes(std::string_view token);

}  // namespace orrery::rollout
