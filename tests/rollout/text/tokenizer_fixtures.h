// What the tokenizer tests share: finding and reading the fixtures in data/tokenizer.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/base/file.h"
#include "rapidjson/document.h"
#include "rollout/text/tokenizer.h"

namespace orrery::rollout {

inline std::string FixturePath(const std::string& name) {
  return std::string(ORRERY_SOURCE_DIR) + "/tests/rollout/text/data/tokenizer/" + name;
}

// Folder of real inputs, which the project does not contain.
inline std::string RealDataPath(const std::string& name) {
  const char* folder = std::getenv("ORRERY_DATA");
  return (folder != nullptr ? std::string(folder)
                            : std::string(ORRERY_SOURCE_DIR) + "/../shared/data") +
         "/" + name;
}

inline std::string ReadText(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.ok() ? *std::move(text) : std::string();
}

inline rapidjson::Document ReadJsonFile(const std::string& path) {
  rapidjson::Document document;
  document.Parse(ReadText(path));
  EXPECT_FALSE(document.HasParseError()) << path;
  return document;
}

// The fixtures that have golden values.
inline std::vector<std::string> FixtureNames() {
  constexpr std::string_view kEnding = ".golden.json";
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(FixturePath(""))) {
    const std::string name = file.path().filename().string();
    if (!name.ends_with(kEnding)) continue;
    const std::string stem = name.substr(0, name.size() - kEnding.size());
    if (std::filesystem::exists(FixturePath(stem + ".json"))) names.push_back(stem);
  }
  std::sort(names.begin(), names.end());
  return names;
}

inline std::unique_ptr<Tokenizer> LoadFixture(const std::string& name) {
  TokenizerFiles files;
  files.tokenizer_json = ReadText(FixturePath(name + ".json"));
  auto tokenizer = Tokenizer::FromFiles(files);
  EXPECT_TRUE(tokenizer.ok()) << name << ": " << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

inline std::vector<int32_t> IdsOf(const rapidjson::Value& list) {
  std::vector<int32_t> ids;
  for (const auto& id : list.GetArray()) ids.push_back(id.GetInt());
  return ids;
}

inline std::string TextOf(const rapidjson::Value& value) {
  return {value.GetString(), value.GetStringLength()};
}

// The input of an encoding: "text", or "hex" where it is not UTF-8.
inline std::string InputOf(const rapidjson::Value& entry) {
  if (entry.HasMember("text")) return TextOf(entry["text"]);
  const std::string_view hex(entry["hex"].GetString(), entry["hex"].GetStringLength());
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

}  // namespace orrery::rollout
