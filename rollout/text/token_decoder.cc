#include "rollout/text/token_decoder.h"

#include "orchestrator/base/status.h"
#include "rollout/text/decode_stages.h"
#include "rollout/text/normalizer.h"
#include "rollout/text/utf8.h"

namespace orrery::rollout {
namespace {

constexpr int kDeepestSequence = 16;
constexpr int64_t kMostStripped = 1 << 20;

absl::StatusOr<std::string> OneCharacter(const JsonCursor& node) {
  ASSIGN_OR_RETURN(std::string text, node.String());
  const bool one = !text.empty() && static_cast<size_t>(ReadUtf8(text).length) == text.size();
  if (!one) return node.Expected("one character");
  return text;
}

}  // namespace

absl::StatusOr<TokenDecoder> TokenDecoder::FromJson(const JsonCursor& node) {
  TokenDecoder decoder;
  if (node.is_null()) {
    decoder.stages_.push_back(MakeJoinWithSpaces());
  } else {
    RETURN_IF_ERROR(decoder.Add(node, 0));
  }
  return decoder;
}

absl::Status TokenDecoder::Add(const JsonCursor& node, int depth) {
  RETURN_IF_ERROR(node.RequireObject());
  if (depth > kDeepestSequence) return node.Expected("fewer sequences inside one another");
  ASSIGN_OR_RETURN(const int type, node["type"].Choice({"Sequence", "ByteLevel", "ByteFallback",
                                                        "Fuse", "Replace", "Strip", "Metaspace"}));
  switch (type) {
    case 0: {
      ASSIGN_OR_RETURN(const std::vector<JsonCursor> elements, node["decoders"].Elements());
      for (const JsonCursor& element : elements) RETURN_IF_ERROR(Add(element, depth + 1));
      return absl::OkStatus();
    }
    case 1:
    case 2:
      if (fused_) return InvalidInput("{}: not supported behind Fuse", node.path());
      stages_.push_back(type == 1 ? MakeByteLevel() : MakeByteFallback());
      fused_ = type == 1;
      return absl::OkStatus();
    case 3:
      fused_ = true;  // the stream's pieces are one token from here on; nothing else to do
      return absl::OkStatus();
    case 4:
      return AddReplace(node);
    case 5:
      return AddStrip(node);
    default:
      return AddMetaspace(node);
  }
}

absl::Status TokenDecoder::AddReplace(const JsonCursor& node) {
  ASSIGN_OR_RETURN(std::string content, node["content"].String());
  if (!fused_) {
    ASSIGN_OR_RETURN(Regex pattern, RegexFromJson(node["pattern"]));
    stages_.push_back(
        MakeReplace(std::make_shared<const Regex>(std::move(pattern)), std::move(content)));
    return absl::OkStatus();
  }
  if (!node["pattern"]["String"].is_string()) {
    return node["pattern"].Expected(R"({"String": ...}, the only pattern supported behind Fuse)");
  }
  ASSIGN_OR_RETURN(std::string literal, node["pattern"]["String"].String());
  if (literal.empty()) return node["pattern"]["String"].Expected("some text");
  stages_.push_back(MakeFusedReplace(std::move(literal), std::move(content)));
  return absl::OkStatus();
}

absl::Status TokenDecoder::AddStrip(const JsonCursor& node) {
  ASSIGN_OR_RETURN(std::string content, OneCharacter(node["content"]));
  ASSIGN_OR_RETURN(const int64_t start, node["start"].IntBetween(0, kMostStripped));
  ASSIGN_OR_RETURN(const int64_t stop, node["stop"].IntBetween(0, kMostStripped));
  stages_.push_back(fused_ ? MakeFusedStrip(std::move(content), start, stop)
                           : MakeStrip(std::move(content), start, stop));
  return absl::OkStatus();
}

absl::Status TokenDecoder::AddMetaspace(const JsonCursor& node) {
  ASSIGN_OR_RETURN(std::string replacement, OneCharacter(node["replacement"]));
  ASSIGN_OR_RETURN(const bool add_prefix_space, node["add_prefix_space"].BoolOr(true));
  bool drop_first = add_prefix_space;
  if (!node["prepend_scheme"].is_null()) {
    ASSIGN_OR_RETURN(const int scheme, node["prepend_scheme"].Choice({"first", "never", "always"}));
    drop_first = scheme != 1;
  }
  stages_.push_back(MakeMetaspace(std::move(replacement), drop_first, fused_));
  return absl::OkStatus();
}

TokenDecoder::Stream TokenDecoder::Open() const {
  Stream stream;
  for (const auto& stage : stages_) stream.stages_.push_back(stage->Fresh());
  return stream;
}

void TokenDecoder::Stream::Push(std::string_view token, std::string* out) {
  std::vector<std::string> tokens;
  tokens.emplace_back(token);
  Run(0, std::move(tokens), out);
}

void TokenDecoder::Stream::Run(size_t first, std::vector<std::string> tokens, std::string* out) {
  for (size_t stage = first; stage < stages_.size(); ++stage) {
    std::vector<std::string> next;
    for (std::string& token : tokens) stages_[stage]->Push(std::move(token), &next);
    tokens = std::move(next);
  }
  for (const std::string& token : tokens) *out += token;
}

void TokenDecoder::Stream::Finish(std::string* out) {
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    std::vector<std::string> tokens;
    stages_[stage]->Finish(&tokens);
    Run(stage + 1, std::move(tokens), out);
  }
}

}  // namespace orrery::rollout
