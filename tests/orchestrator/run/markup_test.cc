#include "orchestrator/run/markup.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include "orchestrator/base/hash.h"
#include "orchestrator/base/utf8.h"

namespace orrery::run {
namespace {

constexpr const char* kUnknown = "\xef\xbf\xbd";

// What a reader makes of it again; nothing where it would refuse it.
std::optional<std::string> Read(std::string_view markup) {
  static const std::map<std::string, std::string, std::less<>> kReferences = {
      {"&lt;", "<"},  {"&gt;", ">"},  {"&amp;", "&"},  {"&quot;", "\""},
      {"&#39;", "'"}, {"&#9;", "\t"}, {"&#10;", "\n"}, {"&#13;", "\r"}};
  std::string text;
  for (size_t i = 0; i < markup.size();) {
    const size_t size = Utf8CharacterSize(markup, i);
    const std::string_view character = markup.substr(i, size);
    if (size == 0 || static_cast<unsigned char>(character[0]) < 0x20) return std::nullopt;
    if (character.find_first_of("<>\"'") == 0) return std::nullopt;
    if (character == "\xef\xbf\xbe" || character == "\xef\xbf\xbf") return std::nullopt;
    if (character != "&") {
      text += character;
      i += size;
      continue;
    }
    const std::string_view reference = markup.substr(i, markup.find(';', i) + 1 - i);
    const auto found = kReferences.find(reference);
    if (found == kReferences.end()) return std::nullopt;
    text += found->second;
    i += reference.size();
  }
  return text;
}

TEST(Markup, SignificantCharactersAreReferences) {
  EXPECT_EQ(EscapeMarkup("<a href=\"x\">it's & more</a>"),
            "&lt;a href=&quot;x&quot;&gt;it&#39;s &amp; more&lt;/a&gt;");
  EXPECT_EQ(EscapeMarkup("&amp;"), "&amp;amp;");
  EXPECT_EQ(EscapeMarkup("a\tb\r\nc"), "a&#9;b&#13;&#10;c");
  EXPECT_EQ(EscapeMarkup(""), "");
  EXPECT_EQ(EscapeMarkup("]]>"), "]]&gt;");
}

TEST(Markup, OtherTextStaysAsItIs) {
  for (const char* text : {"step 5/60 #{}%;`=", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\x7f",
                           "\xc2\x85", "\xef\xbf\xbd", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(EscapeMarkup(text), text);
  }
}

TEST(Markup, WhatXmlCannotWriteIsReplaced) {
  EXPECT_EQ(EscapeMarkup(std::string_view("a\0b", 3)), std::string("a") + kUnknown + "b");
  for (int byte = 0; byte < 0x20; ++byte) {
    if (byte == '\t' || byte == '\n' || byte == '\r') continue;
    EXPECT_EQ(EscapeMarkup(std::string(1, static_cast<char>(byte))), kUnknown) << byte;
  }
  for (const char* text : {"\xff", "\x80", "\xc3", "\xef\xbf\xbe", "\xef\xbf\xbf"}) {
    EXPECT_EQ(EscapeMarkup(text), kUnknown);
  }
  // A surrogate and an over-long slash: three bytes and two of which none begins a character.
  EXPECT_EQ(EscapeMarkup("\xed\xa0\x80").size(), 9u);
  EXPECT_EQ(EscapeMarkup("\xc0\xaf").size(), 6u);
}

TEST(Markup, AnyBytesAreReadableAndThoseThatCanBeWrittenComeBack) {
  uint64_t seed = 1;
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    const uint64_t size = (seed = HashSeed({seed})) % 40;
    bool broken = false;
    for (uint64_t i = 0; i < size; ++i) {
      seed = HashSeed({seed});
      // Bytes of all kinds, and in every second text those of significance alone.
      constexpr std::string_view kSignificant = "<>&\"'\t\n\r;#x";
      const bool plain = round % 2 == 1;
      text += plain ? kSignificant[seed % kSignificant.size()] : static_cast<char>(seed & 255);
      broken = broken || !plain;
    }
    const std::optional<std::string> read = Read(EscapeMarkup(text));
    ASSERT_TRUE(read.has_value()) << round;
    if (!broken) {
      EXPECT_EQ(*read, text);
    }
  }
}

}  // namespace
}  // namespace orrery::run
