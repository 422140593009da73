// tokenizer.ggml.* as tokenizer.json and tokenizer_config.json of the Hugging Face tokenizers
// library.
#include <array>
#include <optional>

#include "orchestrator/base/status.h"
#include "trainer/model/file_dtype.h"
#include "trainer/model/import_gguf_parts.h"
#include "trainer/model/import_gguf_vocab.h"
#include "trainer/model/json_writer.h"
#include "trainer/model/utf8.h"

namespace orrery::model {
namespace {

// The pattern strings are facts of the tokenizers, as their tokenizer.json files state them.
constexpr std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepseekPattern =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// How text is cut before byte-level BPE.
struct PreTokenizer {
  std::string_view name;                     // tokenizer.ggml.pre
  std::array<std::string_view, 3> patterns;  // splits, one after the other; empty: none
  bool digits = false;                       // each digit by itself, first
  bool gpt2_pattern = false;                 // the pattern built into ByteLevel, last
  bool nfc = false;
  bool ignore_merges = false;  // a word that is a token is not built by merges
  bool add_bos = false;        // where the file does not say
};

constexpr std::array kPreTokenizers = {
    PreTokenizer{.name = "gpt-2", .patterns = {}, .gpt2_pattern = true},
    PreTokenizer{.name = "smollm", .patterns = {}, .digits = true, .gpt2_pattern = true},
    PreTokenizer{.name = "qwen2", .patterns = {kQwenPattern}, .nfc = true},
    PreTokenizer{.name = "deepseek-r1-qwen", .patterns = {kQwenPattern}, .nfc = true},
    PreTokenizer{
        .name = "llama-bpe", .patterns = {kLlama3Pattern}, .ignore_merges = true, .add_bos = true},
    PreTokenizer{
        .name = "llama3", .patterns = {kLlama3Pattern}, .ignore_merges = true, .add_bos = true},
    PreTokenizer{
        .name = "llama-v3", .patterns = {kLlama3Pattern}, .ignore_merges = true, .add_bos = true},
    PreTokenizer{.name = "deepseek-v3",
                 .patterns = {R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+", kDeepseekPattern},
                 .add_bos = true},
};

struct Special {
  std::string_view key;   // tokenizer.ggml.KEY_token_id
  std::string_view name;  // in tokenizer_config.json
  std::optional<int64_t> id;
};

// Everything the two files say, read and checked.
struct Tokenizer {
  bool sentence_piece = false;
  const PreTokenizer* pre = nullptr;  // byte-level only
  GgufVocab vocab;
  std::vector<Merge> merges;
  bool add_bos = false;
  bool add_eos = false;
  bool add_space_prefix = false;  // SentencePiece only
  std::array<Special, 4> specials = {{{"bos", "bos_token", {}},
                                      {"eos", "eos_token", {}},
                                      {"unknown", "unk_token", {}},
                                      {"padding", "pad_token", {}}}};
  std::string_view chat_template;
  int64_t context_length = 0;

  const std::optional<int64_t>& bos() const { return specials[0].id; }
  const std::optional<int64_t>& eos() const { return specials[1].id; }
  const std::optional<int64_t>& unknown() const { return specials[2].id; }
  std::string_view piece(int64_t id) const { return vocab.pieces[static_cast<size_t>(id)]; }
};

absl::StatusOr<bool> BoolOr(const GgufFile& file, std::string_view key, bool otherwise) {
  if (!file.Has(key)) return otherwise;
  return file.GetBool(key);
}

absl::StatusOr<const PreTokenizer*> ReadPre(const GgufFile& file) {
  constexpr std::string_view kKey = "tokenizer.ggml.pre";
  if (!file.Has(kKey)) {
    return InvalidInput(
        "{}: has no {}, so how its tokenizer cuts text is unknown; supported are {} "
        "(convert the model again with a current converter)",
        file.path(), kKey, KnownPreTokenizers());
  }
  ASSIGN_OR_RETURN(const std::string_view name, file.GetString(kKey));
  for (const PreTokenizer& pre : kPreTokenizers) {
    if (pre.name == name) return &pre;
  }
  return InvalidInput("{}: {} '{}' is not supported; supported are {}", file.path(), kKey,
                      Printable(name), KnownPreTokenizers());
}

absl::Status ReadModel(const GgufFile& file, Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const std::string_view model, file.GetString("tokenizer.ggml.model"));
  if (model != "gpt2" && model != "llama") {
    return InvalidInput(
        "{}: tokenizer.ggml.model '{}' is not supported; supported are gpt2 "
        "(byte-level BPE) and llama (SentencePiece BPE)",
        file.path(), Printable(model));
  }
  tokenizer.sentence_piece = model == "llama";
  ASSIGN_OR_RETURN(tokenizer.vocab, ReadVocab(file));
  if (tokenizer.sentence_piece) {
    ASSIGN_OR_RETURN(tokenizer.merges, MergesFromScores(file, tokenizer.vocab));
    ASSIGN_OR_RETURN(tokenizer.add_space_prefix,
                     BoolOr(file, "tokenizer.ggml.add_space_prefix", true));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(tokenizer.pre, ReadPre(file));
  ASSIGN_OR_RETURN(tokenizer.merges, ReadMerges(file, tokenizer.vocab));
  return absl::OkStatus();
}

absl::Status ReadSpecials(const GgufFile& file, Tokenizer& tokenizer) {
  for (Special& special : tokenizer.specials) {
    const std::string key = fmt::format("tokenizer.ggml.{}_token_id", special.key);
    if (!file.Has(key)) continue;
    ASSIGN_OR_RETURN(const int64_t id, file.GetInt(key));
    if (id < 0 || id >= static_cast<int64_t>(tokenizer.vocab.pieces.size())) {
      return InvalidInput("{}: {} is {}, but there are {} tokens", file.path(), key, id,
                          tokenizer.vocab.pieces.size());
    }
    special.id = id;
  }
  const bool default_bos = tokenizer.sentence_piece || tokenizer.pre->add_bos;
  ASSIGN_OR_RETURN(tokenizer.add_bos, BoolOr(file, "tokenizer.ggml.add_bos_token", default_bos));
  ASSIGN_OR_RETURN(tokenizer.add_eos, BoolOr(file, "tokenizer.ggml.add_eos_token", false));
  if ((tokenizer.add_bos && !tokenizer.bos()) || (tokenizer.add_eos && !tokenizer.eos())) {
    return InvalidInput(
        "{}: the tokenizer adds a begin or end token, but the file names none "
        "(tokenizer.ggml.bos_token_id, eos_token_id)",
        file.path());
  }
  return absl::OkStatus();
}

absl::Status ReadRest(const GgufFile& file, Tokenizer& tokenizer) {
  if (file.Has("tokenizer.chat_template")) {
    ASSIGN_OR_RETURN(tokenizer.chat_template, file.GetString("tokenizer.chat_template"));
    if (!IsUtf8(tokenizer.chat_template)) {
      return InvalidInput("{}: tokenizer.chat_template is not UTF-8", file.path());
    }
  }
  ASSIGN_OR_RETURN(const std::string_view architecture, file.GetString("general.architecture"));
  ASSIGN_OR_RETURN(tokenizer.context_length,
                   file.GetInt(fmt::format("{}.context_length", architecture)));
  return absl::OkStatus();
}

// Added tokens are cut out of the text before anything else happens to it.
bool IsAdded(TokenKind kind) {
  return kind == TokenKind::kControl || kind == TokenKind::kUserDefined ||
         kind == TokenKind::kUnknown;
}

void WriteAddedTokens(JsonWriter& json, const GgufVocab& vocab) {
  json.Array("added_tokens");
  for (size_t i = 0; i < vocab.pieces.size(); ++i) {
    if (!IsAdded(vocab.kinds[i])) continue;
    json.StartObject();
    json.Field("id", static_cast<int64_t>(i));
    json.Field("content", vocab.pieces[i]);
    json.Field("single_word", false);
    json.Field("lstrip", false);
    json.Field("rstrip", false);
    json.Field("normalized", false);
    json.Field("special", vocab.kinds[i] != TokenKind::kUserDefined);
    json.EndObject();
  }
  json.EndArray();
}

void WriteReplace(JsonWriter& json, const char* from, const char* to) {
  json.StartObject();
  json.Field("type", "Replace");
  json.Object("pattern");
  json.Field("String", from);
  json.EndObject();
  json.Field("content", to);
  json.EndObject();
}

constexpr const char* kSpaceMark = "▁";  // U+2581 stands for a space in SentencePiece

void WriteNormalizer(JsonWriter& json, const Tokenizer& tokenizer) {
  if (!tokenizer.sentence_piece) {
    if (!tokenizer.pre->nfc) return json.NullField("normalizer");
    json.Object("normalizer");
    json.Field("type", "NFC");
    return json.EndObject();
  }
  json.Object("normalizer");
  json.Field("type", "Sequence");
  json.Array("normalizers");
  if (tokenizer.add_space_prefix) {
    json.StartObject();
    json.Field("type", "Prepend");
    json.Field("prepend", kSpaceMark);
    json.EndObject();
  }
  WriteReplace(json, " ", kSpaceMark);
  json.EndArray();
  json.EndObject();
}

void WriteSplit(JsonWriter& json, std::string_view pattern) {
  json.StartObject();
  json.Field("type", "Split");
  json.Object("pattern");
  json.Field("Regex", pattern);
  json.EndObject();
  json.Field("behavior", "Isolated");
  json.Field("invert", false);
  json.EndObject();
}

void WriteByteLevelFields(JsonWriter& json, bool add_prefix_space, bool use_regex) {
  json.Field("type", "ByteLevel");
  json.Field("add_prefix_space", add_prefix_space);
  json.Field("trim_offsets", true);
  json.Field("use_regex", use_regex);
}

void WritePreTokenizer(JsonWriter& json, const Tokenizer& tokenizer) {
  if (tokenizer.sentence_piece) return json.NullField("pre_tokenizer");
  const PreTokenizer& pre = *tokenizer.pre;
  json.Object("pre_tokenizer");
  json.Field("type", "Sequence");
  json.Array("pretokenizers");
  if (pre.digits) {
    json.StartObject();
    json.Field("type", "Digits");
    json.Field("individual_digits", true);
    json.EndObject();
  }
  for (const std::string_view pattern : pre.patterns) {
    if (!pattern.empty()) WriteSplit(json, pattern);
  }
  json.StartObject();
  WriteByteLevelFields(json, false, pre.gpt2_pattern);
  json.EndObject();
  json.EndArray();
  json.EndObject();
}

void WriteTemplateItem(JsonWriter& json, const char* kind, std::string_view id, int type_id) {
  json.StartObject();
  json.Object(kind);
  json.Field("id", id);
  json.Field("type_id", type_id);
  json.EndObject();
  json.EndObject();
}

void WriteTemplate(JsonWriter& json, const Tokenizer& tokenizer, std::string_view key,
                   int num_sequences) {
  json.Array(key);
  for (int i = 0; i < num_sequences; ++i) {
    if (tokenizer.add_bos) {
      WriteTemplateItem(json, "SpecialToken", tokenizer.piece(*tokenizer.bos()), i);
    }
    WriteTemplateItem(json, "Sequence", i == 0 ? "A" : "B", i);
    if (tokenizer.add_eos) {
      WriteTemplateItem(json, "SpecialToken", tokenizer.piece(*tokenizer.eos()), i);
    }
  }
  json.EndArray();
}

void WriteTemplateToken(JsonWriter& json, const Tokenizer& tokenizer, int64_t id) {
  json.Object(tokenizer.piece(id));
  json.Field("id", tokenizer.piece(id));
  json.Array("ids");
  json.Value(id);
  json.EndArray();
  json.Array("tokens");
  json.Value(tokenizer.piece(id));
  json.EndArray();
  json.EndObject();
}

void WritePostProcessor(JsonWriter& json, const Tokenizer& tokenizer) {
  if (!tokenizer.add_bos && !tokenizer.add_eos) {
    if (tokenizer.sentence_piece) return json.NullField("post_processor");
    json.Object("post_processor");
    WriteByteLevelFields(json, false, false);
    return json.EndObject();
  }
  json.Object("post_processor");
  json.Field("type", "TemplateProcessing");
  WriteTemplate(json, tokenizer, "single", 1);
  WriteTemplate(json, tokenizer, "pair", 2);
  json.Object("special_tokens");
  if (tokenizer.add_bos) WriteTemplateToken(json, tokenizer, *tokenizer.bos());
  const bool same = tokenizer.add_bos && tokenizer.add_eos && tokenizer.bos() == tokenizer.eos();
  if (tokenizer.add_eos && !same) WriteTemplateToken(json, tokenizer, *tokenizer.eos());
  json.EndObject();
  json.EndObject();
}

void WriteDecoder(JsonWriter& json, const Tokenizer& tokenizer) {
  json.Object("decoder");
  if (!tokenizer.sentence_piece) {
    WriteByteLevelFields(json, true, true);
    return json.EndObject();
  }
  json.Field("type", "Sequence");
  json.Array("decoders");
  WriteReplace(json, kSpaceMark, " ");
  for (const char* type : {"ByteFallback", "Fuse"}) {
    json.StartObject();
    json.Field("type", type);
    json.EndObject();
  }
  if (tokenizer.add_space_prefix) {
    json.StartObject();
    json.Field("type", "Strip");
    json.Field("content", " ");
    json.Field("start", 1);
    json.Field("stop", 0);
    json.EndObject();
  }
  json.EndArray();
  json.EndObject();
}

void WriteModel(JsonWriter& json, const Tokenizer& tokenizer) {
  json.Object("model");
  json.Field("type", "BPE");
  json.NullField("dropout");
  const bool has_unknown = tokenizer.sentence_piece && tokenizer.unknown();
  if (has_unknown) {
    json.Field("unk_token", tokenizer.piece(*tokenizer.unknown()));
  } else {
    json.NullField("unk_token");
  }
  json.NullField("continuing_subword_prefix");
  json.NullField("end_of_word_suffix");
  json.Field("fuse_unk", has_unknown);
  json.Field("byte_fallback", tokenizer.sentence_piece);
  json.Field("ignore_merges", tokenizer.pre != nullptr && tokenizer.pre->ignore_merges);
  json.Object("vocab");
  for (size_t i = 0; i < tokenizer.vocab.pieces.size(); ++i) {
    json.Field(tokenizer.vocab.pieces[i], static_cast<int64_t>(i));
  }
  json.EndObject();
  json.Array("merges");
  for (const auto& [left, right] : tokenizer.merges) {
    json.StartArray();
    json.Value(left);
    json.Value(right);
    json.EndArray();
  }
  json.EndArray();
  json.EndObject();
}

std::string TokenizerJson(const Tokenizer& tokenizer) {
  JsonWriter json(/*pretty=*/true);
  json.StartObject();
  json.Field("version", "1.0");
  json.NullField("truncation");
  json.NullField("padding");
  WriteAddedTokens(json, tokenizer.vocab);
  WriteNormalizer(json, tokenizer);
  WritePreTokenizer(json, tokenizer);
  WritePostProcessor(json, tokenizer);
  WriteDecoder(json, tokenizer);
  WriteModel(json, tokenizer);
  json.EndObject();
  return json.text() + "\n";
}

std::string TokenizerConfigJson(const Tokenizer& tokenizer) {
  JsonWriter json(/*pretty=*/true);
  json.StartObject();
  json.Field("tokenizer_class", "PreTrainedTokenizerFast");
  for (const Special& special : tokenizer.specials) {
    if (special.id) json.Field(special.name, tokenizer.piece(*special.id));
  }
  json.Field("add_bos_token", tokenizer.add_bos);
  json.Field("add_eos_token", tokenizer.add_eos);
  json.Field("clean_up_tokenization_spaces", false);
  json.Field("model_max_length", tokenizer.context_length);
  if (!tokenizer.chat_template.empty()) json.Field("chat_template", tokenizer.chat_template);
  json.EndObject();
  return json.text() + "\n";
}

}  // namespace

std::string KnownPreTokenizers() {
  std::string names;
  for (const PreTokenizer& pre : kPreTokenizers) {
    if (!names.empty()) names += ", ";
    names += pre.name;
  }
  return names;
}

absl::StatusOr<ImportedTokenizer> TokenizerFromGguf(const GgufFile& file) {
  Tokenizer tokenizer;
  RETURN_IF_ERROR(ReadModel(file, tokenizer));
  RETURN_IF_ERROR(ReadSpecials(file, tokenizer));
  RETURN_IF_ERROR(ReadRest(file, tokenizer));
  return ImportedTokenizer{TokenizerJson(tokenizer), TokenizerConfigJson(tokenizer)};
}

}  // namespace orrery::model
