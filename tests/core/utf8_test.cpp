#include "vitrum/core/utf8.h"

#include <gtest/gtest.h>

namespace vitrum {
namespace {

TEST(Utf8, KnowsItself) {
  EXPECT_TRUE(is_utf8("plain"));
  EXPECT_TRUE(is_utf8("Hündin \xEF\xBF\xBD 犬"));  // a real U+FFFD as well
  EXPECT_FALSE(is_utf8("h\xFCndin"));
  EXPECT_FALSE(is_utf8("cut \xE7\x8A"));
  // Two ways to write a slash too many, halves of a pair of UTF-16, and what is beyond U+10FFFF.
  for (const char* bad : {"\xC0\xAF", "\xE0\x80\xAF", "\xF0\x80\x80\xAF", "\xED\xA0\x80",
                          "\xED\xBF\xBF", "\xF4\x90\x80\x80"})
    EXPECT_FALSE(is_utf8(bad)) << printable(bad);
  for (const char* good : {"\xED\x9F\xBF", "\xEE\x80\x80", "\xE0\xA0\x80", "\xF4\x8F\xBF\xBF"})
    EXPECT_TRUE(is_utf8(good)) << printable(good);
}

// What a terminal would obey is shown, in one line; everything else stays as it is.
TEST(Utf8, PrintableHasNoCommands) {
  EXPECT_EQ(printable("photos/Hündin 犬 \\ 1.jpg"), "photos/Hündin 犬 \\ 1.jpg");
  EXPECT_EQ(printable("\033[2Ja\x7f\r"), "\\x1b[2Ja\\x7f\\x0d");
  EXPECT_EQ(printable("two\nlines"), "two\\nlines");
  EXPECT_EQ(printable("h\xFCndin"), "h\\xfcndin");
  EXPECT_EQ(printable("\xC2\x9B"
                      "2J"),
            "\\u009b2J");  // CSI as one character
  EXPECT_EQ(printable("gpj.\xE2\x80\xAE"
                      "exe"),
            "gpj.\\u202eexe");  // right to left from here
}

}  // namespace
}  // namespace vitrum
