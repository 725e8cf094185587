#pragma once
#include <span>
#include <string>
#include <vector>

#include "vitrum/report/run.h"

namespace vitrum {

// Every plot of the page `output` beside it, as SVG and as PNG: report-loss.svg, report-loss.png,
// ... Returns the files' names.
std::vector<std::string> write_plots(std::span<const ReportRun> runs, const std::string& output,
                                     int threads = 1);

}  // namespace vitrum
