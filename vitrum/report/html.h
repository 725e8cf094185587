// The page: one HTML file that needs no network and no server, whatever the names in it contain.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "vitrum/report/run.h"

namespace vitrum {

// One run, or several compared. `plots` are files beside the page, to be named on it.
std::string report_html(std::span<const ReportRun> runs, const std::vector<std::string>& plots);

}  // namespace vitrum
