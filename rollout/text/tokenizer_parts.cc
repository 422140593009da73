#include "rollout/text/tokenizer_parts.h"

#include <algorithm>

#include "orchestrator/base/status.h"

namespace orrery::rollout {
namespace {

constexpr int kDeepestSequence = 16;

using MergeList = std::vector<std::pair<std::string, std::string>>;

std::string_view View(const rapidjson::Value& string) {
  return {string.GetString(), string.GetStringLength()};
}

absl::StatusOr<Vocabulary> ParseVocabulary(const JsonCursor& node) {
  RETURN_IF_ERROR(node.RequireObject());
  Vocabulary vocabulary;
  for (const auto& [text, id] : node.value().GetObject()) {
    if (!id.IsInt64()) {
      return JsonCursor(id, fmt::format("{}['{}']", node.path(), View(text)))
          .Expected("a whole number");
    }
    const absl::Status added = vocabulary.Add(View(text), id.GetInt64());
    if (!added.ok()) return Annotate(added, node.path());
  }
  if (vocabulary.size() == 0) return node.Expected("at least one token");
  return vocabulary;
}

// ["a b", ...] or [["a", "b"], ...]: both forms are in use.
absl::StatusOr<MergeList> ParseMerges(const JsonCursor& node) {
  if (!node.value().IsArray()) {
    return node.Expected("the list of merges, without which BPE cannot encode");
  }
  MergeList merges;
  merges.reserve(node.value().Size());
  for (const rapidjson::Value& merge : node.value().GetArray()) {
    if (merge.IsString()) {
      const std::string_view text = View(merge);
      if (text.starts_with("#version")) continue;
      const size_t space = text.find(' ');
      if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos &&
          space > 0 && space + 1 < text.size()) {
        merges.emplace_back(text.substr(0, space), text.substr(space + 1));
        continue;
      }
    } else if (merge.IsArray() && merge.Size() == 2 && merge[0].IsString() && merge[1].IsString() &&
               !View(merge[0]).empty() && !View(merge[1]).empty()) {
      merges.emplace_back(View(merge[0]), View(merge[1]));
      continue;
    }
    return JsonCursor(merge, fmt::format("{}[{}]", node.path(), merges.size()))
        .Expected("two tokens, as \"a b\" or [\"a\", \"b\"]");
  }
  return merges;
}

absl::Status RequireEmptyOrNull(const JsonCursor& node) {
  ASSIGN_OR_RETURN(const std::string text, node.StringOr(""));
  return text.empty() ? absl::OkStatus() : node.Expected("null: nothing else is supported");
}

absl::StatusOr<BpeModel> ParseModel(const JsonCursor& node, bool byte_level) {
  RETURN_IF_ERROR(node.RequireObject());
  // Files older than the key "type" hold BPE too when they have merges.
  if (!node["type"].is_null()) RETURN_IF_ERROR(node["type"].Choice({"BPE"}).status());
  RETURN_IF_ERROR(RequireEmptyOrNull(node["continuing_subword_prefix"]));
  RETURN_IF_ERROR(RequireEmptyOrNull(node["end_of_word_suffix"]));
  const JsonCursor dropout = node["dropout"];
  if (!dropout.is_null() && !(dropout.value().IsNumber() && dropout.value().GetDouble() == 0)) {
    return dropout.Expected("null: dropout would make ids random");
  }
  BpeOptions options;
  options.byte_level = byte_level;
  ASSIGN_OR_RETURN(options.ignore_merges, node["ignore_merges"].BoolOr(false));
  ASSIGN_OR_RETURN(options.byte_fallback, node["byte_fallback"].BoolOr(false));
  if (byte_level && options.byte_fallback) {
    return node["byte_fallback"].Expected("false where the pre-tokenizer has ByteLevel");
  }
  ASSIGN_OR_RETURN(options.fuse_unk, node["fuse_unk"].BoolOr(false));
  ASSIGN_OR_RETURN(options.unk_token, node["unk_token"].StringOr(""));
  ASSIGN_OR_RETURN(Vocabulary vocabulary, ParseVocabulary(node["vocab"]));
  ASSIGN_OR_RETURN(MergeList merges, ParseMerges(node["merges"]));
  absl::StatusOr<BpeModel> model =
      BpeModel::Create(std::move(vocabulary), std::move(merges), std::move(options));
  if (!model.ok()) return Annotate(model.status(), node.path());
  return model;
}

absl::StatusOr<AddedToken> ParseAddedToken(const JsonCursor& node) {
  RETURN_IF_ERROR(node.RequireObject());
  AddedToken token;
  ASSIGN_OR_RETURN(const int64_t id, node["id"].IntBetween(0, Vocabulary::kIdLimit - 1));
  token.id = static_cast<int32_t>(id);
  ASSIGN_OR_RETURN(token.content, node["content"].String());
  ASSIGN_OR_RETURN(token.special, node["special"].Bool());
  ASSIGN_OR_RETURN(token.single_word, node["single_word"].Bool());
  ASSIGN_OR_RETURN(token.lstrip, node["lstrip"].Bool());
  ASSIGN_OR_RETURN(token.rstrip, node["rstrip"].Bool());
  ASSIGN_OR_RETURN(token.normalized, node["normalized"].Bool());
  return token;
}

// Hugging Face numbers added tokens itself (the vocabulary's id, else the next free one) and only
// warns where the file says otherwise. Which of the two a model was trained with is unknown then.
absl::StatusOr<std::vector<AddedToken>> ParseAddedTokens(const JsonCursor& node,
                                                         const Vocabulary& vocabulary) {
  std::vector<AddedToken> tokens;
  if (node.is_null()) return tokens;
  ASSIGN_OR_RETURN(const std::vector<JsonCursor> elements, node.Elements());
  int32_t next_id = vocabulary.size();
  Vocabulary seen;
  for (const JsonCursor& element : elements) {
    ASSIGN_OR_RETURN(AddedToken token, ParseAddedToken(element));
    if (token.content.empty()) continue;
    if (seen.Find(token.content) != Vocabulary::kNone) {
      return InvalidInput("{}: '{}' is added twice", element.path(), token.content);
    }
    const int32_t known = vocabulary.Find(token.content);
    const int32_t expected = known != Vocabulary::kNone ? known : next_id++;
    if (token.id != expected) {
      return InvalidInput("{}.id: '{}' has id {}, but {} by its place in the vocabulary",
                          element.path(), token.content, token.id, expected);
    }
    const absl::Status added = seen.Add(token.content, token.id);
    if (!added.ok()) return Annotate(added, element.path());
    tokens.push_back(std::move(token));
  }
  return tokens;
}

class PostProcessorParser {
 public:
  PostProcessorParser(std::vector<int32_t>* prefix, std::vector<int32_t>* suffix)
      : prefix_(*prefix), suffix_(*suffix) {}

  absl::Status Add(const JsonCursor& node, int depth) {
    RETURN_IF_ERROR(node.RequireObject());
    if (depth > kDeepestSequence) return node.Expected("fewer sequences inside one another");
    ASSIGN_OR_RETURN(const int type,
                     node["type"].Choice({"ByteLevel", "Sequence", "TemplateProcessing"}));
    if (type == 0) return absl::OkStatus();  // changes offsets only
    if (type == 2) return AddTemplate(node);
    ASSIGN_OR_RETURN(const std::vector<JsonCursor> elements, node["processors"].Elements());
    for (const JsonCursor& element : elements) RETURN_IF_ERROR(Add(element, depth + 1));
    return absl::OkStatus();
  }

 private:
  absl::Status AddTemplate(const JsonCursor& node) {
    ASSIGN_OR_RETURN(const std::vector<JsonCursor> pieces, node["single"].Elements());
    std::vector<int32_t> before, after;
    bool seen_text = false;
    for (const JsonCursor& piece : pieces) {
      if (!piece["Sequence"].is_null()) {
        RETURN_IF_ERROR(piece["Sequence"]["id"].Choice({"A"}).status());
        if (seen_text) return piece.Expected("the text only once");
        seen_text = true;
        continue;
      }
      RETURN_IF_ERROR(AppendIds(node, piece, seen_text ? &after : &before));
    }
    if (!seen_text) return node["single"].Expected("a Sequence with id A");
    prefix_.insert(prefix_.begin(), before.begin(), before.end());
    suffix_.insert(suffix_.end(), after.begin(), after.end());
    return absl::OkStatus();
  }

  absl::Status AppendIds(const JsonCursor& node, const JsonCursor& piece,
                         std::vector<int32_t>* ids) {
    ASSIGN_OR_RETURN(const std::string name, piece["SpecialToken"]["id"].String());
    const JsonCursor token = node["special_tokens"][name.c_str()];
    ASSIGN_OR_RETURN(const std::vector<JsonCursor> values, token["ids"].Elements());
    for (const JsonCursor& value : values) {
      ASSIGN_OR_RETURN(const int64_t id, value.IntBetween(0, Vocabulary::kIdLimit - 1));
      ids->push_back(static_cast<int32_t>(id));
    }
    return absl::OkStatus();
  }

  std::vector<int32_t>& prefix_;
  std::vector<int32_t>& suffix_;
};

}  // namespace

absl::StatusOr<TokenizerParts> ParseTokenizerJson(std::string_view text) {
  rapidjson::Document document;
  RETURN_IF_ERROR(ParseJson(text, &document));
  const JsonCursor root(document, "");
  TokenizerParts parts;
  ASSIGN_OR_RETURN(parts.normalizer, Normalizer::FromJson(root["normalizer"]));
  ASSIGN_OR_RETURN(parts.pre_tokenizer, PreTokenizer::FromJson(root["pre_tokenizer"]));
  ASSIGN_OR_RETURN(parts.model, ParseModel(root["model"], parts.pre_tokenizer.byte_level()));
  ASSIGN_OR_RETURN(parts.added_tokens,
                   ParseAddedTokens(root["added_tokens"], parts.model.vocabulary()));
  ASSIGN_OR_RETURN(parts.decoder, TokenDecoder::FromJson(root["decoder"]));
  if (!root["post_processor"].is_null()) {
    PostProcessorParser parser(&parts.prefix_ids, &parts.suffix_ids);
    RETURN_IF_ERROR(parser.Add(root["post_processor"], 0));
  }
  return parts;
}

}  // namespace orrery::rollout
