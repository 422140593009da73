#include "rollout/text/tokenizer.h"

#include <filesystem>
#include <mutex>

#include "orchestrator/base/file.h"
#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"
#include "rollout/text/tokenizer_config.h"
#include "rollout/text/tokenizer_parts.h"
#include "rollout/text/utf8.h"

namespace orrery::rollout {
namespace {

namespace fs = std::filesystem;

// What one Encode call writes to. Kept from call to call for its word cache.
struct EncodeScratch {
  RegexScratch regex;
  BpeModel::Scratch bpe;
  std::string normalized;
};

// As many scratches as calls ran at once.
class ScratchPool {
 public:
  std::unique_ptr<EncodeScratch> Take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<EncodeScratch>();
    std::unique_ptr<EncodeScratch> scratch = std::move(free_.back());
    free_.pop_back();
    return scratch;
  }
  void Give(std::unique_ptr<EncodeScratch> scratch) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<EncodeScratch>> free_;
};

// A file that may be absent.
absl::StatusOr<std::string> ReadOptionalFile(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return std::string();
  return ReadFile(path.string());
}

}  // namespace

struct Tokenizer::Impl {
  TokenizerParts parts;
  std::string fingerprint;
  std::optional<int32_t> bos_id, eos_id, pad_id;
  int32_t id_end = 0;
  std::vector<int32_t> added_index;  // by id: index into parts.added_tokens, or -1
  // What an added token decodes to: its normalized form where it is matched in that form.
  std::vector<std::string> added_texts;
  std::vector<bool> added_special;
  AddedTokenMatcher raw_matcher;         // on the text as it comes
  AddedTokenMatcher normalized_matcher;  // on the normalized text
  mutable ScratchPool scratches;

  absl::Status Prepare(const TokenizerConfig& config);
  absl::Status PrepareAddedTokens();
  absl::StatusOr<std::optional<int32_t>> IdOf(const char* key,
                                              const std::optional<std::string>& token) const;
  int32_t AddedIndex(int32_t id) const { return id >= 0 && id < id_end ? added_index[id] : -1; }
  bool Has(int32_t id) const { return AddedIndex(id) >= 0 || parts.model.vocabulary().Has(id); }
  std::optional<int32_t> Find(std::string_view token) const;

  void EncodeSegment(std::string_view text, bool at_start, EncodeScratch* scratch,
                     std::vector<int32_t>* ids) const;
  void EncodePiece(std::string_view text, bool at_start, EncodeScratch* scratch,
                   std::vector<int32_t>* ids) const;
};

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path) {
  std::error_code error;
  const bool is_folder = fs::is_directory(path, error);
  const fs::path json = is_folder ? fs::path(path) / "tokenizer.json" : fs::path(path);
  if (!fs::exists(json, error)) {
    return NotFound(
        "{}: no such file; a tokenizer is read from tokenizer.json in the model's folder",
        json.string());
  }
  TokenizerFiles files;
  ASSIGN_OR_RETURN(files.tokenizer_json, ReadFile(json.string()));
  const fs::path folder = json.parent_path();
  ASSIGN_OR_RETURN(files.tokenizer_config_json, ReadOptionalFile(folder / "tokenizer_config.json"));
  ASSIGN_OR_RETURN(files.special_tokens_map_json,
                   ReadOptionalFile(folder / "special_tokens_map.json"));
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = FromFiles(files);
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), folder.string());
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromFiles(const TokenizerFiles& files) {
  ASSIGN_OR_RETURN(
      const TokenizerConfig config,
      ParseTokenizerConfig(files.tokenizer_config_json, files.special_tokens_map_json));
  auto impl = std::make_unique<Impl>();
  absl::StatusOr<TokenizerParts> parts = ParseTokenizerJson(files.tokenizer_json);
  if (!parts.ok()) return Annotate(parts.status(), "tokenizer.json");
  impl->parts = *std::move(parts);
  impl->fingerprint = Sha256(files.tokenizer_json);
  RETURN_IF_ERROR(impl->Prepare(config));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

absl::Status Tokenizer::Impl::Prepare(const TokenizerConfig& config) {
  RETURN_IF_ERROR(PrepareAddedTokens());
  ASSIGN_OR_RETURN(bos_id, IdOf("bos_token", config.bos_token));
  ASSIGN_OR_RETURN(eos_id, IdOf("eos_token", config.eos_token));
  ASSIGN_OR_RETURN(pad_id, IdOf("pad_token", config.pad_token));
  std::vector<int32_t>& prefix = parts.prefix_ids;
  std::vector<int32_t>& suffix = parts.suffix_ids;
  if (config.add_bos_token && bos_id) {
    if (!prefix.empty() && prefix.front() == *bos_id) prefix.erase(prefix.begin());
    if (*config.add_bos_token) prefix.insert(prefix.begin(), *bos_id);
  }
  if (config.add_eos_token && eos_id) {
    if (!suffix.empty() && suffix.back() == *eos_id) suffix.pop_back();
    if (*config.add_eos_token) suffix.push_back(*eos_id);
  }
  for (const std::vector<int32_t>* ids : {&prefix, &suffix}) {
    for (const int32_t id : *ids) {
      if (!Has(id)) {
        return InvalidInput("tokenizer.json: post_processor: there is no token with id {}", id);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::Impl::PrepareAddedTokens() {
  const std::vector<AddedToken>& tokens = parts.added_tokens;
  id_end = parts.model.vocabulary().id_end();
  for (const AddedToken& token : tokens) id_end = std::max(id_end, token.id + 1);
  added_index.assign(id_end, -1);
  RegexScratch scratch;
  std::string buffer;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const AddedToken& token = tokens[i];
    added_index[token.id] = static_cast<int32_t>(i);
    const std::string_view text = token.normalized
                                      ? parts.normalizer.Apply(token.content, &buffer, &scratch)
                                      : std::string_view(token.content);
    added_texts.emplace_back(text);
    // Whether a token is special is asked of the text it decodes to, as Hugging Face does.
    added_special.push_back(token.special && text == token.content);
    AddedTokenMatcher& matcher = token.normalized ? normalized_matcher : raw_matcher;
    if (text.empty() || !matcher.Add(text, token)) {
      return InvalidInput("tokenizer.json: added_tokens: '{}' is '{}' once normalized, which {}",
                          token.content, text,
                          text.empty() ? "matches nothing" : "another token is too");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<int32_t>> Tokenizer::Impl::IdOf(
    const char* key, const std::optional<std::string>& token) const {
  if (!token) return std::optional<int32_t>();
  const std::optional<int32_t> id = Find(*token);
  if (id) return id;
  return InvalidInput("tokenizer_config.json: {}: '{}' is no token of tokenizer.json", key, *token);
}

std::optional<int32_t> Tokenizer::Impl::Find(std::string_view token) const {
  // An added token that the vocabulary has too has the same id there.
  const int32_t id = parts.model.vocabulary().Find(token);
  if (id != Vocabulary::kNone) return id;
  for (const AddedToken& added : parts.added_tokens) {
    if (added.content == token) return added.id;
  }
  return std::nullopt;
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, bool add_special_tokens) const {
  std::string replaced;
  if (!IsValidUtf8(text)) {
    replaced = ReplaceInvalidUtf8(text);
    text = replaced;
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  if (add_special_tokens) ids = impl_->parts.prefix_ids;
  std::unique_ptr<EncodeScratch> scratch = impl_->scratches.Take();
  impl_->raw_matcher.Split(
      text,
      [&](std::string_view segment) {
        impl_->EncodeSegment(segment, segment.data() == text.data(), scratch.get(), &ids);
      },
      [&](int32_t id) { ids.push_back(id); });
  impl_->scratches.Give(std::move(scratch));
  if (add_special_tokens) {
    ids.insert(ids.end(), impl_->parts.suffix_ids.begin(), impl_->parts.suffix_ids.end());
  }
  return ids;
}

void Tokenizer::Impl::EncodeSegment(std::string_view text, bool at_start, EncodeScratch* scratch,
                                    std::vector<int32_t>* ids) const {
  const std::string_view normalized =
      parts.normalizer.Apply(text, &scratch->normalized, &scratch->regex);
  normalized_matcher.Split(
      normalized,
      [&](std::string_view piece) {
        EncodePiece(piece, at_start && piece.data() == normalized.data(), scratch, ids);
      },
      [&](int32_t id) { ids->push_back(id); });
}

void Tokenizer::Impl::EncodePiece(std::string_view text, bool at_start, EncodeScratch* scratch,
                                  std::vector<int32_t>* ids) const {
  parts.pre_tokenizer.Split(text, at_start, &scratch->regex, [&](std::string_view word) {
    parts.model.EncodeWord(word, &scratch->bpe, ids);
  });
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  IncrementalDecoder decoder(*this, skip_special);
  std::string text;
  for (const int32_t id : ids) text += decoder.Push(id);
  return text + decoder.Finish();
}

std::optional<int32_t> Tokenizer::TokenId(std::string_view token) const {
  return impl_->Find(token);
}

std::string_view Tokenizer::TokenText(int32_t id) const {
  const int32_t added = impl_->AddedIndex(id);
  if (added >= 0) return impl_->parts.added_tokens[added].content;
  return impl_->parts.model.vocabulary().Text(id);
}

bool Tokenizer::HasToken(int32_t id) const { return impl_->Has(id); }

bool Tokenizer::IsSpecial(int32_t id) const {
  const int32_t added = impl_->AddedIndex(id);
  return added >= 0 && impl_->added_special[added];
}

int32_t Tokenizer::vocab_size() const { return impl_->id_end; }
std::optional<int32_t> Tokenizer::bos_id() const { return impl_->bos_id; }
std::optional<int32_t> Tokenizer::eos_id() const { return impl_->eos_id; }
std::optional<int32_t> Tokenizer::pad_id() const { return impl_->pad_id; }
const std::vector<int32_t>& Tokenizer::prefix_ids() const { return impl_->parts.prefix_ids; }
const std::vector<int32_t>& Tokenizer::suffix_ids() const { return impl_->parts.suffix_ids; }
const std::string& Tokenizer::fingerprint() const { return impl_->fingerprint; }

struct IncrementalDecoder::Impl {
  const Tokenizer::Impl* tokenizer;
  bool skip_special;
  TokenDecoder::Stream stream;
};

IncrementalDecoder::IncrementalDecoder(const Tokenizer& tokenizer, bool skip_special)
    : impl_(std::make_unique<Impl>(
          Impl{tokenizer.impl_.get(), skip_special, tokenizer.impl_->parts.decoder.Open()})) {}
IncrementalDecoder::~IncrementalDecoder() = default;
IncrementalDecoder::IncrementalDecoder(IncrementalDecoder&&) noexcept = default;
IncrementalDecoder& IncrementalDecoder::operator=(IncrementalDecoder&&) noexcept = default;

std::string IncrementalDecoder::Push(int32_t id) {
  const Tokenizer::Impl& tokenizer = *impl_->tokenizer;
  std::string text;
  const int32_t added = tokenizer.AddedIndex(id);
  if (added >= 0) {
    if (impl_->skip_special && tokenizer.added_special[added]) return text;
    impl_->stream.Push(tokenizer.added_texts[added], &text);
  } else if (tokenizer.parts.model.vocabulary().Has(id)) {
    impl_->stream.Push(tokenizer.parts.model.vocabulary().Text(id), &text);
  }
  return text;
}

std::string IncrementalDecoder::Finish() {
  std::string text;
  impl_->stream.Finish(&text);
  impl_->stream = impl_->tokenizer->parts.decoder.Open();
  return text;
}

}  // namespace orrery::rollout
