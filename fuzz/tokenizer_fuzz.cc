// tokenizer.json files and texts. The input is split at its first zero byte: a tokenizer.json, then
// a text to encode with it; where the file is no tokenizer, the text goes to a fixed one.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "rollout/text/bpe_trainer.h"
#include "rollout/text/llama2c_tokenizer.h"
#include "rollout/text/tokenizer.h"
#include "rollout/text/utf8.h"

namespace orrery::rollout {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void Exercise(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<int32_t> ids = tokenizer.Encode(text, true);
  Require(tokenizer.Encode(text, true) == ids);  // the second time from the cache
  for (const int32_t id : ids) Require(tokenizer.HasToken(id));
  IncrementalDecoder decoder(tokenizer);
  std::string streamed;
  for (const int32_t id : ids) {
    const std::string piece = decoder.Push(id);
    Require(IsValidUtf8(piece));
    streamed += piece;
  }
  Require(streamed + decoder.Finish() == tokenizer.Decode(ids));
}

// A byte-level tokenizer without normalization gives any valid text back.
const Tokenizer& FixedTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    const std::vector<std::string> texts = {"the cat sat on the mat, the cat sat",
                                            "12 + 34 = 46\n"};
    const std::vector<std::string> special = {"<|im_start|>", "<|im_end|>"};
    auto json = TrainByteLevelBpe(texts, 300, special);
    Require(json.ok());
    auto loaded = Tokenizer::FromFiles({*json, "", ""});
    Require(loaded.ok());
    return *std::move(loaded);
  }();
  return *tokenizer;
}

}  // namespace
}  // namespace orrery::rollout

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace orrery::rollout;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view json = input.substr(0, zero);
  const std::string_view text = zero == std::string_view::npos ? input : input.substr(zero + 1);
  const auto tokenizer = Tokenizer::FromFiles({std::string(json), "", ""});
  Exercise(tokenizer.ok() ? **tokenizer : FixedTokenizer(), text);
  (void)Llama2cTokenizerJson(input);
  return 0;
}
