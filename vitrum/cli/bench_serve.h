// `vitrum bench --mode serve`: how long a server takes to answer at a given rate.
#pragma once
#include <string>
#include <vector>

#include "vitrum/cli/verbs.h"

namespace vitrum {

struct ServeLoad {
  std::string url, rate = "100";
  int64_t connections = 64;
  double duration = 10;
  std::vector<std::string> files, headers;
};

std::vector<Option> serve_load_options(ServeLoad& load);
int bench_serve(const ServeLoad& load, const CommonOptions& common);

}  // namespace vitrum
