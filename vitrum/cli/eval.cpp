#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "vitrum/cli/verbs.h"
#include "vitrum/core/error.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/parallel.h"
#include "vitrum/core/progress.h"
#include "vitrum/core/utf8.h"
#include "vitrum/data/dataset.h"
#include "vitrum/infer/evaluator.h"

namespace vitrum {
namespace {

struct Options {
  std::string model, data, split;
  int64_t batch_size = 64;
};

std::string to_json(const Evaluation& e) {
  JsonWriter json;
  json.begin_object()
      .field("images", e.images)
      .field("top1", e.top1)
      .field("top5", e.top5)
      .field("loss", e.loss);
  json.key("per_class").begin_array();
  for (double accuracy : e.per_class) json.value(accuracy);
  json.end_array().key("confusion").begin_array();
  for (const auto& row : e.confusion) {
    json.begin_array();
    for (int64_t n : row) json.value(n);
    json.end_array();
  }
  return json.end_array().end_object().str() + "\n";
}

std::string to_text(const Evaluation& e, const std::vector<std::string>& classes) {
  constexpr size_t kShown = 20;
  std::string out = fmt::format("images  {}\ntop-1   {:.2f} %\ntop-5   {:.2f} %\nloss    {:.4f}\n",
                                with_commas(e.images), 100 * e.top1, 100 * e.top5, e.loss);
  if (classes.size() > kShown) return out;
  out += "\n";
  for (size_t i = 0; i < std::min(classes.size(), e.per_class.size()); ++i) {
    const std::string name = fit_columns(classes[i], 29);
    const auto pad = static_cast<size_t>(30 - columns(name));
    if (!std::isnan(e.per_class[i]))
      out += fmt::format("  {}{}{:6.2f} %\n", name, std::string(pad, ' '), 100 * e.per_class[i]);
  }
  return out;
}

// Reading files costs more than computing on small images, so it gets as many threads as there are.
LoaderConfig loader_config(const ModelSpec& spec, const Options& o, const CommonOptions& common) {
  LoaderConfig config;
  config.batch_size = o.batch_size;
  config.threads = common.threads > 0 ? static_cast<int>(common.threads) : available_cores();
  config.preprocess = preprocess_of(spec);
  return config;
}

int run(const Options& o, const CommonOptions& common) {
  const ModelSpec spec = resolve_model(o.model);
  if (!is_model_dir(o.model))
    fail_usage("{} is a preset without weights; give a model directory, such as the best/ of a run",
               o.model);
  const std::unique_ptr<Dataset> dataset = open_split(o.data, o.split);
  const auto classes = static_cast<int64_t>(dataset->classes().size());
  if (classes > spec.config.classes)
    fail_input("{} has {} classes, the model {} only {}", o.data, classes, o.model,
               spec.config.classes);

  const std::unique_ptr<Backend> backend = open_backend(common);
  Graph parameters;
  trace(parameters, spec, 1);
  ParamStore store(parameters, *backend);
  load_weights(o.model, spec, store);
  const DType compute = compute_precision(common);
  if (common.verbose)
    info(common, fmt::format("evaluating on {} in {}", backend->name(), name_of(compute)));

  Evaluator evaluator(spec, store, std::min(o.batch_size, std::max<int64_t>(dataset->size(), 1)),
                      compute);
  LoaderConfig config = loader_config(spec, o, common);
  config.batch_size = evaluator.batch();
  Loader loader(*dataset, config);
  Progress progress("eval", loader.batches(), common.quiet);
  const Evaluation result = evaluator.run(loader, classes, [&](int64_t done) {
    progress.update(done);
    return true;
  });
  progress.finish();
  print_out(common.json ? to_json(result) : to_text(result, dataset->classes()));
  return 0;
}

}  // namespace

Verb eval_verb() {
  auto o = std::make_shared<Options>();
  return {.name = "eval",
          .summary = "measure a model's accuracy on a data set",
          .examples = {"eval --model runs/1/best --data fashion-mnist",
                       "eval --model DIR --data folder:flowers --split train",
                       "eval --model DIR --data csv:labels.csv --json"},
          .options = {{.name = "--model",
                       .target = &o->model,
                       .help = "model directory",
                       .value = "DIR",
                       .required = true},
                      {.name = "--data",
                       .target = &o->data,
                       .help = "data set, as for `vitrum data`",
                       .value = "DATA",
                       .required = true},
                      {"--split", &o->split,
                       "train, test or val; by default what training evaluates on", "NAME"},
                      {.name = "--batch-size",
                       .target = &o->batch_size,
                       .help = "images computed at once",
                       .min = 1,
                       .max = 65536}},
          .run = [o](const CommonOptions& common) { return run(*o, common); }};
}

}  // namespace vitrum
