#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "vitrum/train/svg.h"
#include "vitrum/train/svg_text.h"

namespace vitrum {
namespace {

constexpr int kPanelWidth = 360, kHeight = 300;                  // pixels
constexpr int kLeft = 58, kRight = 18, kTop = 64, kBottom = 46;  // margins inside a panel
constexpr size_t kDotLimit = 40;  // more epochs than this: a line without dots

struct Point {
  double x, y;
};

struct Series {
  std::string_view name;
  int colour;  // s0, s1, s2 of the style sheet
  std::vector<Point> points;
};

struct Panel {
  std::string_view title;
  std::string_view last_format;  // how the legend writes the newest value
  double floor, ceiling;         // what the value cannot pass: the axis ends there at the latest
  std::vector<Series> series;
};

// Maps data to pixels of one panel.
struct Axes {
  Ticks x, y;
  int left;
  double px(double v) const { return left + scale(v, x) * (kPanelWidth - kLeft - kRight); }
  double py(double v) const { return kHeight - kBottom - scale(v, y) * (kHeight - kTop - kBottom); }

 private:
  static double scale(double v, const Ticks& t) {
    return (v - t.at.front()) / (t.at.back() - t.at.front());
  }
};

Series series_of(std::string_view name, int colour, const std::vector<EpochMetrics>& rows,
                 double EpochMetrics::*member, double factor = 1) {
  Series s{name, colour, {}};
  for (const EpochMetrics& row : rows)
    if (std::abs(row.*member) < 1e100)  // also false for NaN
      s.points.push_back({static_cast<double>(row.epoch), factor * (row.*member)});
  return s;
}

// Lowest and highest y of all series; 0 and 1 where there is nothing.
std::pair<double, double> range_of(const Panel& panel) {
  double low = INFINITY, high = -INFINITY;
  for (const Series& s : panel.series)
    for (const Point& p : s.points) low = std::min(low, p.y), high = std::max(high, p.y);
  return low <= high ? std::pair(low, high) : std::pair(0.0, 1.0);
}

Axes axes_of(const Panel& panel, int left, double first_epoch, double last_epoch) {
  auto [low, high] = range_of(panel);
  // Start at the floor where that costs little height: it makes heights comparable.
  const bool single =
      std::ranges::all_of(panel.series, [](const Series& s) { return s.points.size() < 2; });
  if (single || low - panel.floor < 0.5 * (high - panel.floor)) low = std::min(low, panel.floor);
  Axes axes{nice_ticks(first_epoch, last_epoch, 5, true), nice_ticks(low, high, 5), left + kLeft};
  auto& y = axes.y.at;
  if (y.back() > panel.ceiling && high <= panel.ceiling) y.back() = panel.ceiling;
  // Whole ticks beside the data would only waste width: the axis spans the epochs themselves.
  auto& x = axes.x.at;
  x.front() = first_epoch, x.back() = last_epoch;
  return axes;
}

template <class... Args>
void put(std::string& svg, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(svg), format, std::forward<Args>(args)...);
}

void draw_axes(std::string& svg, const Axes& axes) {
  const double right = axes.left + kPanelWidth - kLeft - kRight, bottom = kHeight - kBottom;
  for (const double y : axes.y.at) {
    put(svg, "<path class=\"grid\" d=\"M{} {:.1f}H{}\"/>", axes.left, axes.py(y), right);
    put(svg, "<text class=\"small\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
        axes.left - 8, axes.py(y) + 4, tick_label(y, axes.y.step));
  }
  put(svg, "<path class=\"axis\" d=\"M{} {}H{}\"/>", axes.left, bottom, right);
  double labelled = -INFINITY;
  for (const double x : axes.x.at) {
    const double at = axes.px(x);
    const bool last = x == axes.x.at.back();
    if (at - labelled < 26 || (!last && axes.px(axes.x.at.back()) - at < 26)) continue;
    put(svg, "<path class=\"axis\" d=\"M{:.1f} {}v4\"/>", at, bottom);
    put(svg, "<text class=\"small\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:g}</text>\n", at,
        bottom + 18, x);
    labelled = at;
  }
  put(svg, "<text class=\"small\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">epoch</text>\n",
      (axes.left + right) / 2, kHeight - 10);
}

void draw_series(std::string& svg, const Axes& axes, const Series& s) {
  if (s.points.empty()) return;
  put(svg, "<polyline class=\"line s{}\" points=\"", s.colour);
  for (const Point& p : s.points) put(svg, "{:.1f},{:.1f} ", axes.px(p.x), axes.py(p.y));
  svg += "\"/>\n";
  const bool all = s.points.size() <= kDotLimit;
  for (const Point& p : s.points)
    if (all || &p == &s.points.back())
      put(svg, "<circle class=\"d{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"/>\n", s.colour,
          axes.px(p.x), axes.py(p.y), &p == &s.points.back() ? 3.5 : 2.5);
}

// Below the title: a dot, the name and the newest value of each series.
void draw_legend(std::string& svg, const Panel& panel, int left) {
  int x = left + kLeft;
  for (const Series& s : panel.series) {
    if (s.points.empty()) continue;
    const std::string text = fmt::format(
        "{} {}", s.name, fmt::format(fmt::runtime(panel.last_format), s.points.back().y));
    put(svg, "<circle class=\"d{}\" cx=\"{}\" cy=\"43\" r=\"4\"/>", s.colour, x + 4);
    put(svg, "<text class=\"small\" x=\"{}\" y=\"47\">{}</text>\n", x + 13, text);
    x += 30 + 7 * static_cast<int>(text.size());
  }
}

void draw_panel(std::string& svg, const Panel& panel, int left, double first_epoch,
                double last_epoch) {
  put(svg, "<text class=\"head\" x=\"{}\" y=\"26\">{}</text>\n", left + kLeft, panel.title);
  const Axes axes = axes_of(panel, left, first_epoch, last_epoch);
  draw_axes(svg, axes);
  for (const Series& s : panel.series) draw_series(svg, axes, s);
  draw_legend(svg, panel, left);
}

}  // namespace

std::string curves_svg(const std::vector<EpochMetrics>& rows) {
  const std::vector<Panel> panels = {
      {"Loss",
       "{:.4f}",
       0,
       INFINITY,
       {series_of("train", 0, rows, &EpochMetrics::train_loss),
        series_of("test", 1, rows, &EpochMetrics::test_loss)}},
      {"Accuracy, %",
       "{:.2f}",
       0,
       100,
       {series_of("train", 0, rows, &EpochMetrics::train_acc, 100),
        series_of("test", 1, rows, &EpochMetrics::test_acc, 100)}},
      {"Learning rate", "{:.3g}", 0, INFINITY, {series_of("lr", 2, rows, &EpochMetrics::lr)}}};

  const auto by_epoch = [](const EpochMetrics& a, const EpochMetrics& b) {
    return a.epoch < b.epoch;
  };
  const auto [first, last] = std::minmax_element(rows.begin(), rows.end(), by_epoch);
  const double to = rows.empty() ? 1 : last->epoch;
  const double from =
      rows.empty() ? 0 : std::min<double>(first->epoch, to - 1);  // one epoch still has a width

  std::string svg =
      svg_begin(static_cast<int>(panels.size()) * kPanelWidth, kHeight, "Training curves");
  for (size_t i = 0; i < panels.size(); ++i)
    draw_panel(svg, panels[i], static_cast<int>(i) * kPanelWidth, from, to);
  return svg + "</svg>\n";
}

}  // namespace vitrum
