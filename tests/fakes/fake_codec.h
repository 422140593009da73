// A text codec of one character a token: id i is 'a' + i % 26, ids below 3 are special ("<i>").
#pragma once

#include <string>
#include <vector>

#include "orchestrator/interfaces.h"

namespace orrery::fakes {

class FakeCodec : public TextCodec {
 public:
  std::vector<int32_t> Encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (const char c : text) {
      const int32_t offset = c - 'a';
      ids.push_back(offset < 3 ? offset + 26 : offset);
    }
    return ids;
  }
  std::string Decode(std::span<const int32_t> ids, bool skip_special) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id >= 3) text += static_cast<char>('a' + id % 26);
      if (id < 3 && !skip_special) text += "<" + std::to_string(id) + ">";
    }
    return text;
  }
  absl::StatusOr<std::vector<int32_t>> EncodePrompt(const Prompt& prompt) const override {
    return Encode(prompt.text);
  }
};

}  // namespace orrery::fakes
