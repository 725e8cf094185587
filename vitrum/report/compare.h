// What runs that are shown together have in common.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "vitrum/report/run.h"

namespace vitrum {

// A digest of the images that a run was evaluated on: of their classes in order, and of the pixels
// of a few where the data is open, else of what the recipe says of the data.
std::string evaluated_images(const ReportRun& run, const Recipe& recipe, const Dataset* test);

struct Comparison {
  std::vector<std::vector<int64_t>> groups;   // runs evaluated on the same images, by number
  std::vector<std::vector<int64_t>> classes;  // (shared by two runs or more, run): -1 where absent
};
// Classes are the same where they have the same name, wherever in their run they are; the second of
// one name is another class than the first.
Comparison compare_runs(std::span<const ReportRun> runs);

}  // namespace vitrum
