#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "vitrum/core/utf8.h"
#include "vitrum/train/draw.h"
#include "vitrum/train/ticks.h"

namespace vitrum {
namespace {

constexpr int kPanelWidth = 360, kPlotHeight = 190;   // pixels
constexpr int kLeft = 58, kRight = 18, kBottom = 46;  // margins inside a panel
constexpr int kLegendTop = 47, kLegendLine = 17;      // baselines
constexpr size_t kDotLimit = 40;                      // more epochs than this: a line without dots
constexpr int kNameColumns = 18;                      // longer names of runs are cut

struct Series {
  std::string name;
  int colour = 0;
  bool dotted = false;
  std::vector<Point> points = {};
};

struct Panel {
  std::string_view title;
  std::string_view last_format;  // how the legend writes the newest value
  double ceiling;                // what the value cannot pass: the axis ends there at the latest
  std::vector<Series> series = {};
};

// What a panel shows: one side, or training and test.
struct Content {
  std::string_view title, last_format;
  double ceiling, factor;
  std::string_view train_name;  // of one run
  double EpochMetrics::*train;
  double EpochMetrics::*test;
};
constexpr std::array kContents = {
    Content{"Loss", "{:.4f}", INFINITY, 1, "train", &EpochMetrics::train_loss,
            &EpochMetrics::test_loss},
    Content{"Accuracy, %", "{:.2f}", 100, 100, "train", &EpochMetrics::train_acc,
            &EpochMetrics::test_acc},
    Content{"Learning rate", "{:.3g}", INFINITY, 1, "lr", &EpochMetrics::lr, nullptr},
    Content{"Images a second", "{:.0f}", INFINITY, 1, "training", &EpochMetrics::images_per_second,
            nullptr}};

// Maps data to pixels of one panel.
struct Axes {
  Ticks x, y;
  double left, top;
  double px(double v) const { return left + scale(v, x) * (kPanelWidth - kLeft - kRight); }
  double py(double v) const { return top + (1 - scale(v, y)) * kPlotHeight; }
  double right() const { return left + kPanelWidth - kLeft - kRight; }
  double bottom() const { return top + kPlotHeight; }

 private:
  static double scale(double v, const Ticks& t) {
    return (v - t.at.front()) / (t.at.back() - t.at.front());
  }
};

std::vector<Point> points_of(std::span<const EpochMetrics> rows, double EpochMetrics::*member,
                             double factor) {
  std::vector<Point> points;
  for (const EpochMetrics& row : rows)
    if (std::abs(row.*member) < 1e100)  // also false for NaN
      points.push_back({static_cast<double>(row.epoch), factor * (row.*member)});
  return points;
}

Panel panel_of(const Content& c, std::span<const RunCurves> runs) {
  Panel panel{c.title, c.last_format, c.ceiling};
  for (size_t i = 0; i < runs.size(); ++i) {
    const bool several = runs.size() > 1;
    const std::string name = fit_columns(runs[i].name, kNameColumns);
    const auto own = static_cast<int>(i);
    const std::string train = !several ? std::string(c.train_name)
                              : c.test ? name + " train"
                                       : name;
    panel.series.push_back({train,
                            several  ? own
                            : c.test ? 0
                                     : 2,
                            several && c.test, points_of(runs[i].rows, c.train, c.factor)});
    if (c.test)
      panel.series.push_back({several ? name + " test" : "test", several ? own : 1, false,
                              points_of(runs[i].rows, c.test, c.factor)});
  }
  std::erase_if(panel.series, [](const Series& s) { return s.points.empty(); });
  return panel;
}

// Lowest and highest y of all series; 0 and 1 where there is nothing.
std::pair<double, double> range_of(const Panel& panel) {
  double low = INFINITY, high = -INFINITY;
  for (const Series& s : panel.series)
    for (const Point& p : s.points) low = std::min(low, p.y), high = std::max(high, p.y);
  return low <= high ? std::pair(low, high) : std::pair(0.0, 1.0);
}

// First and last epoch of all runs; one epoch still has a width.
std::pair<double, double> epochs_of(std::span<const RunCurves> runs) {
  double first = INFINITY, last = -INFINITY;
  for (const RunCurves& run : runs)
    for (const EpochMetrics& row : run.rows)
      first = std::min<double>(first, row.epoch), last = std::max<double>(last, row.epoch);
  return first <= last ? std::pair(std::min(first, last - 1), last) : std::pair(0.0, 1.0);
}

Axes axes_of(const Panel& panel, Point corner, std::pair<double, double> epochs) {
  auto [low, high] = range_of(panel);
  // Start at zero where that costs little height: it makes heights comparable.
  const bool single =
      std::ranges::all_of(panel.series, [](const Series& s) { return s.points.size() < 2; });
  if (single || low < 0.5 * high) low = std::min(low, 0.0);
  Axes axes{nice_ticks(epochs.first, epochs.second, 5, true), nice_ticks(low, high, 5),
            corner.x + kLeft, corner.y};
  auto& y = axes.y.at;
  if (y.back() > panel.ceiling && high <= panel.ceiling) y.back() = panel.ceiling;
  // Whole ticks beside the data would only waste width: the axis spans the epochs themselves.
  auto& x = axes.x.at;
  x.front() = epochs.first, x.back() = epochs.second;
  return axes;
}

void draw_axes(Picture& picture, const Axes& axes) {
  auto& shapes = picture.shapes;
  const AxisLabels labels = axis_labels(axes.y);
  for (size_t i = 0; i < axes.y.at.size(); ++i) {
    const double y = axes.py(axes.y.at[i]);
    shapes.push_back(LineShape{{{axes.left, y}, {axes.right(), y}}, Ink::kGrid});
    shapes.push_back(
        TextShape{{axes.left - 8, y + 4}, labels.texts[i], 11, Ink::kText, Anchor::kEnd});
  }
  if (!labels.unit.empty())
    shapes.push_back(TextShape{{axes.left + 4, axes.top - 3}, labels.unit, 10});
  const double bottom = axes.bottom();
  shapes.push_back(LineShape{{{axes.left, bottom}, {axes.right(), bottom}}, Ink::kAxis});
  double labelled = -INFINITY;
  for (const double x : axes.x.at) {
    const double at = axes.px(x);
    const bool last = x == axes.x.at.back();
    if (at - labelled < 26 || (!last && axes.px(axes.x.at.back()) - at < 26)) continue;
    shapes.push_back(LineShape{{{at, bottom}, {at, bottom + 4}}, Ink::kAxis});
    shapes.push_back(
        TextShape{{at, bottom + 18}, fmt::format("{:g}", x), 11, Ink::kText, Anchor::kMiddle});
    labelled = at;
  }
  shapes.push_back(TextShape{
      {(axes.left + axes.right()) / 2, bottom + 36}, "epoch", 11, Ink::kText, Anchor::kMiddle});
}

void draw_series(Picture& picture, const Axes& axes, const Series& s) {
  LineShape line{.ink = Ink::kSeries, .series = s.colour, .dotted = s.dotted};
  for (const Point& p : s.points) line.points.push_back({axes.px(p.x), axes.py(p.y)});
  const bool all = s.points.size() <= kDotLimit && !s.dotted;
  for (const Point& p : line.points)
    if (const bool last = &p == &line.points.back(); all || last)
      picture.shapes.push_back(DotShape{p, last ? 3.5 : 2.5, s.colour});
  picture.shapes.push_back(std::move(line));
}

// Below the title: a dot, the name and the newest value of each series, in as many lines as it
// takes. Returns that number; nothing is drawn without a picture.
int draw_legend(Picture* picture, const Panel& panel, double left) {
  double x = left + kLeft;
  int line = 0;
  for (const Series& s : panel.series) {
    const std::string text =
        s.name + " " + fmt::format(fmt::runtime(panel.last_format), s.points.back().y);
    const double width = 30 + 6.2 * columns(text);
    if (x > left + kLeft && x + width > left + kPanelWidth) x = left + kLeft, ++line;
    const double y = kLegendTop + line * kLegendLine;
    if (picture) {
      if (s.dotted)
        picture->shapes.push_back(
            LineShape{{{x, y - 4}, {x + 9, y - 4}}, Ink::kSeries, s.colour, true});
      else
        picture->shapes.push_back(DotShape{{x + 4, y - 4}, 4, s.colour});
      picture->shapes.push_back(TextShape{{x + 13, y}, text, 11});
    }
    x += width;
  }
  return line + 1;
}

}  // namespace

bool has_points(CurvePanel panel, std::span<const RunCurves> runs) {
  return !panel_of(kContents[static_cast<size_t>(panel)], runs).series.empty();
}

Picture draw_curves(std::span<const RunCurves> runs, std::span<const CurvePanel> panels) {
  std::vector<Panel> all;
  int lines = 1;
  for (const CurvePanel panel : panels) {
    all.push_back(panel_of(kContents[static_cast<size_t>(panel)], runs));
    lines = std::max(lines, draw_legend(nullptr, all.back(), 0));
  }
  const double top = kLegendTop + lines * kLegendLine;
  Picture picture{.width = static_cast<int>(all.size()) * kPanelWidth,
                  .height = static_cast<int>(top) + kPlotHeight + kBottom,
                  .title = all.size() == 1 ? std::string(all[0].title) : "Training curves"};
  for (size_t i = 0; i < all.size(); ++i) {
    const double left = static_cast<double>(i) * kPanelWidth;
    picture.shapes.push_back(
        TextShape{{left + kLeft, 26}, std::string(all[i].title), 14, Ink::kHead});
    const Axes axes = axes_of(all[i], {left, top}, epochs_of(runs));
    draw_axes(picture, axes);
    for (const Series& s : all[i].series) draw_series(picture, axes, s);
    draw_legend(&picture, all[i], left);
  }
  return picture;
}

Picture draw_curves(std::span<const EpochMetrics> rows) {
  const RunCurves run{"", rows};
  std::vector<CurvePanel> panels = {CurvePanel::kLoss, CurvePanel::kAccuracy,
                                    CurvePanel::kLearningRate};
  // A run without labels has none, and one that has just begun has nothing at all.
  if (!rows.empty() && !has_points(CurvePanel::kAccuracy, {&run, 1}))
    std::erase(panels, CurvePanel::kAccuracy);
  return draw_curves({&run, 1}, panels);
}

}  // namespace vitrum
