// A verb on several processes.
#pragma once
#include <functional>

#include "vitrum/cli/verbs.h"
#include "vitrum/dist/launch.h"

namespace vitrum {

struct RankOptions {
  int64_t ranks = 0, timeout = 60;
};
std::vector<Option> rank_options(RankOptions& o);

// Runs `body` in each process of the run, with the options that fit it: rank 0 alone speaks, and
// threads and cards are dealt to the processes of a machine. An error of any ends all of them, and
// is told once. The group is null where there is one process only.
using RankBody = std::function<int(const CommonOptions&, Group* group)>;
int run_on_ranks(const RankOptions& o, const CommonOptions& common, const RankBody& body);

}  // namespace vitrum
