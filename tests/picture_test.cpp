#include "vitrum/train/picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "vitrum/train/draw.h"
#include "vitrum/train/ticks.h"

namespace vitrum {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string curves_svg(const std::vector<EpochMetrics>& rows) { return to_svg(draw_curves(rows)); }
std::string confusion_svg(const std::vector<std::vector<int64_t>>& counts,
                          const std::vector<std::string>& names) {
  return to_svg(draw_confusion(counts, names));
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// Every tag closed in order, no attribute broken, no number that is none: enough for what we write.
void expect_well_formed(const std::string& svg) {
  std::vector<std::string> open;
  for (size_t at = svg.find('<'); at != svg.npos; at = svg.find('<', at + 1)) {
    const size_t end = svg.find('>', at);
    ASSERT_NE(end, svg.npos);
    const std::string tag = svg.substr(at + 1, end - at - 1);
    ASSERT_EQ(tag.find('<'), tag.npos) << tag;
    ASSERT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
    if (tag[0] == '/') {
      ASSERT_FALSE(open.empty());
      ASSERT_EQ(tag.substr(1), open.back());
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

std::vector<EpochMetrics> rows_of(int n, double loss = 1, double accuracy = 0.5) {
  std::vector<EpochMetrics> rows;
  for (int epoch = 1; epoch <= n; ++epoch) {
    EpochMetrics row;
    row.epoch = epoch;
    row.train_loss = loss / epoch;
    row.train_acc = accuracy;
    row.lr = 1e-3;
    if (epoch % 2 == 0) row.test_acc = 0.9125;
    rows.push_back(row);
  }
  return rows;
}

TEST(Picture, CurvesShowWhatWasMeasured) {
  const std::string svg = curves_svg(rows_of(4));
  expect_well_formed(svg);
  for (const char* part : {"Loss", "Accuracy", "Learning rate", "prefers-color-scheme:dark",
                           "train 0.2500", "test 91.25", ">0.001<"})
    EXPECT_THAT(svg, HasSubstr(part));
  EXPECT_EQ(count(svg, "<polyline"), 4u);          // there is no test loss
  EXPECT_EQ(count(svg, "class=\"d1\""), 2u + 1u);  // two measured points and the legend
}

TEST(Picture, CurvesOfAnything) {
  for (const int n : {0, 1, 2, 41, 1000})
    for (const double loss :
         {0.0, 1.0, -3.0, 1e-12, 1e17, 1e300, HUGE_VAL, -HUGE_VAL, std::nan("")}) {
      SCOPED_TRACE(testing::Message() << n << " rows, loss " << loss);
      expect_well_formed(curves_svg(rows_of(n, loss)));
    }
  auto rows = rows_of(2);
  rows[0].train_loss = 1e17, rows[1].train_loss = std::nextafter(1e17, 1e18);
  rows[0].lr = rows[1].lr = 0;
  expect_well_formed(curves_svg(rows));
  rows[0].epoch = -2147483647, rows[1].epoch = 2147483647;
  expect_well_formed(curves_svg(rows));
}

TEST(Picture, ConfusionShowsCountsAndNames) {
  const std::string svg =
      confusion_svg({{95, 5}, {1, 99}}, {"T-shirt & <top>", "a name far too long"});
  expect_well_formed(svg);
  for (const char* part :
       {">95<", ">5<", ">99<", "T-shirt &amp;", "194 of 200 correct (97.00 %)", "…"})
    EXPECT_THAT(svg, HasSubstr(part));
  EXPECT_THAT(svg, Not(HasSubstr("too long")));
  EXPECT_THAT(svg, Not(HasSubstr("<top")));
}

TEST(Picture, ConfusionOfAnySize) {
  for (const size_t n : {0u, 1u, 2u, 20u, 21u, 60u, 300u}) {
    std::vector<std::vector<int64_t>> counts(n, std::vector<int64_t>(n));
    for (size_t i = 0; i < n; ++i) counts[i][i] = 12'345'678;
    if (n > 1) counts[0][0] = 0, counts[0][1] = 0;  // a class without images
    const std::string svg = confusion_svg(counts, {});
    expect_well_formed(svg);
    EXPECT_EQ(svg.find(">12M<") != svg.npos, n > 0 && n <= 20) << n;
  }
}

TEST(Picture, EscapesWhatXmlCannotHold) {
  EXPECT_EQ(xml_escape("a<b>&\"'\x01\xff"), "a&lt;b&gt;&amp;&quot;&#39;?\xEF\xBF\xBD");
  EXPECT_EQ(xml_escape("\xEF\xBF\xBF"), "?");
  EXPECT_EQ(xml_escape("é日"), "é日");
}

TEST(Picture, Ticks) {
  EXPECT_EQ(nice_ticks(0, 100, 5).at, (std::vector<double>{0, 20, 40, 60, 80, 100}));
  EXPECT_EQ(nice_ticks(1, 4, 5, true).at, (std::vector<double>{1, 2, 3, 4}));
  const Ticks ticks = nice_ticks(0.013, 0.0871, 5);
  EXPECT_LE(ticks.at.front(), 0.013);
  EXPECT_GE(ticks.at.back(), 0.0871);
  EXPECT_LE(ticks.at.size(), 8u);
  EXPECT_EQ(tick_label(0.30000000000000004, 0.1), "0.3");
  EXPECT_EQ(tick_label(40, 20), "40");
  EXPECT_EQ(tick_label(6e-4, 2e-4), "6e-4");
  EXPECT_EQ(tick_label(0, 2e-4), "0");
  EXPECT_EQ(tick_label(1.5e8, 5e7), "1.5e8");
}

}  // namespace
}  // namespace vitrum
