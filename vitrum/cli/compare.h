#pragma once
#include <string>
#include <vector>

#include "vitrum/cli/verbs.h"

namespace vitrum {

// `models --compare`: presets (globs) and model directories in one table. With `data`, the
// directories' accuracy and speed on it too, the most accurate first; else the cheapest first.
int compare_models(const std::vector<std::string>& models, const std::string& data,
                   const CommonOptions& common);

}  // namespace vitrum
