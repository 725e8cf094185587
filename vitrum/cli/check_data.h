#pragma once
#include "vitrum/cli/verbs.h"
#include "vitrum/data/dataset.h"

namespace vitrum {

// `vitrum data DATA --check`: reads every image and prints what is wrong with which. Returns the
// exit code: 0 where nothing is, else 1. Classes of very different sizes are told, and no mistake.
int check_data(const DataSplits& splits, const CommonOptions& common);

}  // namespace vitrum
