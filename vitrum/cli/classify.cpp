#include <fmt/format.h>

#include "vitrum/cli/image_inputs.h"
#include "vitrum/cli/words.h"
#include "vitrum/core/error.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/progress.h"
#include "vitrum/core/utf8.h"
#include "vitrum/infer/predict_all.h"

namespace vitrum {
namespace {

struct Options : ModelOptions, WordOptions {
  std::vector<std::string> images;
  std::string shard, tta = "none";
  int64_t top_k = 5;
};

std::string to_json(const std::string& image, const std::vector<Prediction>& predictions) {
  JsonWriter json;
  json.begin_object().field("image", image).key("predictions").begin_array();
  for (const Prediction& p : predictions)
    json.begin_object()
        .field("label", p.label)
        .field("index", p.index)
        .field("probability", p.probability)
        .end_object();
  return json.end_array().end_object().str() + "\n";
}

std::string error_json(const std::string& image, std::string_view error) {
  JsonWriter json;
  json.begin_object().field("image", image).key("predictions").begin_array().end_array();
  return json.field("error", error).end_object().str() + "\n";
}

// "  87.32 %  tabby, tabby cat" below the name of the image.
std::string to_text(const std::string& image, const std::vector<Prediction>& predictions) {
  const bool colour = use_colour(stdout);
  std::string out =
      fmt::format("{}{}{}\n", colour ? "\033[1m" : "", printable(image), colour ? "\033[0m" : "");
  const int width = terminal_width(stdout);
  for (const Prediction& p : predictions)
    out += fmt::format("  {:6.2f} %  {}\n", 100 * p.probability,
                       fit_columns(p.label, std::max(20, width - 12)));
  return out;
}

int run(const Options& o, const CommonOptions& common) {
  const std::vector<std::string> labels = labels_for(o, o.model, "classify photos/");
  Predictor predictor(o.model, predictor_options(o, common));
  note_preprocessing(common, predictor.model());
  if (predictor.classes() == 0 && labels.empty())
    fail_usage("{} has no head to classify with", o.model);
  std::optional<ZeroShot> words;
  if (!labels.empty()) words.emplace(o.model, predictor, labels, o.templates);
  const DecodeOptions decode{.exif_orientation = o.exif_orientation};
  const std::unique_ptr<Dataset> images = take_shard(open_images(o.images, decode), o.shard);
  if (common.verbose)
    info(common, fmt::format("{} images on {} in {}", images->size(), predictor.backend().name(),
                             name_of(predictor.precision())));
  int64_t unreadable = 0;
  const auto print = [&](const PredictedSample& sample) {
    if (!sample.error.empty()) {
      print_error(sample.error);
      if (common.json) print_out(error_json(images->name(sample.index), sample.error));
      ++unreadable;
      return true;
    }
    const auto count = static_cast<size_t>(o.top_k);
    const auto best =
        words ? words->best(joint_vector(predictor, sample.logits, sample.features), count)
              : top_predictions(sample.logits, predictor.model().labels, count);
    const std::string name = images->name(sample.index);
    print_out(common.json ? to_json(name, best) : to_text(name, best));
    return true;
  };
  const PredictAllOptions options{
      .threads = static_cast<int>(common.threads), .tolerant = true, .tta = parse_tta(o.tta)};
  predict_all(predictor, *images, options, print);
  if (unreadable == 0) return 0;
  if (images->size() > 1)
    print_error(fmt::format("{} of {} images could not be read", unreadable, images->size()));
  return static_cast<int>(ErrorKind::kInput);
}

}  // namespace

Verb classify_verb() {
  auto o = std::make_shared<Options>();
  std::vector<Option> options = {
      {.name = "IMAGE",
       .target = &o->images,
       .help = "image files (JPEG, PNG, HEIC ...), folders of them, shards:DIR, or - for a list on "
               "standard input",
       .required = true},
      {.name = "--top-k", .target = &o->top_k, .help = "how many labels for each image", .min = 1},
      tta_option(o->tta),
      shard_option(o->shard)};
  for (Option& option : word_options(*o)) options.push_back(std::move(option));
  for (Option& option : model_options(*o)) options.push_back(std::move(option));
  return {.name = "classify",
          .summary =
              "say what images show; one that cannot be read is reported, the rest goes on, and "
              "the exit code is 3",
          .examples = {"classify cat.jpg --model DIR", "classify photos/ --model DIR --top-k 1",
                       "classify photos/ --model clip-vit-base-patch32 --labels 'a cat,a dog'",
                       "classify - --model DIR --json < list.txt"},
          .options = std::move(options),
          .run = [o](const CommonOptions& common) { return run(*o, common); }};
}

}  // namespace vitrum
