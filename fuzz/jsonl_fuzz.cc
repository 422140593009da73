// Any bytes as a file of rows, packed or not, under several field mappings: a status or prompts
// that are valid UTF-8.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "orchestrator/base/check.h"
#include "orchestrator/base/utf8.h"
#include "orchestrator/data/compressed_file.h"
#include "orchestrator/data/jsonl.h"

namespace {

using orrery::configs::DataConfig;

std::vector<DataConfig> Configs() {
  DataConfig nested, text;
  nested.prompt_field = "messages";
  nested.answer_field = "a.b.0";
  nested.solution_field = "s";
  nested.prompt_template = "{prompt} {a.b} {{x}} \\boxed{}";
  nested.system_prompt = "s";
  text.chat = false;
  text.answer_field = "";
  DataConfig gsm8k, math;
  gsm8k.preset = "gsm8k";
  math.preset = "math";
  return {DataConfig{}, nested, text, gsm8k, math};
}

void CheckText(const std::string& text) {
  CHECK(orrery::FindInvalidUtf8(text) == std::string_view::npos);
}

void CheckPrompt(const orrery::Prompt& prompt) {
  CHECK(!prompt.messages.empty() || !prompt.text.empty());
  for (const std::string* text : {&prompt.text, &prompt.answer, &prompt.solution}) CheckText(*text);
  for (const auto& message : prompt.messages) CheckText(message.content);
  for (const auto& message : prompt.solution_messages) CheckText(message.content);
  for (const auto& [key, value] : prompt.metadata) {
    CheckText(key);
    CheckText(value);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<DataConfig>* const kConfigs = new std::vector<DataConfig>(Configs());
  constexpr size_t kMaxBytes = 1 << 20;
  const auto text = orrery::data::Unpack(std::string(reinterpret_cast<const char*>(data), size),
                                         "fuzz.jsonl", kMaxBytes);
  if (!text.ok()) return 0;
  for (const DataConfig& config : *kConfigs) {
    std::vector<orrery::Prompt> rows;
    const absl::Status status =
        orrery::data::ParseJsonRows(*text, "fuzz.jsonl", orrery::data::RowMapper(config), 0, rows);
    if (!status.ok()) {
      CHECK(!status.message().empty());
    }
    for (const orrery::Prompt& row : rows) CheckPrompt(row);
  }
  return 0;
}
