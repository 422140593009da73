#include "orchestrator/data/jsonl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace orrery::data {
namespace {

using configs::DataConfig;
using testing::HasSubstr;
using testing::StartsWith;

std::vector<Prompt> Rows(std::string_view text, const DataConfig& config = {}, int64_t limit = 0) {
  std::vector<Prompt> rows;
  const absl::Status status = ParseJsonRows(text, "f.jsonl", RowMapper(config), limit, rows);
  EXPECT_TRUE(status.ok()) << status;
  return rows;
}

std::string ErrorOf(std::string_view text, const DataConfig& config = {}) {
  std::vector<Prompt> rows;
  const absl::Status status = ParseJsonRows(text, "f.jsonl", RowMapper(config), 0, rows);
  return status.ok() ? "no error" : std::string(status.message());
}

TEST(JsonRowsTest, LinesBlanksCrlfAndByteOrderMark) {
  const auto rows = Rows(
      "\xef\xbb\xbf{\"prompt\": \"a\", \"answer\": 1}\r\n\r\n   \n"
      "{\"prompt\": \"b\\u00e9\\n\", \"answer\": \"2\"}");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].id, "train/0");
  EXPECT_EQ(rows[0].messages.size(), 1u);
  EXPECT_EQ(rows[0].messages[0].role, "user");
  EXPECT_EQ(rows[0].messages[0].content, "a");
  EXPECT_EQ(rows[1].id, "train/1");
  EXPECT_EQ(rows[1].messages[0].content, "b\xc3\xa9\n");
  EXPECT_EQ(rows[1].answer, "2");
}

TEST(JsonRowsTest, AListOfObjectsToo) {
  const auto rows = Rows(
      "\n [ {\"prompt\": \"a\", \"answer\": 1},\n{\"prompt\": \"b\", "
      "\"answer\": 2}]\n");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].answer, "2");
  EXPECT_TRUE(Rows("[]").empty());
  EXPECT_THAT(ErrorOf("[{\"prompt\": \"a\", \"answer\": 1}, {}]"), StartsWith("f.jsonl: row 2: "));
  EXPECT_THAT(ErrorOf("[\n{\"prompt\": \"a\",\n]"), StartsWith("f.jsonl:3: column 1: not JSON"));
}

TEST(JsonRowsTest, LimitStopsReading) {
  EXPECT_EQ(Rows("{\"prompt\": \"a\", \"answer\": 1}\nbroken", {}, 1).size(), 1u);
}

TEST(JsonRowsTest, NumbersAndTruthValuesBecomeText) {
  const auto answer = [](const std::string& json) {
    return Rows("{\"prompt\": \"a\", \"answer\": " + json + "}")[0].answer;
  };
  EXPECT_EQ(answer("-7"), "-7");
  EXPECT_EQ(answer("18446744073709551615"), "18446744073709551615");
  EXPECT_EQ(answer("18.0"), "18");
  EXPECT_EQ(answer("0.1"), "0.1");
  EXPECT_EQ(answer("1.5e-7"), "1.5e-07");
  EXPECT_EQ(answer("true"), "true");
  EXPECT_EQ(answer("\"\""), "");
}

TEST(JsonRowsTest, FieldsAreMappedByNameAndPath) {
  DataConfig config;
  config.prompt_field = "extra.question";
  config.answer_field = "reward_model.ground_truth";
  config.solution_field = "steps.1";
  config.split = "test";
  const auto rows = Rows(
      "{\"extra\": {\"question\": \"q\", \"n\": 3}, \"reward_model\": {\"ground_truth\": 5}, "
      "\"steps\": [\"x\", \"y\"], \"level\": \"hard\", \"none\": null, \"list\": [1, \"b\"]}",
      config);
  EXPECT_EQ(rows[0].id, "test/0");
  EXPECT_EQ(rows[0].messages[0].content, "q");
  EXPECT_EQ(rows[0].answer, "5");
  EXPECT_EQ(rows[0].solution, "y");
  EXPECT_EQ(rows[0].metadata.at("level"), "hard");
  EXPECT_EQ(rows[0].metadata.at("list"), "[1,\"b\"]");
  EXPECT_EQ(rows[0].metadata.count("none"), 0u);
  // A name with a dot in it goes before a path.
  config.prompt_field = "a.b";
  config.answer_field = config.solution_field = "";
  EXPECT_EQ(Rows("{\"a.b\": \"x\", \"a\": {\"b\": \"y\"}}", config)[0].messages[0].content, "x");
}

TEST(JsonRowsTest, TemplatesReplaceFieldsAndKeepOtherBraces) {
  DataConfig config;
  config.prompt_template =
      "{prompt} ({level}, {meta.n}) Write \\boxed{} or {1} or {{prompt}} {x y}";
  config.system_prompt = "Be brief.";
  const auto rows =
      Rows("{\"prompt\": \"{level}?\", \"answer\": 1, \"level\": \"hard\", \"meta\": {\"n\": 2}}",
           config);
  ASSERT_EQ(rows[0].messages.size(), 2u);
  EXPECT_EQ(rows[0].messages[0].role, "system");
  EXPECT_EQ(rows[0].messages[0].content, "Be brief.");
  EXPECT_EQ(rows[0].messages[1].content,
            "{level}? (hard, 2) Write \\boxed{} or {1} or {prompt} {x y}");
  EXPECT_THAT(ErrorOf("{\"prompt\": \"a\", \"answer\": 1}", config),
              HasSubstr("f.jsonl:1: data.prompt_template asks for {level}: there is no field "
                        "'level'; the row has: prompt, answer; write {{level}} where {level} "
                        "itself is meant"));
}

TEST(JsonRowsTest, WithoutChatThePromptIsText) {
  DataConfig config;
  config.chat = false;
  config.prompt_template = "Q: {prompt}\nA:";
  const auto rows = Rows("{\"prompt\": \"a\", \"answer\": 1}", config);
  EXPECT_EQ(rows[0].text, "Q: a\nA:");
  EXPECT_TRUE(rows[0].messages.empty());
}

TEST(JsonRowsTest, MessagesAreThePromptAndWhatFollowsTheUserIsTheSolution) {
  DataConfig config;
  config.answer_field = "";
  config.prompt_field = "messages";
  const auto one =
      Rows(R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"},)"
           R"( {"role": "assistant", "content": "a"}]})",
           config);
  EXPECT_EQ(one[0].messages.size(), 2u);
  EXPECT_EQ(one[0].solution, "a");
  const auto several = Rows(
      R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "c"},)"
      R"( {"role": "tool", "content": "t"}, {"role": "assistant", "content": "a"}]})",
      config);
  EXPECT_EQ(several[0].messages.size(), 1u);
  ASSERT_EQ(several[0].solution_messages.size(), 3u);
  EXPECT_EQ(several[0].solution_messages[1].role, "tool");
  // The template applies to the user's last message.
  config.prompt_template = "<{prompt}>";
  EXPECT_EQ(
      Rows(R"({"messages": [{"role": "user", "content": "u"}]})", config)[0].messages[0].content,
      "<u>");
  config.solution_field = "s";
  EXPECT_EQ(Rows(R"({"messages": [{"role": "user", "content": "u"}],)"
                 R"( "s": [{"role": "assistant", "content": "a"}]})",
                 config)[0]
                .solution,
            "a");
}

struct Case {
  const char* text;
  const char* error;
};

TEST(JsonRowsTest, EveryMistakeNamesFileLineAndFix) {
  const Case cases[] = {
      {"", "f.jsonl: the file is empty"},
      {" \n\r\n", "f.jsonl: the file is empty"},
      {"{\"prompt\": \"a\", \"answer\": 1}\n{\"prompt\": \"b\",",
       "f.jsonl:2: column 16: not JSON: "},
      {"hello", "f.jsonl:1: column 1: not JSON"},
      {"{} {}", "f.jsonl:1: column 4: not JSON"},
      {"17", "f.jsonl:1: the row is a value, should be an object"},
      {"{\"a\": NaN}", "f.jsonl:1: column 7: not JSON"},
      {"{\"question\": \"a\", \"x\": 1}",
       "f.jsonl:1: there is no field 'prompt'; the row has: question, x; set data.prompt_field"},
      {"{}", "the row has: no field at all"},
      {"{\"prompt\": null}", "f.jsonl:1: field 'prompt' is null; set data.prompt_field"},
      {"{\"prompt\": {\"a\": 1}}", "field 'prompt' is an object, should be a text"},
      {"{\"prompt\": \"\", \"answer\": 1}", "f.jsonl:1: the prompt is empty; remove the row"},
      {"{\"prompt\": \"a\"}",
       "there is no field 'answer'; the row has: prompt; set data.answer_field, or mend the row "
       "(data.answer_field: \"\" where there are no answers)"},
      {"{\"prompt\": \"a\", \"answer\": [1]}", "field 'answer' is a list, should be a text"},
      {"{\"prompt\": \"a\", \"answer\": 123456789012345678901}",
       "field 'answer' 1.2345678901234568e+20 has more digits than a JSON number keeps"},
      {"{\"prompt\": \"a\", \"answer\": 1, \"prompt\": \"b\"}",
       "f.jsonl:1: field 'prompt' is there twice; remove one"},
      {"\n{\"prompt\": \"a\xff\"}", "f.jsonl:2: column 14: byte 0xff is not UTF-8"},
      {"{\"prompt\": \"\\ud800\"}", "f.jsonl:1: column"},
      {"{\"prompt\": \"\\udc00\", \"answer\": 1}", "is not UTF-8"},
      {"\xff\xfe{", "f.jsonl: the file is UTF-16"},
      {"{\"prompt\": []}", "field 'prompt': the list of messages is empty"},
      {"{\"prompt\": [\"a\"]}", "field 'prompt': message 0 is a value, should be {\"role\""},
      {"{\"prompt\": [{\"role\": \"user\"}]}", "message 0 has no text 'content'"},
      {"{\"prompt\": [{\"role\": \"user\", \"content\": null}]}",
       "message 0 has no text 'content'"},
      {"{\"prompt\": [{\"role\": \"bot\", \"content\": \"x\"}]}",
       "a message has the role 'bot'; there are system, user, assistant and tool"},
      {"{\"prompt\": [{\"role\": \"system\", \"content\": \"x\"}]}", "have none of the user"},
      {"{\"prompt\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"tool\", \"content\": "
       "\"x\"}]}",
       "after the user's last message comes one of the tool"},
  };
  for (const Case& c : cases) EXPECT_THAT(ErrorOf(c.text), HasSubstr(c.error)) << c.text;
}

TEST(JsonRowsTest, ZeroBytesAreNoEndOfALine) {
  EXPECT_THAT(ErrorOf(std::string_view("{\"prompt\": \"a\", \"answer\": 1}\0x", 30)),
              HasSubstr("f.jsonl:1: column 29: a zero byte"));
}

TEST(JsonRowsTest, SettingsThatContradictARowAreErrors) {
  const char* chat = R"({"prompt": [{"role": "system", "content": "s"},)"
                     R"( {"role": "user", "content": "u"}], "answer": 1})";
  DataConfig config;
  config.system_prompt = "x";
  EXPECT_THAT(ErrorOf(chat, config), HasSubstr("has a system message already; remove data.system"));
  config.system_prompt = "";
  config.chat = false;
  EXPECT_THAT(ErrorOf(chat, config), HasSubstr("set data.chat: true"));
  config.chat = true;
  config.solution_field = "s";
  EXPECT_THAT(ErrorOf(R"({"prompt": [{"role": "user", "content": "u"},)"
                      R"( {"role": "assistant", "content": "a"}], "s": "b"})",
                      config),
              HasSubstr("data.solution_field names another"));
  EXPECT_THAT(ErrorOf(R"({"prompt": "u", "s": [{"role": "user", "content": "a"}]})", config),
              HasSubstr("should begin with a message of the assistant"));
}

TEST(JsonRowsTest, DeepNestingIsRefusedNotFollowed) {
  const std::string deep = "{\"prompt\": \"a\", \"answer\": 1, \"x\": " + std::string(200000, '[') +
                           std::string(200000, ']') + "}";
  EXPECT_THAT(ErrorOf(deep), HasSubstr("nest deeper than 100"));
  EXPECT_EQ(
      Rows("{\"prompt\": \"[[[[\\\"[[\", \"answer\": \"" + std::string(300, '[') + "\"}").size(),
      1u);
}

TEST(PresetTest, Gsm8k) {
  DataConfig config;
  config.preset = "gsm8k";
  const auto rows = Rows(
      R"({"question": "q", "answer": "It is 2*800=<<2*800=1,600>>1,600.\n#### 1,600"})", config);
  EXPECT_EQ(rows[0].messages[0].content, "q");
  EXPECT_EQ(rows[0].answer, "1600");
  EXPECT_EQ(rows[0].solution, "It is 2*800=1,600.\n#### 1,600");
  EXPECT_TRUE(rows[0].metadata.empty());
  EXPECT_THAT(ErrorOf(R"({"question": "q", "answer": "5"})", config),
              HasSubstr("f.jsonl:1: field 'answer' has nothing behind '####': '5'"));
  EXPECT_THAT(ErrorOf(R"({"prompt": "q"})", config), HasSubstr("there is no field 'question'"));
}

TEST(PresetTest, Math) {
  DataConfig config;
  config.preset = "math";
  const auto boxed = Rows(
      R"({"problem": "p", "solution": "\\boxed{1} so $\\boxed{\\frac{1}{2}}$.", "level": "5"})",
      config);
  EXPECT_EQ(boxed[0].answer, "\\frac{1}{2}");
  EXPECT_EQ(boxed[0].metadata.at("level"), "5");
  EXPECT_EQ(Rows(R"({"problem": "p", "answer": 7})", config)[0].answer, "7");
  EXPECT_THAT(ErrorOf(R"({"problem": "p", "solution": "none"})", config),
              HasSubstr("neither a field 'answer' nor a \\boxed{...}"));
}

}  // namespace
}  // namespace orrery::data
