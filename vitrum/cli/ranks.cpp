#include "vitrum/cli/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "vitrum/cli/failure.h"
#include "vitrum/core/parallel.h"
#include "vitrum/dist/use_mpi.h"

namespace vitrum {
namespace {

// Those that this process may use. Where a launcher has given it one, that is number 0.
int count_cards() {
  int cards = 0;
  std::error_code ignored;
  while (std::filesystem::exists(fmt::format("/dev/nvidia{}", cards), ignored)) ++cards;
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!visible) return cards;
  const std::string list = visible;
  return std::min(cards, static_cast<int>(std::count(list.begin(), list.end(), ',')) + 1);
}

CommonOptions share_of(const Group& group, CommonOptions common) {
  if (!group.first()) common.quiet = true, common.json = common.verbose = false;
  if (common.threads == 0) common.threads = std::max(1, available_cores() / group.local_size());
  const bool any_card = common.device == "cuda" || common.device == "auto";
  if (const int cards = any_card ? count_cards() : 0; cards > 1)
    common.device = fmt::format("cuda:{}", group.local_rank() % cards);
  return common;
}

}  // namespace

std::vector<Option> rank_options(RankOptions& o) {
  return {{.name = "--ranks",
           .target = &o.ranks,
           .help = "processes on this machine that share the work, at most `slices` of them",
           .value = "N",
           .min = 1,
           .max = 1024},
          {.name = "--rank-timeout",
           .target = &o.timeout,
           .help = "seconds without a sign of life after which a process counts as lost",
           .value = "N",
           .min = 1,
           .max = 86400}};
}

int run_on_ranks(const RankOptions& o, const CommonOptions& common, const RankBody& body) {
  const std::unique_ptr<Group> group =
      launch({.ranks = static_cast<int>(o.ranks), .timeout = std::chrono::seconds(o.timeout)});
  if (!group) return body(common, nullptr);
  try {
    use_mpi(*group);
    const int code = body(share_of(*group, common), group.get());
    group->finish();
    return code;
  } catch (const std::exception& error) {
    const Failure failure = failure_of(error);
    group->abort(failure.kind, failure.message);
    if (group->first()) throw;
    if (group->speaks()) print_error(failure.message);
    return static_cast<int>(failure.kind);
  }
}

}  // namespace vitrum
