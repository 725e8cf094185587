#include "vitrum/report/run.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <string_view>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/data/encode_png.h"
#include "vitrum/infer/model_program.h"
#include "vitrum/report/compare.h"
#include "vitrum/report/reconstructions.h"
#include "vitrum/train/predictions.h"
#include "vitrum/train/run_dir.h"

namespace vitrum {
namespace fs = std::filesystem;
namespace {

// config.toml has a line a key, as to_toml() writes it.
std::vector<std::pair<std::string, std::string>> recipe_lines(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> all;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (const size_t equals = line.find(" = "); equals != line.npos)
      all.emplace_back(line.substr(0, equals), line.substr(equals + 3));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return all;
}

// With max_steps a run may end before its epochs do.
int64_t planned_epochs(const Recipe& recipe, const std::vector<EpochMetrics>& rows) {
  if (recipe.max_steps == 0 || rows.empty() || rows[0].epoch < 1) return recipe.epochs;
  const int64_t a_epoch = std::max<int64_t>(1, rows[0].step / rows[0].epoch);
  return std::min(recipe.epochs, (recipe.max_steps + a_epoch - 1) / a_epoch);
}

RunState state_of(const ReportRun& run) {
  if (is_training(run.path)) return RunState::kRunning;
  if (run.metrics.empty()) return RunState::kEmpty;
  return run.metrics.back().epoch >= run.epochs ? RunState::kFinished : RunState::kStopped;
}

std::optional<ModelSpec> saved_model(const std::string& path) {
  const std::string model = model_of_run(path);
  if (model.empty()) return std::nullopt;
  return resolve_model(model);
}

ReportModel describe(const ModelSpec& spec) {
  const ModelConfig& c = spec.config;
  Graph g;
  model(Scope(g), g.input("image", {1, c.channels(), c.image_h(), c.image_w()}), c);
  return {spec.architecture, {c.channels(), c.image_h(), c.image_w()}, summarize(g)};
}

// Does what may fail without making the rest useless, and notes it.
template <class Action>
void attempt(ReportRun& run, const char* missing, const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    run.notes.push_back(fmt::format("{}: {}", missing, error.what()));
  }
}

// Every class that is named or that occurs has a name.
void complete_classes(ReportRun& run) {
  int most = static_cast<int>(run.classes.size()) - 1;
  for (const SampleResult& s : run.samples) most = std::max({most, s.label, s.guess});
  for (auto i = static_cast<int>(run.classes.size()); i <= most; ++i)
    run.classes.push_back(std::to_string(i));
}

}  // namespace

// The last one is what the predictions are of.
std::string model_of_run(const std::string& path) {
  for (const char* part : {"/last", "/best"})
    if (is_model_dir(path + part)) return path + part;
  return "";
}

ReportRun read_run(const std::string& path) {
  ReportRun run{.path = path, .name = fs::path(path).filename().string()};
  if (run.name.empty() || run.name == "." || run.name == "..")
    run.name = fs::weakly_canonical(path).filename().string();
  const Recipe recipe = recipe_of_run(path);
  run.recipe = recipe_lines(read_file(config_path(path)));
  run.metrics = MetricsLog::load(path);
  run.epochs = planned_epochs(recipe, run.metrics);
  run.state = state_of(run);
  attempt(run, "No environment", [&] { run.environment = read_file(path + "/env.json", 1 << 20); });
  attempt(run, "No predictions", [&] { run.samples = load_predictions(path); });
  attempt(run, "No model", [&] {
    if (const auto spec = saved_model(path))
      run.model = describe(*spec), run.classes = spec->labels;
  });
  complete_classes(run);
  run.evaluated = evaluated_images(run, recipe, nullptr);
  return run;
}

Confusion confusion_of(const ReportRun& run) {
  std::map<std::pair<int, int>, int64_t> counts;
  for (const SampleResult& s : run.samples) ++counts[{s.label, s.guess}];
  Confusion cells;
  for (const auto& [pair, images] : counts) cells.push_back({pair.first, pair.second, images});
  return cells;
}

// Of images that were not trained on, where there are any.
static void add_reconstructions(ReportRun& run, const Recipe& recipe, const TrainData& data,
                                int threads) {
  constexpr int64_t kPhotos = 8;
  const std::string model = model_of_run(run.path);
  if (recipe.task != Task::kMae || model.empty() || !has_decoder(model)) return;
  attempt(run, "No reconstructions", [&] {
    const Dataset& images = data.test().size() > 0 ? data.test() : data.train();
    const Image sheet = sheet_of(
        reconstruct(model, recipe, images, kPhotos, {.device = "cpu", .threads = threads}));
    if (!sheet.pixels.empty()) run.reconstructions = encode_png(sheet);
  });
}

void add_pictures(ReportRun& run, const Overlay& overlay, int threads) {
  attempt(run, "No pictures, the data cannot be opened", [&] {
    const Recipe recipe = recipe_of_run(run.path);
    const TrainData data(recipe, {.skipped = load_skipped(run.path)});
    add_test_images(run, data.test(), overlay, threads);
    run.evaluated = evaluated_images(run, recipe, &data.test());
    run.train_images = data.train().size();
    if (const auto spec = saved_model(run.path))
      add_training_samples(run, recipe, *spec, data.train(), threads);
    add_reconstructions(run, recipe, data, threads);
  });
}

}  // namespace vitrum
