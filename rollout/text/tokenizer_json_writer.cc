#include "rollout/text/tokenizer_json_writer.h"

#include "rapidjson/prettywriter.h"
#include "rapidjson/stringbuffer.h"

namespace orrery::rollout {
namespace {

using Writer = rapidjson::PrettyWriter<rapidjson::StringBuffer>;

void WriteString(std::string_view text, Writer* writer) {
  writer->String(text.data(), static_cast<rapidjson::SizeType>(text.size()));
}

void WriteRaw(const char* key, const std::string& json, Writer* writer) {
  writer->Key(key);
  writer->RawValue(json.data(), json.size(), rapidjson::kObjectType);
}

void WriteSpecialTokens(const TokenizerJson& tokenizer, Writer* writer) {
  writer->Key("added_tokens");
  writer->StartArray();
  for (const auto& [id, text] : tokenizer.special_tokens) {
    writer->StartObject();
    writer->Key("id");
    writer->Int(id);
    writer->Key("content");
    WriteString(text, writer);
    for (const char* key : {"single_word", "lstrip", "rstrip", "normalized"}) {
      writer->Key(key);
      writer->Bool(false);
    }
    writer->Key("special");
    writer->Bool(true);
    writer->EndObject();
  }
  writer->EndArray();
}

void WriteVocabulary(const TokenizerJson& tokenizer, Writer* writer) {
  writer->Key("vocab");
  writer->StartObject();
  for (size_t id = 0; id < tokenizer.vocabulary.size(); ++id) {
    const std::string& text = tokenizer.vocabulary[id];
    writer->Key(text.data(), static_cast<rapidjson::SizeType>(text.size()));
    writer->Int64(static_cast<int64_t>(id));
  }
  writer->EndObject();
}

void WriteMerges(const TokenizerJson& tokenizer, Writer* writer) {
  writer->Key("merges");
  writer->StartArray();
  for (const auto& [left, right] : tokenizer.merges) {
    writer->StartArray();
    writer->SetFormatOptions(rapidjson::kFormatSingleLineArray);  // one line a pair
    WriteString(left, writer);
    WriteString(right, writer);
    writer->EndArray();
    writer->SetFormatOptions(rapidjson::kFormatDefault);
  }
  writer->EndArray();
}

void WriteModel(const TokenizerJson& tokenizer, Writer* writer) {
  writer->Key("model");
  writer->StartObject();
  writer->Key("type");
  writer->String("BPE");
  writer->Key("dropout");
  writer->Null();
  writer->Key("unk_token");
  if (tokenizer.unk_token.empty()) {
    writer->Null();
  } else {
    WriteString(tokenizer.unk_token, writer);
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    writer->Key(key);
    writer->Null();
  }
  writer->Key("fuse_unk");
  writer->Bool(tokenizer.byte_fallback);
  writer->Key("byte_fallback");
  writer->Bool(tokenizer.byte_fallback);
  writer->Key("ignore_merges");
  writer->Bool(false);
  WriteVocabulary(tokenizer, writer);
  WriteMerges(tokenizer, writer);
  writer->EndObject();
}

}  // namespace

std::string WriteTokenizerJson(const TokenizerJson& tokenizer) {
  rapidjson::StringBuffer buffer;
  Writer writer(buffer);
  writer.SetIndent(' ', 1);
  writer.StartObject();
  writer.Key("version");
  writer.String("1.0");
  for (const char* key : {"truncation", "padding"}) {
    writer.Key(key);
    writer.Null();
  }
  WriteSpecialTokens(tokenizer, &writer);
  WriteRaw("normalizer", tokenizer.normalizer, &writer);
  WriteRaw("pre_tokenizer", tokenizer.pre_tokenizer, &writer);
  WriteRaw("post_processor", tokenizer.post_processor, &writer);
  WriteRaw("decoder", tokenizer.decoder, &writer);
  WriteModel(tokenizer, &writer);
  writer.EndObject();
  return std::string(buffer.GetString(), buffer.GetSize()) + "\n";
}

}  // namespace orrery::rollout
