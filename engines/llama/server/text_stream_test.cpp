#include "text_stream.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

namespace cachalot::llama {
namespace {

constexpr const char* kEuro = "\xe2\x82\xac";
constexpr const char* kBad = "\xef\xbf\xbd";

// All that is sent, in the portions in which it is.
std::vector<std::string> sent(TextStream stream, const std::vector<std::string>& tokens) {
  std::vector<std::string> portions;
  for (const std::string& token : tokens) portions.push_back(stream.add(token));
  portions.push_back(stream.finish());
  return portions;
}

std::string joined(const std::vector<std::string>& portions) {
  std::string text;
  for (const std::string& portion : portions) text += portion;
  return text;
}

using Texts = std::vector<std::string>;

TEST(TextStream, SendsACharacterWhenItsLastByteHasCome) {
  EXPECT_EQ(sent(TextStream({}), {"a\xe2", "\x82",
                                  "\xac"
                                  "b"}),
            (Texts{"a", "", std::string(kEuro) + "b", ""}));
}

TEST(TextStream, ReplacesACharacterThatIsNotCompleted) {
  EXPECT_EQ(joined(sent(TextStream({}), {"\xe2\x82"})), kBad);
  EXPECT_EQ(joined(sent(TextStream({}), {"\xe2\x82", "x"})), std::string(kBad) + "x");
}

TEST(TextStream, ReplacesBytesThatBelongToNoCharacter) {
  const std::string bad = kBad;
  EXPECT_EQ(joined(sent(TextStream({}), {"\x80"})), bad);
  EXPECT_EQ(joined(sent(TextStream({}), {"\xc0\xaf"})), bad + bad);            // too long a form
  EXPECT_EQ(joined(sent(TextStream({}), {"\xed\xa0\x80"})), bad + bad + bad);  // a surrogate
  EXPECT_EQ(joined(sent(TextStream({}), {"\xf4\x90\x80\x80"})), bad + bad + bad + bad);
  EXPECT_EQ(joined(sent(TextStream({}), {"\xe2\x82\xe2\x82\xac"})), bad + kEuro);
}

TEST(TextStream, EndsBeforeAStopString) {
  TextStream stream({"END"});
  EXPECT_EQ(stream.add("one END two"), "one ");
  EXPECT_TRUE(stream.is_stopped());
  EXPECT_EQ(stream.add("three"), "");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, HoldsBackWhatMayBecomeAStopString) {
  EXPECT_EQ(sent(TextStream({"END"}), {"xE", "N", "D", "y"}), (Texts{"x", "", "", "", ""}));
  EXPECT_EQ(sent(TextStream({"END"}), {"xE", "N", "x"}), (Texts{"x", "", "ENx", ""}));
  EXPECT_EQ(sent(TextStream({"END"}), {"xEN"}), (Texts{"x", "EN"}));
}

TEST(TextStream, FindsAStopStringThatBeginsInsideOne) {
  EXPECT_EQ(joined(sent(TextStream({"aab"}), {"a", "a", "a", "b", "c"})), "a");
}

TEST(TextStream, TakesTheStopStringThatComesFirst) {
  EXPECT_EQ(joined(sent(TextStream({"three", "two"}), {"one two three"})), "one ");
}

TEST(TextStream, FindsStopStringsOfSeveralBytesACharacter) {
  EXPECT_EQ(joined(sent(TextStream({kEuro}), {"a\xe2", "\x82",
                                              "\xac"
                                              "b"})),
            "a");
}

// However a text is cut into tokens, what is sent is the text up to the first stop string.
RC_GTEST_PROP(TextStream, SendsTheSameHoweverTheTextIsCut, ()) {
  const auto text = *rc::gen::container<std::string>(rc::gen::elementOf(std::string("ab\xc3\xa9")));
  const auto stop =
      *rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::elementOf(std::string("ab"))));
  const auto cuts =
      *rc::gen::container<std::vector<std::size_t>>(rc::gen::inRange<std::size_t>(1, 4));
  Texts tokens;
  std::size_t at = 0;
  for (const std::size_t length : cuts) {
    if (at >= text.size()) break;
    tokens.push_back(text.substr(at, length));
    at += length;
  }
  if (at < text.size()) tokens.push_back(text.substr(at));

  Utf8Assembler whole;
  std::string expected = whole.add(text);
  expected += whole.finish();
  expected = expected.substr(0, expected.find(stop));
  const Texts portions = sent(TextStream({stop}), tokens);
  RC_ASSERT(joined(portions) == expected);
  for (const std::string& portion : portions) {
    Utf8Assembler check;
    const std::string again = check.add(portion);
    RC_ASSERT(again + check.finish() == portion);  // whole characters each
  }
}

}  // namespace
}  // namespace cachalot::llama
