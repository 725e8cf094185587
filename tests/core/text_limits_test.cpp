#include "vitrum/core/text_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "vitrum/core/checked.h"
#include "vitrum/core/nearest.h"
#include "vitrum/core/shown.h"
#include "vitrum/core/utf8.h"

namespace vitrum {
namespace {

using testing::HasSubstr;

std::string repeated(std::string_view text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

TEST(TextLimits, JsonNestsToALimit) {
  const TextLimits limits{.depth = 3};
  EXPECT_EQ(json_problem(R"({"a": [[1, 2], [3]], "b": {"c": {}}})", limits), "");
  EXPECT_THAT(json_problem("[[[[1]]]]", limits), HasSubstr("deeper than 3"));
  EXPECT_THAT(json_problem(R"({"a":[{"b":[)", limits), HasSubstr("deeper than 3"));
  EXPECT_EQ(json_problem(R"(["[[[[[[", "\"[[[[[\\", "]"])", limits), "");  // brackets of a text
  EXPECT_THAT(json_problem(R"(["\\", [[[)", limits), HasSubstr("deeper than 3"));
  EXPECT_THAT(json_problem(repeated("[", 1'000'000)), HasSubstr("deeper"));
}

TEST(TextLimits, JsonHasNoNulAndNoEndlessToken) {
  EXPECT_THAT(json_problem(std::string_view("{}\0junk", 7)), HasSubstr("NUL"));
  const TextLimits limits{.token = 10};
  EXPECT_EQ(json_problem(R"(["12345678", 123456789])", limits), "");
  EXPECT_THAT(json_problem(R"(["123456789"])", limits), HasSubstr("more than 10 bytes"));
  EXPECT_THAT(json_problem("[1.0000000000]", limits), HasSubstr("more than 10 bytes"));
  EXPECT_THAT(json_problem("[\"12345678901", limits), HasSubstr("more than 10 bytes"));
  EXPECT_EQ(json_problem("[         1,         2]", limits), "");
  EXPECT_THAT(json_problem("[          1]", limits), HasSubstr("more than 10 bytes"));
  // A number is kept several times over, blanks are not.
  EXPECT_EQ(json_problem("[" + repeated("9", 4096) + "," + repeated(" ", 9000) + "1 ]"), "");
  EXPECT_THAT(json_problem("[ " + repeated("9", 4097)), HasSubstr("a number or word of more than"));
}

TEST(TextLimits, JsonHasSoManyValues) {
  const TextLimits limits{.values = 4};
  EXPECT_EQ(json_problem(R"({"a": [1, 2], "b": ",,,,,,", "c": 3})", limits), "");
  EXPECT_THAT(json_problem("[1,2,3,4,5]", limits), HasSubstr("more than 4 values"));
  EXPECT_EQ(json_problem(repeated("[1],", 100'000)), "");
  EXPECT_EQ(json_problem(R"({"a": [1, 2, 3, 4], "b": 5})", {.parts = 4}), "");
  EXPECT_THAT(json_problem("[[],[],{},{}]", {.parts = 4}), HasSubstr("more than 4 texts, lists"));
}

TEST(TextLimits, TomlNestsByBracketsAndByDots) {
  const TextLimits limits{.depth = 3};
  EXPECT_EQ(toml_problem("a.b = [[1.5, 2.5], [0.1, 0.2, 0.3, 0.4]]\n[x.y.z]\nq = 1", limits), "");
  EXPECT_EQ(toml_problem("a = \"[[[[[[ .......\" # [[[[ .....\nb = '....\\' # x", limits), "");
  EXPECT_EQ(toml_problem("a = \"\"\"[[[[\n.....\\\"\"\"\"\"\nb = '''....\n[[[['''", limits), "");
  for (const char* deep :
       {"a = [[[[1]]]]", "a.b.c.d.e = 1", "[a.b.c.d.e]", "[[a.b.c.d.e]]", "a = {b = {c = {d = {",
        "x = 1\n\"a\".'b'.c . \"d\".e = 1", "a = {b.c.d.e.f = 1}", "x = \"\\\"\"\na.b.c.d.e=1",
        // What closes a long string is not the opening of the next.
        "x = [ \"\"\"a\"\"\"\", {a.b.c.d.e = 1}]", "x = [ '''a''''', {a.b.c.d.e = 1}]"})
    EXPECT_THAT(toml_problem(deep, limits), HasSubstr("deeper than 3")) << deep;
  EXPECT_THAT(toml_problem(std::string_view("a = 1\0", 6)), HasSubstr("NUL"));
}

TEST(Shown, IsShortAndPrintable) {
  EXPECT_EQ(shown("blocks.0"), "blocks.0");
  EXPECT_EQ(shown("a\nb\033[2J"), "a?b?[2J");
  EXPECT_LT(shown(std::string(500'000, 'A')).size(), 100u);
  EXPECT_LT(one_line(std::string(500'000, '\n')).size(), 5000u);
  // What to do is said at the end.
  EXPECT_THAT(one_line("x is '" + std::string(500'000, 'A') + "'; give y"),
              testing::AllOf(testing::StartsWith("x is 'AAA"), testing::EndsWith("A'; give y"),
                             testing::HasSubstr("…")));
  std::string letters;
  while (letters.size() < 500'000) letters += "ü";
  EXPECT_TRUE(is_utf8(one_line(letters))) << "cut inside a letter";
  EXPECT_TRUE(is_utf8(one_line("x" + letters)));
  const std::string fits(4000, 'A');
  EXPECT_EQ(one_line(fits), fits);
}

TEST(Checked, StaysAtTheLargestNumber) {
  constexpr int64_t kMost = INT64_MAX;
  EXPECT_EQ(capped_add<int64_t>(2, 3), 5);
  EXPECT_EQ(capped_add(kMost - 1, int64_t{1}), kMost);
  EXPECT_EQ(capped_add(kMost, kMost), kMost);
  EXPECT_EQ(capped_mul<size_t>(1u << 31, 4), size_t{1} << 33);
  EXPECT_EQ(capped_mul<size_t>(size_t{1} << 33, size_t{1} << 33), SIZE_MAX);
}

// Half a megabyte times every known name would be seconds.
TEST(Nearest, LongWordsAreNobodysTypingError) {
  const std::string close(129, 'a');
  EXPECT_EQ(did_you_mean(std::string(128, 'a'), std::vector{close}), "");
  EXPECT_EQ(did_you_mean(close, std::vector<std::string>{std::string(128, 'a')}), "");
  EXPECT_NE(did_you_mean(std::string(127, 'a'), std::vector{std::string(128, 'a')}), "");
}

}  // namespace
}  // namespace vitrum
