#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "vitrum/cli/evaluate.h"
#include "vitrum/cli/image_inputs.h"
#include "vitrum/cli/words.h"
#include "vitrum/core/error.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/progress.h"
#include "vitrum/core/utf8.h"
#include "vitrum/infer/predict_all.h"
#include "vitrum/train/setup.h"

namespace vitrum {
namespace {

constexpr size_t kWholeTable = 1000;  // classes

struct Options : ModelOptions, WordOptions {
  std::string data, split, shard, tta = "none";
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

// The images to evaluate on: a split of the data, or what the model's run held out of it.
class EvalImages {
 public:
  EvalImages(const Options& o, const ModelSpec& model, const DecodeOptions& decode, int threads) {
    if (o.split == "holdout")
      hold_out(o, model.held_out, decode, threads);
    else
      split_ = open_split(o.data, o.split, decode);
    if (run_ && !o.shard.empty()) split_ = every_image(run_->test());
    if (!o.shard.empty()) split_ = take_shard(std::move(split_), o.shard);
  }
  const Dataset& operator*() const { return split_ ? *split_ : run_->test(); }

 private:
  static std::unique_ptr<Dataset> every_image(const Dataset& data) {
    std::vector<int64_t> all(static_cast<size_t>(data.size()));
    std::iota(all.begin(), all.end(), int64_t{0});
    return select_images(data, std::move(all));
  }

  void hold_out(const Options& o, const HeldOut& held, const DecodeOptions& decode, int threads) {
    if (held.fraction == 0)
      fail_usage(
          "--split holdout: {} does not say that its run held anything out (holdout = X in its "
          "recipe); leave it out, or give train, test or val",
          o.model);
    Recipe recipe;
    recipe.data = o.data, recipe.holdout = held.fraction, recipe.seed = held.seed;
    recipe.subset = held.subset;
    if (held.skips_bad) recipe.on_bad_image = OnBadImage::kSkip;
    run_ =
        std::make_unique<TrainData>(recipe, TrainDataOptions{.threads = threads, .decode = decode});
    if (run_->held_out() != held)
      fail_input(
          "{}: these are not the images that {} was trained with: {} now, {} then{}; give its own "
          "data for --split holdout",
          o.data, o.model, run_->held_out().images, held.images,
          run_->held_out().images == held.images ? ", of other classes" : "");
  }

  std::unique_ptr<TrainData> run_;
  std::unique_ptr<Dataset> split_;
};

// Of the model's outputs, as far as anything names them: its labels, or the data's classes.
std::vector<std::string> output_names(const Evaluation& e, const ModelSpec& model,
                                      const Dataset& data, const LabelMatch& match) {
  std::vector<std::string> names(e.per_class.size());
  for (size_t i = 0; i < match.outputs.size(); ++i)
    if (const auto output = static_cast<size_t>(match.outputs[i]);
        match.outputs[i] >= 0 && output < names.size())
      names[output] = data.classes()[i];
  for (size_t i = 0; i < std::min(names.size(), model.labels.size()) && !match.by_position; ++i)
    names[i] = model.labels[i];
  return names;
}

std::string to_json(const Evaluation& e, const std::vector<std::string>& names) {
  JsonWriter json;
  json.begin_object()
      .field("images", e.images)
      .field("top1", e.top1)
      .field("top5", e.top5)
      .field("loss", e.loss);
  json.key("classes").begin_array();
  for (const std::string& name : names) json.value(name);
  json.end_array().key("per_class").begin_array();
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

// The names of folders as people would write them.
std::vector<std::string> as_words(std::vector<std::string> names) {
  for (std::string& name : names) std::replace(name.begin(), name.end(), '_', ' ');
  return names;
}

int run(const Options& o, const CommonOptions& common) {
  const bool by_words = !o.labels.empty() || has_text_tower(o.model);
  std::vector<std::string> labels;
  if (!o.labels.empty())
    labels = labels_for(o, o.model, "eval");
  else if (!by_words && !o.templates.empty())
    fail_usage("--template: {} has no text tower", o.model);
  PredictorOptions options = predictor_options(o, common);
  options.max_batch = o.batch_size;
  Predictor predictor(o.model, options);
  note_preprocessing(common, predictor.model());
  if (predictor.classes() == 0 && !by_words) fail_usage("{} has no head to evaluate", o.model);
  const EvalImages data(o, predictor.model(), options.decode, static_cast<int>(common.threads));
  if (o.split.empty() && predictor.model().held_out.fraction > 0 && !has_splits(o.data))
    info(common,
         "the data has no splits: images that the model was trained with are among those it is "
         "evaluated on; --split holdout takes the others");
  ModelSpec model = predictor.model();
  std::optional<ZeroShot> words;
  if (by_words) {
    model.labels = labels.empty() ? (*data).classes() : labels;
    model.config.set_classes(static_cast<int64_t>(model.labels.size()));
    words.emplace(o.model, predictor, labels.empty() ? as_words(model.labels) : labels,
                  o.templates);
  }
  const LabelMatch match = match_labels(*data, model);
  if (match.by_position && !model.labels.empty())
    info(common, "no class of the data is a label of the model; they are taken in their order");
  if (common.verbose)
    info(common, fmt::format("evaluating on {} in {}", predictor.backend().name(),
                             name_of(predictor.precision())));
  const Evaluation result =
      evaluate(predictor, *data, match, common, words ? &*words : nullptr, parse_tta(o.tta));
  common.json ? print_out(to_json(result, output_names(result, model, *data, match)))
              : print_text(to_text(result, (*data).classes(), match.outputs));
  return 0;
}

}  // namespace

Evaluation evaluate(Predictor& predictor, const Dataset& data, const LabelMatch& match,
                    const CommonOptions& common, const ZeroShot* words, Tta tta) {
  const auto last = std::max_element(match.outputs.begin(), match.outputs.end());
  EvaluationTotals totals(match.outputs.empty() ? 0 : *last + 1);
  Progress progress("eval", data.size(), common.quiet);
  const auto add = [&](const PredictedSample& sample) {
    const int truth = match.outputs[static_cast<size_t>(data.label(sample.index))];
    if (words)
      totals.add(words->logits(joint_vector(predictor, sample.logits, sample.features)), truth);
    else
      totals.add(sample.logits, truth);
    progress.update(sample.index + 1);
    return true;
  };
  predict_all(predictor, data, {.threads = static_cast<int>(common.threads), .tta = tta}, add);
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
      {"--split", &o->split,
       "train, test or val; holdout: what the model's run held out of the training images; by "
       "default what training evaluates on",
       "NAME"},
      shard_option(o->shard),
      {.name = "--batch-size",
       .target = &o->batch_size,
       .help = "images computed at once",
       .min = 1,
       .max = 65536},
      tta_option(o->tta)};
  for (Option& option : word_options(*o)) options.push_back(std::move(option));
  for (Option& option : model_options(*o)) options.push_back(std::move(option));
  return {.name = "eval",
          .summary = "measure a model's accuracy on a data set",
          .examples = {"eval --model runs/1/best --data fashion-mnist",
                       "eval --model DIR --data folder:flowers --split holdout",
                       "eval --model DIR --data csv:labels.csv --json",
                       "eval --model clip-vit-base-patch32 --data folder:pets --template 'a photo "
                       "of a {}.'"},
          .options = std::move(options),
          .run = [o](const CommonOptions& common) { return run(*o, common); }};
}

}  // namespace vitrum
