#include "rollout/text/jinja.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "orchestrator/base/file.h"
#include "rollout/text/jinja_json.h"

namespace orrery::rollout::jinja {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::time_t kNow = 1735732800;  // as in make_golden_jinja.py

Value Json(std::string_view text) {
  auto value = FromJson(text, "test");
  EXPECT_TRUE(value.ok()) << value.status();
  return value.ok() ? *value : Value();
}

Value JsonFile(const std::string& name) {
  const std::string path = ORRERY_SOURCE_DIR "/tests/rollout/text/data/templates/" + name;
  const auto text = ReadFile(path);
  EXPECT_TRUE(text.ok()) << text.status();
  return Json(text.value_or("null"));
}

absl::StatusOr<std::string> Render(std::string_view source, const Value& variables,
                                   const Limits& limits = {}) {
  ASSIGN_OR_RETURN(const Template parsed, Template::Parse(source, "t.jinja"));
  return parsed.Render(variables.map(), limits, kNow);
}

absl::StatusOr<std::string> Render(std::string_view source) { return Render(source, Json("{}")); }

std::string ErrorOf(std::string_view source, const Limits& limits = {}) {
  const auto rendered = Render(source, Json("{}"), limits);
  return rendered.ok() ? "no error, but: " + *rendered : StatusText(rendered.status());
}

// Where this interpreter differs from jinja2, and why that is right or does no harm.
const std::map<std::string, std::string>& KnownDifferences() {
  static const auto& differences = *new std::map<std::string, std::string>{
      {"{{ quotes | escape }}", "no filter escape: chat templates are not HTML"},
  };
  return differences;
}

TEST(JinjaFeatures, EqualJinja2) {
  const Value golden = JsonFile("features.json");
  const Value variables = *golden.map().Find("variables");
  const auto& cases = golden.map().Find("cases")->list().items;
  ASSERT_GT(cases.size(), 500u);
  for (const Value& one : cases) {
    const std::string source = one.map().Find("source")->text();
    const auto rendered = Render(source, variables);
    if (KnownDifferences().contains(source)) {
      EXPECT_FALSE(rendered.ok()) << source << " is no longer different";
      continue;
    }
    const Value* expected = one.map().Find("expected");
    if (expected == nullptr) {
      EXPECT_FALSE(rendered.ok()) << source << "\nrenders '" << *rendered << "' where jinja2 says "
                                  << one.map().Find("error")->text();
    } else if (!rendered.ok()) {
      ADD_FAILURE() << source << "\n"
                    << rendered.status() << " where jinja2 renders '" << expected->text() << "'";
    } else {
      EXPECT_EQ(*rendered, expected->text()) << source;
    }
    if (rendered.ok()) continue;
    EXPECT_THAT(StatusText(rendered.status()), StartsWith("t.jinja:")) << source;
  }
}

TEST(JinjaErrors, NamePlaceAndWhatWasExpected) {
  EXPECT_EQ(ErrorOf("a\n  {{ 1 + }}"), "t.jinja:2:10: expected an expression, found '}}'");
  EXPECT_EQ(ErrorOf("日本 {{ nosuch.x }}"), "t.jinja:1:14: 'nosuch' is undefined");
  EXPECT_EQ(
      ErrorOf("{% if 1 %}"),
      "t.jinja:1:11: expected if to end with {% elif %} or {% else %} or {% endif %}, found the "
      "end of the template");
  EXPECT_THAT(ErrorOf("{{ x | nosuch }}"),
              AllOf(StartsWith("t.jinja:1:8: there is no filter 'nosuch'; known are"),
                    HasSubstr("tojson")));
  EXPECT_THAT(ErrorOf("{% include 'x' %}"), HasSubstr("the tag 'include' is not supported"));
  EXPECT_EQ(ErrorOf("{{ 'a'.replace('b') }}"),
            "t.jinja:1:8: method 'replace': needs the argument 'new'");
  EXPECT_EQ(
      ErrorOf("{{ 'a' | indent(width='x', tail=1) }}"),
      "t.jinja:1:8: filter 'indent': has no parameter 'tail'; it takes (width, first, blank)");
  EXPECT_EQ(ErrorOf("{{ {}.role.upper() }}"),
            "t.jinja:1:12: 'dict object' has no attribute 'role'");
  EXPECT_EQ(ErrorOf("\n{{ raise_exception('No ' ~ 'way') }}"),
            "t.jinja:2:4: the template refuses the conversation: No way");
  EXPECT_EQ(ErrorOf("{{ (1 }}"), "t.jinja:1:7: expected ')', found '}'");
}

TEST(JinjaErrors, PlacesInsideMacrosAreTheMacros) {
  EXPECT_EQ(ErrorOf("{% macro m(a) %}\n{{ a.x }}{% endmacro %}\n\n{{ m() }}"),
            "t.jinja:2:6: parameter 'a' was not given");
}

// A tenth of the standard limits: the same paths, sooner.
constexpr Limits kSmall{.max_steps = 2'000'000, .max_allocated_bytes = 25 << 20};

TEST(JinjaLimits, LoopsEnd) {
  const std::string nested =
      "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}"
      "{% endfor %}{% endfor %}{% endfor %}";
  EXPECT_THAT(ErrorOf(nested, kSmall), HasSubstr("more than 2000000 steps"));
  EXPECT_THAT(ErrorOf("{% set r = range(100000) %}{% for a in r %}{% for b in r %}{% endfor %}"
                      "{% endfor %}",
                      kSmall),
              HasSubstr("more than 2000000 steps"));
}

// What a rendering keeps to its end counts as well.
TEST(JinjaLimits, MacrosAndNamespacesStayBounded) {
  EXPECT_THAT(
      ErrorOf("{% for a in range(90000) %}{% macro m() %}{% endmacro %}{% endfor %}", kSmall),
      HasSubstr("bytes of text and lists"));
  EXPECT_THAT(
      ErrorOf("{% for a in range(90000) %}{% set n = namespace(a=1) %}{% endfor %}", kSmall),
      HasSubstr("bytes of text and lists"));
}

TEST(JinjaLimits, TextsStayBounded) {
  EXPECT_THAT(
      ErrorOf("{% set ns = namespace(t='x') %}{% for i in range(99) %}{% set ns.t = ns.t + ns.t %}"
              "{% endfor %}"),
      HasSubstr("bytes of text and lists"));
  EXPECT_THAT(ErrorOf("{{ 'x' * 9223372036854775807 }}"), HasSubstr("exceeds the limit"));
  EXPECT_THAT(ErrorOf("{{ [1] * 9223372036854775807 }}"), HasSubstr("exceeds the limit"));
  EXPECT_THAT(ErrorOf("{{ 'x' * 101 }}", Limits{.max_output_bytes = 100}),
              HasSubstr("rendered text exceeds 100 bytes"));
  EXPECT_EQ(*Render("{{ 'x' * 5 }}", Json("{}"), Limits{.max_output_bytes = 5}), "xxxxx");
  EXPECT_THAT(ErrorOf("{{ ('a' * 100000).replace('', 'b' * 100000) }}"),
              HasSubstr("bytes of text"));
  EXPECT_THAT(ErrorOf("{{ ('a' * 1000000 + 'b') in ('a' * 2000000) }}{% set x = 'a' * 2000000 %}"
                      "{{ x.rsplit('a' * 1000000 + 'b') }}"),
              HasSubstr("steps"));
}

TEST(JinjaLimits, NestingStaysBounded) {
  EXPECT_THAT(ErrorOf("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
              HasSubstr("nests deeper"));
  EXPECT_THAT(
      ErrorOf("{% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = [ns.l] %}"
              "{% endfor %}"),
      HasSubstr("nest deeper than 200"));
  // A loop keeps its list, which keeps the loop before: also a chain.
  EXPECT_THAT(ErrorOf("{% set ns = namespace(l=[1]) %}{% for i in range(1000) %}{% for x in ns.l %}"
                      "{% set ns.l = [loop] %}{% endfor %}{% endfor %}"),
              HasSubstr("nest deeper than 200"));
  EXPECT_THAT(ErrorOf("{{ " + std::string(100000, '(') + "1" + std::string(100000, ')') + " }}"),
              HasSubstr("nests deeper"));
  EXPECT_THAT(ErrorOf("{{ " + std::string(100000, '-') + "1 }}"), HasSubstr("nests deeper"));
  std::string chain = "{{ 1";
  std::string attributes = "{{ a";
  std::string ifs;
  std::string nots = "{{ ";
  for (int i = 0; i < 100000; ++i) {
    chain += " + 1";
    attributes += ".a";
    ifs += "{% if 1 %}";
    nots += "not ";
  }
  EXPECT_THAT(ErrorOf(chain + " }}"), HasSubstr("more than 250 levels"));
  EXPECT_THAT(ErrorOf(attributes + " }}"), HasSubstr("more than 250 levels"));
  EXPECT_THAT(ErrorOf(ifs), HasSubstr("nests deeper"));
  EXPECT_THAT(ErrorOf(nots + "1 }}"), HasSubstr("nests deeper"));
  std::string maps = "{{ 'a' | map('map'";
  for (int i = 0; i < 1000; ++i) maps += ", 'map'";
  EXPECT_THAT(ErrorOf(maps + ") }}"), HasSubstr("nests deeper"));
}

// Sharing makes a small value print as an endless one: 2^60 elements.
TEST(JinjaLimits, SharedListsStayBounded) {
  const std::string build =
      "{% set ns = namespace(a=[], b=[]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}"
      "{% set ns.b = [ns.b, ns.b] %}{% endfor %}";
  EXPECT_THAT(ErrorOf(build + "{{ ns.a }}", kSmall), HasSubstr("steps"));
  EXPECT_THAT(ErrorOf(build + "{{ ns.a | tojson }}", kSmall), HasSubstr("steps"));
  EXPECT_THAT(ErrorOf(build + "{{ ns.a == ns.b }}", kSmall), HasSubstr("steps"));
  EXPECT_THAT(ErrorOf(build + "{{ ns.a < ns.b }}", kSmall), HasSubstr("steps"));
}

TEST(JinjaTemplate, NamespacesThatHoldThemselvesDoNotLeak) {
  EXPECT_EQ(*Render("{% set ns = namespace() %}{% set ns.me = [ns] %}"
                    "{% macro m() %}{% endmacro %}{% set ns.m = m %}{{ ns.me | length }}"),
            "1");
}

// A macro may outlive the turn of the for that defined it.
TEST(JinjaTemplate, MacrosKeepTheirScope) {
  EXPECT_EQ(
      *Render(
          "{% set ns = namespace() %}{% for i in range(3) %}{% macro m() %}{{ i }}{% endmacro %}"
          "{% if i == 1 %}{% set ns.m = m %}{% endif %}{% endfor %}{{ ns.m() }}"),
      "1");
}

TEST(JinjaTemplate, RendersFromManyThreads) {
  const auto parsed = Template::Parse(
      "{% macro m(x) %}<{{ x }}>{% endmacro %}{% for i in range(50) %}{{ m(i ~ text[::-1]) }}{% "
      "endfor %}",
      "t");
  ASSERT_TRUE(parsed.ok());
  const Value variables = Json(R"({"text": "abc"})");
  const std::string expected = *parsed->Render(variables.map());
  std::vector<std::thread> threads;
  std::vector<int> equal(4, 0);
  for (size_t t = 0; t < equal.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) equal[t] += *parsed->Render(variables.map()) == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(equal, ::testing::Each(50));
}

TEST(JinjaTemplate, BytesThatAreNotUtf8PassThrough) {
  Map variables;
  variables.Set("x", Value::Of(std::string("a\xff\xe2\x82z\xc3")));
  const auto parsed =
      Template::Parse("{{ x }}|{{ x | trim }}|{{ x | length }}|{{ x[1] }}|{{ x | tojson }}", "t");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed->Render(variables),
            "a\xff\xe2\x82z\xc3|a\xff\xe2\x82z\xc3|6|\xff|\"a\xff\xe2\x82z\xc3\"");
}

TEST(JinjaTemplate, FixedTimeIsUtc) {
  EXPECT_EQ(*Render("{{ strftime_now('%Y-%m-%d %H:%M') }}"), "2025-01-01 12:00");
  EXPECT_THAT(ErrorOf("{{ strftime_now('%Y' * 1000) }}"), HasSubstr("date format"));
}

TEST(JinjaJson, RoundTripsAsPythonWouldWriteIt) {
  const std::string text =
      R"({"b": [1, -0.5, 1e3, 1E-7, 123456789012345678901234567890, true, null], "a": {"é": "\u00e9\n\"\\\u0001"}, "b2": {}, "c": [], "b": 2})";
  Budget budget{Limits{}};
  EXPECT_EQ(*ToJson(Json(text), {}, budget),
            R"({"b": 2, "a": {"é": "é\n\"\\\u0001"}, "b2": {}, "c": []})");
  EXPECT_EQ(
      *ToJson(Json("[1, -0.5, 1e3, 1E-7, 123456789012345678901234567890, -1e-999]"), {}, budget),
      "[1, -0.5, 1000.0, 1e-07, 123456789012345678901234567890, -0.0]");
}

TEST(JinjaJson, LargeObjectsKeepOrderAndLastValue) {
  std::string text = "{";
  for (int i = 0; i < 100; ++i) text += fmt::format("\"k{}\": {}, ", 99 - i, i);
  const Value value = Json(text + R"("k7": "again", "k100": 1})");
  ASSERT_EQ(value.map().size(), 101u);
  EXPECT_EQ(value.map().entries()[0].first.text(), "k99");
  EXPECT_EQ(value.map().Find("k7")->text(), "again");
  EXPECT_EQ(value.map().entries()[92].first.text(), "k7");
  EXPECT_EQ(value.map().Find("k100")->integer(), 1);
  EXPECT_EQ(value.map().Find("nosuch"), nullptr);
}

TEST(JinjaJson, SaysWhereItIsBroken) {
  const auto error = [](std::string_view text) {
    return StatusText(FromJson(text, "tools").status());
  };
  EXPECT_THAT(error("[1,\n 2"), StartsWith("tools: line 2, column 3: "));
  EXPECT_THAT(error("{\"a\": nul}"), StartsWith("tools: line 1, column"));
  EXPECT_THAT(error("[1] x"), HasSubstr("column 5"));
  EXPECT_THAT(error(""), StartsWith("tools: line 1, column 1"));
  EXPECT_THAT(error("\"\xff\""), HasSubstr("encoding"));
  EXPECT_THAT(error(std::string_view("1\0x", 3)), HasSubstr("after the end"));
  EXPECT_THAT(error(std::string(100000, '[')), HasSubstr("nests deeper than 200"));
  EXPECT_TRUE(FromJson(std::string(200, '[') + std::string(200, ']'), "tools").ok());
}

}  // namespace
}  // namespace orrery::rollout::jinja
