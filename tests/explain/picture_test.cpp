#include "vitrum/train/picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "vitrum/data/decode.h"
#include "vitrum/train/draw.h"
#include "vitrum/train/ticks.h"

namespace vitrum {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string curves_svg(const std::vector<EpochMetrics>& rows) { return to_svg(draw_curves(rows)); }
Confusion cells_of(const std::vector<std::vector<int64_t>>& counts) {
  Confusion cells;
  for (size_t t = 0; t < counts.size(); ++t)
    for (size_t g = 0; g < counts.size(); ++g)
      if (counts[t][g] > 0)
        cells.push_back({static_cast<int>(t), static_cast<int>(g), counts[t][g]});
  return cells;
}

std::string confusion_svg(const std::vector<std::vector<int64_t>>& counts,
                          const std::vector<std::string>& names) {
  return to_svg(draw_confusion(cells_of(counts), counts.size(), names));
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
                           "train 0.2500", "test 91.25", "lr 0.001"})
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

Image png_of(const Picture& picture) {
  const std::string bytes = to_png(picture, 1);
  return decode_image({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, "png");
}

TEST(Picture, PngShowsWhatSvgShows) {
  Picture picture{.width = 40, .height = 30, .title = "x"};
  picture.shapes.push_back(LineShape{{{5, 10.5}, {35, 10.5}}, Ink::kSeries, 1});
  picture.shapes.push_back(DotShape{{20, 22}, 4, 2});
  picture.shapes.push_back(CellsShape{{0, 0}, 5, 5, 1, {{0, 0}, {1, 0}}});
  const Image image = png_of(picture);
  ASSERT_EQ(image.width, 40);
  ASSERT_EQ(image.height, 30);
  const auto pixel = [&](int x, int y) {
    const size_t at = static_cast<size_t>(y * 40 + x);
    return image.plane(0)[at] << 16 | image.plane(1)[at] << 8 | image.plane(2)[at];
  };
  EXPECT_EQ(pixel(20, 10), 0xea580c);
  EXPECT_EQ(pixel(20, 22), 0x0d9488);
  EXPECT_EQ(pixel(9, 4), 0x1e4fc2);
  EXPECT_EQ(pixel(10, 4), 0xffffff);
  EXPECT_EQ(pixel(20, 14), 0xffffff);
  const int edge = pixel(20, 12) >> 16;  // outside of a line two pixels wide
  EXPECT_EQ(edge, 0xff);
}

TEST(Picture, PngOfAnything) {
  for (const int n : {0, 1, 3, 50}) EXPECT_GT(png_of(draw_curves(rows_of(n))).width, 1000);
  for (const size_t n : {0u, 1u, 21u, 200u}) {
    const std::vector<std::vector<int64_t>> counts(n, std::vector<int64_t>(n, 7));
    EXPECT_GT(png_of(draw_confusion(cells_of(counts), n, {"日本", "\xff"})).width, 100);
  }
}

// Neighbours share a row; what is correct is still counted by class.
TEST(Picture, ConfusionOfThousandsOfClassesStaysSmall) {
  constexpr int kClasses = 20'000;
  Confusion cells;
  for (int k = 0; k < kClasses; ++k) cells.push_back({k, k / 2 * 2, 3});
  const Picture picture = draw_confusion(cells, kClasses, {});
  EXPECT_LE(picture.width, 1300);
  EXPECT_LE(picture.height, 1300);
  const std::string svg = to_svg(picture);
  expect_well_formed(svg);
  EXPECT_THAT(svg, HasSubstr("30000 of 60000 correct (50.00 %)"));
}

TEST(Picture, SeveralRunsHaveAColourEach) {
  const auto a = rows_of(4), b = rows_of(9);
  const std::vector<RunCurves> runs = {{"one", a}, {"<two>", b}};
  const std::string svg = to_svg(draw_curves(runs, std::array{CurvePanel::kLoss}));
  expect_well_formed(svg);
  for (const char* part : {"one train 0.2500", "&lt;two&gt; train", "line s0 dots", "line s1 dots"})
    EXPECT_THAT(svg, HasSubstr(part));
  std::vector<RunCurves> many(20, runs[0]);
  for (RunCurves& run : many) run.name = "a name that is much too long for a legend";
  const Picture picture = draw_curves(many, std::array{CurvePanel::kAccuracy});
  EXPECT_GT(picture.height, 40 * 17) << "the legend has as many lines as it takes";
  expect_well_formed(to_svg(picture));
}

TEST(StrokeFont, HasEveryLetter) {
  for (char c = '!'; c <= '~'; ++c) {
    const auto strokes = text_strokes(std::string(1, c));
    ASSERT_FALSE(strokes.empty()) << c;
    for (const auto& stroke : strokes)
      for (const Point& p : stroke) {
        EXPECT_GE(p.x, 0);
        EXPECT_LT(std::abs(p.y), 1) << c;
      }
  }
  EXPECT_GT(text_width("mm"), 1.8 * text_width("m"));
  EXPECT_EQ(text_width(""), 0);
  EXPECT_EQ(text_strokes("…").size(), 3u);
  EXPECT_EQ(text_width("日"), text_width("?"));
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
}

TEST(Picture, NumbersOfAnAxisAreOfOneKind) {
  const auto labels = [](double low, double high) { return axis_labels(nice_ticks(low, high, 4)); };
  EXPECT_THAT(labels(0, 2).texts, ElementsAre("0.0", "0.5", "1.0", "1.5", "2.0"));
  EXPECT_THAT(labels(0, 80).texts, ElementsAre("0", "20", "40", "60", "80"));
  EXPECT_THAT(labels(0, 8e-4).texts, ElementsAre("0.0000", "0.0002", "0.0004", "0.0006", "0.0008"));
  EXPECT_EQ(labels(0, 8e-4).unit, "");
  EXPECT_THAT(labels(0, 2e-6).texts, ElementsAre("0.0", "0.5", "1.0", "1.5", "2.0"));
  EXPECT_EQ(labels(0, 2e-6).unit, "x 1e-6");
  EXPECT_THAT(labels(0, 2e8).texts, ElementsAre("0.0", "0.5", "1.0", "1.5", "2.0"));
  EXPECT_EQ(labels(0, 2e8).unit, "x 1e8");
  EXPECT_THAT(labels(0, 20'000).texts, ElementsAre("0", "5000", "10000", "15000", "20000"));
}

}  // namespace
}  // namespace vitrum
