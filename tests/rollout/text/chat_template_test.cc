#include "rollout/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "orchestrator/base/file.h"
#include "rollout/text/jinja_json.h"

namespace orrery::rollout {
namespace {

using jinja::Kind;
using jinja::Value;
using ::testing::AllOf;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

constexpr std::time_t kNow = 1735732800;  // as in make_golden_jinja.py
const char kTemplates[] = ORRERY_SOURCE_DIR "/tests/rollout/text/data/templates";

std::string Read(const std::string& path) {
  const auto text = ReadFile(path);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
}

Value Json(const std::string& path) {
  auto value = jinja::FromJson(Read(path), path);
  EXPECT_TRUE(value.ok()) << value.status();
  return value.ok() ? *value : Value();
}

std::string Dump(const Value& value) {
  jinja::Budget budget{jinja::Limits{}};
  return jinja::ToJson(value, {}, budget).value_or("broken");
}

RenderOptions OptionsOf(const jinja::Map& one) {
  RenderOptions options;
  options.now = kNow;
  options.add_generation_prompt = one.Find("add_generation_prompt")->boolean();
  const Value& tools = *one.Find("tools");
  if (!tools.Is(Kind::kNone)) options.tools_json = Dump(tools);
  for (const auto& [name, value] : one.Find("variables")->map().entries()) {
    options.variables.emplace(name.text(), value);
  }
  return options;
}

// Every conversation of conversations.json against what jinja2 rendered; the number compared.
size_t CompareWithGolden(const fs::path& path) {
  const Value conversations = Json(std::string(kTemplates) + "/conversations.json");
  std::map<std::string, std::string> tokens;
  for (const auto& [name, value] : conversations.map().Find("tokens")->map().entries()) {
    tokens[name.text()] = value.text();
  }
  const auto parsed = ChatTemplate::Parse(Read(path), tokens, path.filename());
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  const auto& cases = conversations.map().Find("cases")->list().items;
  const Value golden = Json(fs::path(path).replace_extension(".golden.json"));
  EXPECT_EQ(golden.list().items.size(), cases.size());
  if (!parsed.ok() || golden.list().items.size() != cases.size()) return 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const jinja::Map& one = cases[i].map();
    const auto rendered = parsed->RenderJson(Dump(*one.Find("messages")), OptionsOf(one));
    const jinja::Map& wanted = golden.list().items[i].map();
    if (const Value* expected = wanted.Find("expected")) {
      EXPECT_TRUE(rendered.ok()) << path << " " << Dump(cases[i]) << "\n" << rendered.status();
      EXPECT_EQ(rendered.value_or(""), expected->text()) << path << " " << Dump(cases[i]);
    } else {
      EXPECT_FALSE(rendered.ok()) << path << " " << Dump(cases[i]) << "\nrenders '" << *rendered
                                  << "' where jinja2 says " << wanted.Find("error")->text();
    }
  }
  return cases.size();
}

std::vector<fs::path> TemplatesIn(const std::string& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".jinja") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

TEST(ChatTemplate, RendersOwnTemplatesAsJinja2) {
  const auto paths = TemplatesIn(kTemplates);
  ASSERT_EQ(paths.size(), 5u);
  for (const auto& path : paths) EXPECT_GE(CompareWithGolden(path), 40u) << path;
}

// Templates of real checkpoints are other people's texts and not kept here: see
// make_golden_jinja.py.
TEST(ChatTemplate, RendersRealTemplatesAsJinja2) {
  const char* folder = std::getenv("ORRERY_CHAT_TEMPLATES");
  if (folder == nullptr) GTEST_SKIP() << "ORRERY_CHAT_TEMPLATES names no folder of real templates";
  const auto paths = TemplatesIn(folder);
  ASSERT_FALSE(paths.empty()) << folder << " holds no *.jinja";
  for (const auto& path : paths) EXPECT_GE(CompareWithGolden(path), 40u) << path;
}

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / fs::path("orrery_chat_template_XXXXXX")) {
    std::string name = path_;
    path_ = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  std::string path() const { return path_; }
  void Write(const std::string& name, std::string_view text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
  }

 private:
  fs::path path_;
};

const std::vector<Message> kHello = {{"user", "Hello"}};

std::string LoadAndRender(const Folder& folder, const RenderOptions& options = {}) {
  const auto loaded = ChatTemplate::Load(folder.path());
  if (!loaded.ok()) return StatusText(loaded.status());
  const auto rendered = loaded->Render(kHello, options);
  return rendered.ok() ? *rendered : StatusText(rendered.status());
}

TEST(ChatTemplateLoad, FromTokenizerConfig) {
  const Folder folder;
  folder.Write(
      "tokenizer_config.json",
      R"({"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "pad_token": null,
                   "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token is defined }}"})");
  EXPECT_EQ(LoadAndRender(folder), "<s>Hello</s>False");
}

TEST(ChatTemplateLoad, FileGoesBeforeConfigAndTokensComeFromEither) {
  const Folder folder;
  folder.Write("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": "config"})");
  folder.Write(
      "special_tokens_map.json",
      R"({"bos_token": "<other>", "eos_token": {"content": "</s>"}, "additional_special_tokens": ["<a>", {"content": "<b>"}]})");
  folder.Write("chat_template.jinja",
               "{{ bos_token }}file{{ eos_token }}{{ additional_special_tokens | join }}\n");
  EXPECT_EQ(LoadAndRender(folder), "<s>file</s><a><b>");
}

TEST(ChatTemplateLoad, ListOfTemplatesChoosesByTools) {
  const Folder folder;
  folder.Write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools | length }} tools"}]})");
  EXPECT_EQ(LoadAndRender(folder), "plain");
  EXPECT_EQ(LoadAndRender(folder, {.tools_json = "[{}, {}]"}), "2 tools");
  folder.Write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "x"}]})");
  EXPECT_THAT(LoadAndRender(folder), HasSubstr("none named 'default'"));
}

TEST(ChatTemplateLoad, AdditionalToolTemplate) {
  const Folder folder;
  folder.Write("chat_template.jinja", "plain");
  folder.Write("additional_chat_templates/tool_use.jinja", "tools");
  EXPECT_EQ(LoadAndRender(folder), "plain");
  EXPECT_EQ(LoadAndRender(folder, {.tools_json = "[]"}), "tools");
}

TEST(ChatTemplateLoad, SaysWhatIsMissingOrBroken) {
  const Folder folder;
  EXPECT_EQ(ChatTemplate::Load(folder.path()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(LoadAndRender(folder), HasSubstr("no chat template"));
  folder.Write("tokenizer_config.json", "{\"chat_template\": null}");
  EXPECT_THAT(LoadAndRender(folder), HasSubstr("no chat template"));
  folder.Write("tokenizer_config.json", "{\"chat_template\": ");
  EXPECT_THAT(LoadAndRender(folder), HasSubstr("tokenizer_config.json: line 1, column 19"));
  folder.Write("tokenizer_config.json", "[]");
  EXPECT_THAT(LoadAndRender(folder), HasSubstr("expected a JSON object"));
  folder.Write("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_THAT(LoadAndRender(folder), HasSubstr("expected a text or a list of {name, template}"));
  folder.Write("tokenizer_config.json", R"({"chat_template": [{"name": "default"}]})");
  EXPECT_THAT(LoadAndRender(folder), HasSubstr("the texts \"name\" and \"template\""));
  folder.Write("tokenizer_config.json", R"({"bos_token": 7, "chat_template": "x"})");
  EXPECT_THAT(LoadAndRender(folder), HasSubstr("bos_token: expected a text"));
  folder.Write("tokenizer_config.json", R"({"chat_template": "a\n{% if %}"})");
  EXPECT_THAT(LoadAndRender(folder), HasSubstr("chat_template:2:7: expected an expression"));
  folder.Write("chat_template.jinja", "{{ messages[0].content.nosuch() }}");
  EXPECT_THAT(LoadAndRender(folder),
              HasSubstr("chat_template.jinja:1:24: 'str object' has no attribute"));
}

ChatTemplate Parsed(std::string_view source) {
  auto parsed = ChatTemplate::Parse(source);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *std::move(parsed);
}

ChatTemplate FromFile(const std::string& name) {
  return Parsed(Read(std::string(kTemplates) + "/" + name));
}

TEST(ChatTemplateRender, ToolsAndDocumentsAreNoneWhereThereAreNone) {
  EXPECT_EQ(*Parsed("{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}")
                 .Render(kHello),
            "TrueTrueFalse");
}

TEST(ChatTemplateRender, BothFormsAgree) {
  const ChatTemplate thinking = FromFile("thinking.jinja");
  EXPECT_EQ(*thinking.Render(kHello),
            *thinking.RenderJson(R"([{"role": "user", "content": "Hello"}])"));
}

TEST(ChatTemplateRender, RefusesWhatIsNoConversation) {
  const ChatTemplate any = Parsed("x");
  EXPECT_THAT(StatusText(any.RenderJson("{}").status()),
              HasSubstr("expected a JSON array of messages"));
  EXPECT_THAT(StatusText(any.RenderJson("[{}, 1]").status()),
              HasSubstr("messages[1]: expected an object"));
  EXPECT_THAT(StatusText(any.RenderJson("[").status()), HasSubstr("messages: line 1, column 2"));
  EXPECT_THAT(StatusText(any.Render(kHello, {.tools_json = "{}"}).status()),
              HasSubstr("array of tool"));
  EXPECT_THAT(StatusText(any.Render(kHello, {.tools_json = "nope"}).status()),
              HasSubstr("tools: line 1"));
}

const std::vector<Message> kAsked = {{"system", "Be kind."}, {"user", "2+2?"}, {"assistant", "4"}};
const std::vector<Message> kNext = {{"user", "3+3?"}};

TEST(ChatTemplateDelta, IsTheSuffixThatNewMessagesAppend) {
  const ChatTemplate turns = FromFile("turns.jinja");
  EXPECT_EQ(*turns.RenderDelta(kAsked, kNext, {.add_generation_prompt = true}),
            "[user]3+3?[end]\n[assistant]");
  EXPECT_EQ(*turns.RenderDelta(kAsked, {}), "");
  EXPECT_EQ(*turns.Render(kAsked) + *turns.RenderDelta(kAsked, kNext),
            *turns.Render(std::vector<Message>{kAsked[0], kAsked[1], kAsked[2], kNext[0]}));
}

TEST(ChatTemplateDelta, RefusesWhereEarlierTurnsChange) {
  const ChatTemplate thinking = FromFile("thinking.jinja");
  std::vector<Message> asked = kAsked;
  asked[2].content = "<think>\nEasy.\n</think>\n\n4";
  const auto delta = thinking.RenderDelta(asked, kNext);
  ASSERT_FALSE(delta.ok());
  EXPECT_THAT(
      StatusText(delta.status()),
      AllOf(HasSubstr("'<think>Easy."), HasSubstr("becomes '4<end>"), HasSubstr("RenderNextTurn")));
}

TEST(ChatTemplateNextTurn, StartsBehindTheStopText) {
  const ChatTemplate thinking = FromFile("thinking.jinja");
  std::vector<Message> asked = kAsked;
  asked[2].content = "<think>\nEasy.\n</think>\n\n4";
  const RenderOptions prompt{.add_generation_prompt = true};
  EXPECT_EQ(*thinking.RenderNextTurn(asked, kNext, "<end>", prompt),
            "\n<user>3+3?<end>\n<assistant>");
  asked[2].content = "OrrerySampledTurn";
  EXPECT_EQ(*thinking.RenderNextTurn(asked, {{{"tool", "OrrerySampledTurn"}}}, "<end>", prompt),
            "\n<result>OrrerySampledTurn</result><end>\n<assistant>");
}

TEST(ChatTemplateNextTurn, RefusesWhatItCannotPlace) {
  const ChatTemplate thinking = FromFile("thinking.jinja");
  const auto error = [&](const std::vector<Message>& previous, std::string_view stop) {
    return StatusText(thinking.RenderNextTurn(previous, kNext, stop).status());
  };
  EXPECT_THAT(error(kHello, "<end>"), HasSubstr("end with an assistant turn"));
  EXPECT_THAT(error({}, "<end>"), HasSubstr("end with an assistant turn"));
  EXPECT_THAT(error(kAsked, "<nosuch>"), HasSubstr("prints no '<nosuch>'"));
  EXPECT_THAT(error(kAsked, ""), HasSubstr("stop text is empty"));
  const ChatTemplate twice =
      Parsed("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}");
  EXPECT_THAT(StatusText(twice.RenderNextTurn(kAsked, kNext, "x").status()),
              HasSubstr("exactly once"));
}

}  // namespace
}  // namespace orrery::rollout
