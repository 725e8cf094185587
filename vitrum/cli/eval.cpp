#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "vitrum/cli/evaluate.h"
#include "vitrum/cli/image_inputs.h"
#include "vitrum/core/error.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/progress.h"
#include "vitrum/core/utf8.h"
#include "vitrum/infer/predict_all.h"

namespace vitrum {
namespace {

constexpr size_t kWholeTable = 1000;  // classes

struct Options : ModelOptions {
  std::string data, split;
  int64_t batch_size = 64;
};

// confusion[true class][predicted class]; of many classes, whose table would be nearly all zeros,
// the [true class, predicted class, images] that occurred.
void put_confusion(JsonWriter& json, const Evaluation& e) {
  const size_t classes = e.per_class.size();
  if (classes > kWholeTable) {
    json.key("confusion_cells").begin_array();
    for (const ConfusionCell& c : e.confusion)
      json.begin_array().value(c.truth).value(c.guess).value(c.count).end_array();
    json.end_array();
    return;
  }
  json.key("confusion").begin_array();
  auto cell = e.confusion.begin();
  for (size_t truth = 0; truth < classes; ++truth) {
    std::vector<int64_t> row(classes);
    for (; cell != e.confusion.end() && static_cast<size_t>(cell->truth) == truth; ++cell)
      row[static_cast<size_t>(cell->guess)] = cell->count;
    json.begin_array();
    for (const int64_t n : row) json.value(n);
    json.end_array();
  }
  json.end_array();
}

std::string to_json(const Evaluation& e) {
  JsonWriter json;
  json.begin_object()
      .field("images", e.images)
      .field("top1", e.top1)
      .field("top5", e.top5)
      .field("loss", e.loss);
  json.key("per_class").begin_array();
  for (double accuracy : e.per_class) json.value(accuracy);
  json.end_array();
  put_confusion(json, e);
  return json.end_object().str() + "\n";
}

// Rows are the data's classes; accuracies are found under the model's.
std::string to_text(const Evaluation& e, const std::vector<std::string>& classes,
                    const std::vector<int>& outputs) {
  constexpr size_t kShown = 20;
  std::string out = fmt::format("images  {}\ntop-1   {:.2f} %\ntop-5   {:.2f} %\nloss    {:.4f}\n",
                                with_commas(e.images), 100 * e.top1, 100 * e.top5, e.loss);
  if (classes.size() > kShown) return out;
  out += "\n";
  for (size_t i = 0; i < classes.size(); ++i) {
    const auto output = static_cast<size_t>(outputs[i]);
    if (outputs[i] < 0 || output >= e.per_class.size() || std::isnan(e.per_class[output])) continue;
    const std::string name = fit_columns(classes[i], 29);
    const auto pad = static_cast<size_t>(30 - columns(name));
    out += fmt::format("  {}{}{:6.2f} %\n", name, std::string(pad, ' '), 100 * e.per_class[output]);
  }
  return out;
}

int run(const Options& o, const CommonOptions& common) {
  PredictorOptions options = predictor_options(o, common);
  options.max_batch = o.batch_size;
  Predictor predictor(o.model, options);
  note_preprocessing(common, predictor.model());
  if (predictor.classes() == 0) fail_usage("{} has no head to evaluate", o.model);
  const std::unique_ptr<Dataset> data = open_split(o.data, o.split, options.decode);
  const LabelMatch match = match_labels(*data, predictor.model());
  if (match.by_position && !predictor.model().labels.empty())
    info(common, "no class of the data is a label of the model; they are taken in their order");
  if (common.verbose)
    info(common, fmt::format("evaluating on {} in {}", predictor.backend().name(),
                             name_of(predictor.precision())));
  const Evaluation result = evaluate(predictor, *data, match, common);
  common.json ? print_out(to_json(result))
              : print_text(to_text(result, data->classes(), match.outputs));
  return 0;
}

}  // namespace

Evaluation evaluate(Predictor& predictor, const Dataset& data, const LabelMatch& match,
                    const CommonOptions& common) {
  const auto last = std::max_element(match.outputs.begin(), match.outputs.end());
  EvaluationTotals totals(match.outputs.empty() ? 0 : *last + 1);
  Progress progress("eval", data.size(), common.quiet);
  const auto add = [&](const PredictedSample& sample) {
    totals.add(sample.logits, match.outputs[static_cast<size_t>(data.label(sample.index))]);
    progress.update(sample.index + 1);
    return true;
  };
  predict_all(predictor, data, {.threads = static_cast<int>(common.threads)}, add);
  progress.finish();
  return totals.result();
}

Verb eval_verb() {
  auto o = std::make_shared<Options>();
  std::vector<Option> options = {
      {.name = "--data",
       .target = &o->data,
       .help = "data set, as for `vitrum data`; class names are matched with the model's labels",
       .value = "DATA",
       .required = true},
      {"--split", &o->split, "train, test or val; by default what training evaluates on", "NAME"},
      {.name = "--batch-size",
       .target = &o->batch_size,
       .help = "images computed at once",
       .min = 1,
       .max = 65536}};
  for (Option& option : model_options(*o)) options.push_back(std::move(option));
  return {.name = "eval",
          .summary = "measure a model's accuracy on a data set",
          .examples = {"eval --model runs/1/best --data fashion-mnist",
                       "eval --model DIR --data folder:flowers --split train",
                       "eval --model DIR --data csv:labels.csv --json"},
          .options = std::move(options),
          .run = [o](const CommonOptions& common) { return run(*o, common); }};
}

}  // namespace vitrum
