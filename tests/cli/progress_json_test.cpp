#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <thread>

#include "vitrum/core/json_text.h"
#include "vitrum/core/progress.h"
#include "vitrum/core/utf8.h"

namespace vitrum {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

TEST(Json, ObjectsArraysAndCommas) {
  JsonWriter json;
  json.begin_object().field("a", 1).field("b", true).key("c").begin_array();
  json.value("x").value(int64_t{-5}).null().begin_object().end_object().begin_array().end_array();
  json.end_array().field("d", std::string("y")).field("e", 0.1).field("f", 0.1f).end_object();
  EXPECT_EQ(json.str(), R"({"a":1,"b":true,"c":["x",-5,null,{},[]],"d":"y","e":0.1,"f":0.1})");
}

TEST(Json, NumbersRoundTrip) {
  const auto text = [](auto x) { return JsonWriter().value(x).str(); };
  for (const double x : {0.0, -0.0, 1.0 / 3, 1e-300, 5e-324, 1.7976931348623157e308, 123456789.125})
    EXPECT_EQ(std::strtod(text(x).c_str(), nullptr), x);
  EXPECT_EQ(text(2.0), "2");
  EXPECT_EQ(text(NAN), "null");
  EXPECT_EQ(text(-std::numeric_limits<double>::infinity()), "null");
  EXPECT_EQ(text(std::numeric_limits<float>::infinity()), "null");
  EXPECT_EQ(text(std::numeric_limits<uint64_t>::max()), "18446744073709551615");
}

TEST(Json, Strings) {
  EXPECT_EQ(json_string("a\"b\\c\n\t\x01"), R"("a\"b\\c\n\t\u0001")");
  EXPECT_EQ(json_string("\b\f\r"), R"("\b\f\r")");
  EXPECT_EQ(json_string(std::string_view("\0", 1)), R"("\u0000")");
  EXPECT_EQ(json_string("é日😀"), "\"é日😀\"");
  for (const char* bad : {"\xff", "\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80"})
    EXPECT_THAT(json_string(bad), StartsWith("\"\xEF\xBF\xBD")) << bad;
  EXPECT_EQ(json_string("\xe6\x97"
                        "a"),
            "\"\xEF\xBF\xBD\xEF\xBF\xBD"
            "a\"");
}

TEST(Utf8, FitsColumns) {
  EXPECT_EQ(fit_columns("hello", 5), "hello");
  EXPECT_EQ(fit_columns("hello!", 5), "hell…");
  EXPECT_EQ(fit_columns("日本語", 6), "日本語");
  EXPECT_EQ(fit_columns("日本語", 5), "日本…");
  EXPECT_EQ(fit_columns("a\x1b[31m\n", 9), "a?[31m?");
  EXPECT_EQ(fit_columns("x", 0), "");
  EXPECT_EQ(columns("▌é"), 2);
}

TEST(Progress, LooksLikeTqdm) {
  const ProgressState state{"train", "loss=0.31", 45, 100, 10, 4.5};
  EXPECT_EQ(progress_bar(state, 66, true),
            "train:  45%|████▌     | 45/100 [00:10<00:12,  4.50it/s, loss=0.31]");
  EXPECT_EQ(columns(progress_bar(state, 66, true)), 66);
  EXPECT_EQ(progress_bar(state, 66, false),
            "train:  45%|####5     | 45/100 [00:10<00:12,  4.50it/s, loss=0.31]");
  EXPECT_EQ(progress_line(state), "train: 45% 45/100 [00:10<00:12,  4.50it/s, loss=0.31]");
}

TEST(Progress, BytesAreScaled) {
  const auto line = [](int64_t done, int64_t total, double rate) {
    return progress_line({"x", "", done, total, 10, rate, ProgressUnit::kBytes});
  };
  EXPECT_EQ(line(4'500'000, 330'000'000, 15e6), "x: 1% 4.50M/330M [00:10<00:22, 15.0MB/s]");
  EXPECT_EQ(line(7, 999'600, 0), "x: 0% 7/1.00M [00:10<?, ?B/s]");
  EXPECT_EQ(line(1'234, 0, 999.4), "x: 1.23kB [00:10, 999B/s]");
}

TEST(Progress, EdgesOfTheBar) {
  EXPECT_THAT(progress_bar({"", "", 0, 10, 0, 0}, 50, true), HasSubstr("| 0/10 [00:00<?, ?it/s]"));
  EXPECT_THAT(progress_bar({"", "", 10, 10, 7200, 0.5}, 50, true),
              HasSubstr("10/10 [2:00:00<00:00,  2.00s/it]"));
  EXPECT_THAT(progress_bar({"", "", 999, 1000, 1, 1}, 50, true), StartsWith(" 99%|"));
  EXPECT_EQ(progress_bar({"scan", "", 45, 0, 10, 4.5}, 80, true), "scan: 45it [00:10,  4.50it/s]");
  EXPECT_THAT(progress_bar({"", "", 20, 10, 1, 1}, 50, true), StartsWith("100%|"));
}

TEST(Progress, NeverWiderThanTheTerminal) {
  for (int width = 1; width < 120; ++width)
    for (const int64_t done : {0, 1, 7, 99, 100, 1000})
      for (const bool unicode : {false, true}) {
        const ProgressState state{
            "日本 a long label", "loss=0.3141, lr=0.001", done, 100, 1e9, 1e-9};
        EXPECT_LE(columns(progress_bar(state, width, unicode)), width);
      }
}

// Counts and times are whole or not there at all; the loss goes first, then the speed.
TEST(Progress, LeavesOutWhatANarrowTerminalHasNoRoomFor) {
  const ProgressState state{"epoch 1/15", "loss=0.3141", 45, 469, 100, 0.45};
  const auto bar = [&](int width) { return progress_bar(state, width, true); };
  EXPECT_THAT(bar(79), HasSubstr("| 45/469 [01:40<15:42,  2.22s/it, loss=0.3141]"));
  EXPECT_THAT(bar(55), EndsWith("| 45/469 [01:40<15:42,  2.22s/it]"));
  EXPECT_THAT(bar(39), EndsWith("| 45/469 [01:40<15:42]"));
  EXPECT_THAT(bar(39), StartsWith("epoch 1/15:   9%|"));
  EXPECT_THAT(bar(28), EndsWith("| 45/469"));
}

// Runs `body` with stderr on a terminal of this width and returns what was written.
template <class Body>
std::string on_terminal(unsigned short width, Body body) {
  int master = -1, slave = -1;
  winsize size{};
  size.ws_col = width;
  if (openpty(&master, &slave, nullptr, nullptr, &size) != 0) return {};
  const int saved = dup(STDERR_FILENO);
  dup2(slave, STDERR_FILENO);
  body();
  dup2(saved, STDERR_FILENO);
  close(saved), close(slave);
  std::string text;
  char block[4096];
  for (ssize_t n; (n = read(master, block, sizeof block)) > 0;)
    text.append(block, static_cast<size_t>(n));
  close(master);
  return text;
}

TEST(Progress, RedrawsAtMostTenTimesASecond) {
  const std::string text = on_terminal(60, [] {
    Progress progress("train", 1000, false);
    for (int i = 1; i <= 250; ++i) {
      progress.update(i, "loss=1");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    progress.finish();
  });
  if (text.empty()) GTEST_SKIP() << "no pseudo-terminal here";
  const auto redraws = std::count(text.begin(), text.end(), '\r');
  EXPECT_GE(redraws, 3);
  EXPECT_LE(redraws, 30);  // slow machines included: 250 updates are never 250 redraws
  EXPECT_THAT(text, HasSubstr("250/1000"));
  EXPECT_THAT(text, EndsWith("\n"));
  for (size_t from = 0, to; from < text.size(); from = to + 1) {
    to = std::min(text.find_first_of("\r\n", from), text.size());
    EXPECT_LT(columns(text.substr(from, to - from)), 60);
  }
}

// The first step may take minutes.
TEST(Progress, IsThereBeforeTheFirstStep) {
  const std::string text = on_terminal(60, [] {
    std::fputs("begin ", stderr);
    const Progress progress("features", 12, false);
  });
  if (text.empty()) GTEST_SKIP() << "no pseudo-terminal here";
  EXPECT_THAT(text, HasSubstr("features:   0%|"));
  EXPECT_THAT(text, HasSubstr("0/12"));
}

TEST(Progress, QuietAndNoTerminalWriteNothing) {
  EXPECT_EQ(on_terminal(60,
                        [] {
                          Progress progress("x", 10, true);
                          progress.update(5);
                          progress.finish();
                        }),
            "");
  testing::internal::CaptureStderr();
  {
    Progress progress("x", 10, false);  // the first plain line is due after ten seconds
    progress.update(5);
    EXPECT_FALSE(progress.due());
    progress.finish();
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Progress, ColourFollowsTheEnvironment) {
  const auto colour_with = [](const char* no_color, const char* term) {
    bool colour = false;
    on_terminal(80, [&] {
      setenv("NO_COLOR", no_color, 1), setenv("TERM", term, 1);
      colour = use_colour(stderr);
      unsetenv("NO_COLOR");
    });
    return colour;
  };
  EXPECT_TRUE(colour_with("", "xterm"));
  EXPECT_FALSE(colour_with("1", "xterm"));
  EXPECT_FALSE(colour_with("", "dumb"));
  std::FILE* file = std::tmpfile();
  EXPECT_FALSE(use_colour(file));
  EXPECT_EQ(terminal_width(file), 80);
  std::fclose(file);
}

}  // namespace
}  // namespace vitrum
