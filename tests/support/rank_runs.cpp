#include "tests/support/rank_runs.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "vitrum/core/files.h"

namespace vitrum::test {
namespace {

Words joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Words on_ranks(int ranks) {
  Words words = {"--device", "cpu", "--threads", "1"};
  return ranks > 0 ? joined(words, {"--ranks", std::to_string(ranks)}) : words;
}

}  // namespace

std::vector<pid_t> children_of(pid_t parent) {
  const std::string id = std::to_string(parent);
  std::ifstream list("/proc/" + id + "/task/" + id + "/children");
  return {std::istream_iterator<pid_t>(list), {}};
}

bool has_ended(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string number, name, state;
  return !(file >> number >> name >> state) || state == "Z";
}

Words RankRuns::first(const Recipe& recipe, const std::string& out, int ranks,
                      const Words& more) const {
  const std::string file = tiny_ / (out + ".toml");
  write_file_atomic(file, to_toml(recipe));
  const Words words = {"train", "--recipe", file, "--out", tiny_ / out};
  return joined(joined(words, on_ranks(ranks)), more);
}

Words RankRuns::again(const std::string& out, int ranks, const Words& more) const {
  return joined(joined({"train", "--resume", tiny_ / out}, on_ranks(ranks)), more);
}

Words RankRuns::next(const Recipe& recipe, const std::string& out, int ranks,
                     const Words& more) const {
  if (std::filesystem::exists(tiny_ / (out + "/config.toml"))) return again(out, ranks, more);
  std::filesystem::remove_all(tiny_ / out);
  return first(recipe, out, ranks, more);
}

void RankRuns::expect_done(const Words& words) const {
  const Finished done = run(words);
  EXPECT_EQ(done.code, 0) << done.err;
}

void RankRuns::expect_same(const std::string& out, const std::string& than) const {
  SCOPED_TRACE(out);
  test::expect_same(outcome(tiny_ / out), outcome(tiny_ / than));
}

Recipe RankRuns::full() const {
  Recipe r = tiny_.recipe();
  r.slices = 8, r.accumulate = 2, r.epochs = 2, r.ema = 0.9, r.clip_norm = 0.5;
  r.mixup = 0.8, r.repeat = 2, r.augment = "crop-flip", r.erase = 0.3;
  r.checkpoint_every = 1;
  return r;
}

Recipe RankRuns::with_optimizer(OptimizerKind kind) const {
  Recipe r = tiny_.recipe();
  r.slices = 8, r.epochs = 1, r.optimizer = kind, r.ema = 0.9;
  return r;
}

}  // namespace vitrum::test
