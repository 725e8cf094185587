#include "vitrum/report/plots.h"

#include <fmt/format.h>

#include <filesystem>

#include "vitrum/core/files.h"
#include "vitrum/train/draw.h"

namespace vitrum {
namespace {

constexpr size_t kMostClasses = 1000;  // of a picture of them all

std::vector<std::vector<int64_t>> confusion_of(const ReportRun& run) {
  const size_t n = run.classes.size();
  std::vector<std::vector<int64_t>> counts(n, std::vector<int64_t>(n));
  for (const SampleResult& s : run.samples)
    ++counts[static_cast<size_t>(s.label)][static_cast<size_t>(s.guess)];
  return counts;
}

}  // namespace

std::vector<std::string> write_plots(std::span<const ReportRun> runs, const std::string& output) {
  const std::filesystem::path page(output);
  std::vector<std::string> names;
  const auto write = [&](const std::string& what, const Picture& picture) {
    const std::string stem = fmt::format("{}-{}", page.stem().string(), what);
    for (const char* kind : {".svg", ".png"}) {
      write_file_atomic((page.parent_path() / (stem + kind)).string(),
                        kind[1] == 's' ? to_svg(picture) : to_png(picture));
      names.push_back(stem + kind);
    }
  };

  std::vector<RunCurves> curves;
  bool measured = false;
  for (const ReportRun& run : runs)
    curves.push_back({run.name, run.metrics}), measured |= !run.metrics.empty();
  constexpr std::array kPanels = {std::pair("loss", CurvePanel::kLoss),
                                  std::pair("accuracy", CurvePanel::kAccuracy),
                                  std::pair("learning-rate", CurvePanel::kLearningRate),
                                  std::pair("throughput", CurvePanel::kThroughput)};
  for (const auto& [name, panel] : kPanels)
    if (measured) write(name, draw_curves(curves, {&panel, 1}));
  for (size_t i = 0; i < runs.size(); ++i)
    if (!runs[i].samples.empty() && runs[i].classes.size() <= kMostClasses)
      write(runs.size() > 1 ? fmt::format("confusion-{}", i + 1) : "confusion",
            draw_confusion(confusion_of(runs[i]), runs[i].classes));
  return names;
}

}  // namespace vitrum
