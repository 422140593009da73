// Text to token ids and back, from a Hugging Face tokenizer.json: byte-level BPE (Qwen, Llama 3,
// GPT-2, SmolLM2, DeepSeek) and SentencePiece-style BPE with byte fallback (Llama 2). Ids are those
// of Hugging Face's tokenizers library (0.23).
//
// Input that is not UTF-8 is encoded as what Python's bytes.decode("utf-8", errors="replace") makes
// of it: U+FFFD for each malformed piece. No input crashes.
//
// Immutable after loading; all methods may be called from any number of threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace orrery::rollout {

// The files of a model folder that a tokenizer reads, as text; all but the first may be empty.
struct TokenizerFiles {
  std::string tokenizer_json;
  std::string tokenizer_config_json;
  std::string special_tokens_map_json;
};

class Tokenizer {
 public:
  // `path` is a model folder or a tokenizer.json itself; the other files are looked for beside it.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromFiles(const TokenizerFiles& files);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Special tokens that stand in the text become their ids. add_special_tokens puts around it what
  // the post-processor says (a BOS, say); add_bos_token and add_eos_token of tokenizer_config.json
  // overrule it.
  std::vector<int32_t> Encode(std::string_view text, bool add_special_tokens = false) const;

  // Ids that do not exist give nothing. skip_special leaves out the tokens marked special. What is
  // no whole character becomes U+FFFD.
  std::string Decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // By the text a token has in tokenizer.json ("Ġhello", "<|im_end|>").
  std::optional<int32_t> TokenId(std::string_view token) const;
  // That text; empty for an id that does not exist. Lives as long as the tokenizer.
  std::string_view TokenText(int32_t id) const;
  bool HasToken(int32_t id) const;
  bool IsSpecial(int32_t id) const;

  // The largest id + 1: what an embedding needs at least.
  int32_t vocab_size() const;
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;
  // What Encode(.., true) puts before and behind the text.
  const std::vector<int32_t>& prefix_ids() const;
  const std::vector<int32_t>& suffix_ids() const;

  // SHA-256 of the text of tokenizer.json.
  const std::string& fingerprint() const;

 private:
  friend class IncrementalDecoder;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

// Text as its tokens come, never half a character: Push gives the text that became final with this
// token, Finish what is left. All pieces together are Decode of all ids.
//
// Belongs to one thread; the tokenizer must outlive it.
class IncrementalDecoder {
 public:
  explicit IncrementalDecoder(const Tokenizer& tokenizer, bool skip_special = false);
  ~IncrementalDecoder();
  IncrementalDecoder(IncrementalDecoder&&) noexcept;
  IncrementalDecoder& operator=(IncrementalDecoder&&) noexcept;

  std::string Push(int32_t id);
  std::string Finish();  // afterwards the decoder is at its beginning again

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace orrery::rollout
