#include "vitrum/report/plots.h"

#include <fmt/format.h>

#include <filesystem>

#include "vitrum/core/files.h"
#include "vitrum/core/parallel.h"
#include "vitrum/train/draw.h"

namespace vitrum {
namespace {

constexpr size_t kMostClasses = 1000;  // of a picture of them all

}  // namespace

std::vector<std::string> write_plots(std::span<const ReportRun> runs, const std::string& output,
                                     int threads) {
  std::vector<std::pair<std::string, Picture>> plots;
  std::vector<RunCurves> curves;
  bool measured = false;
  for (const ReportRun& run : runs)
    curves.push_back({run.name, run.metrics}), measured |= !run.metrics.empty();
  constexpr std::array kPanels = {std::pair("loss", CurvePanel::kLoss),
                                  std::pair("accuracy", CurvePanel::kAccuracy),
                                  std::pair("learning-rate", CurvePanel::kLearningRate),
                                  std::pair("throughput", CurvePanel::kThroughput)};
  for (const auto& [name, panel] : kPanels)
    if (measured && has_points(panel, curves))
      plots.emplace_back(name, draw_curves(curves, {&panel, 1}));
  for (size_t i = 0; i < runs.size(); ++i)
    if (!runs[i].samples.empty() && runs[i].classes.size() <= kMostClasses)
      plots.emplace_back(
          runs.size() > 1 ? fmt::format("confusion-{}", i + 1) : "confusion",
          draw_confusion(confusion_of(runs[i]), runs[i].classes.size(), runs[i].classes));

  // Each twice: as SVG and, what takes time, as PNG.
  std::vector<std::string> files(2 * plots.size()), names;
  ThreadPool(threads).run(static_cast<int64_t>(files.size()), [&](int64_t i, int) {
    const auto at = static_cast<size_t>(i);
    files[at] = i % 2 == 0 ? to_svg(plots[at / 2].second) : to_png(plots[at / 2].second);
  });
  const std::filesystem::path page(output);
  for (size_t i = 0; i < files.size(); ++i) {
    names.push_back(fmt::format("{}-{}{}", page.stem().string(), plots[i / 2].first,
                                i % 2 == 0 ? ".svg" : ".png"));
    write_file_atomic((page.parent_path() / names.back()).string(), files[i]);
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].reconstructions.empty()) continue;
    names.push_back(fmt::format("{}-reconstructions{}.png", page.stem().string(),
                                runs.size() > 1 ? fmt::format("-{}", i + 1) : ""));
    write_file_atomic((page.parent_path() / names.back()).string(), runs[i].reconstructions);
  }
  return names;
}

}  // namespace vitrum
