#pragma once
#include <cstdint>
#include <string>

#include "vitrum/cli/verbs.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {

struct DataBench {
  std::string data, augment;
  int64_t batch = 32, steps = 10, warmup = 2;
};

// How many images a second come ready for training: read, decoded, augmented, and nothing else.
int bench_data(const DataBench& bench, const ModelSpec& model, const CommonOptions& common);

}  // namespace vitrum
