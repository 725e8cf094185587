#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <set>

#include "vitrum/cli/image_inputs.h"
#include "vitrum/cli/output_guard.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/progress.h"
#include "vitrum/core/utf8.h"
#include "vitrum/data/encode_png.h"
#include "vitrum/data/orientation.h"
#include "vitrum/explain/attention_program.h"
#include "vitrum/explain/explain_photo.h"
#include "vitrum/explain/explain_weights.h"
#include "vitrum/infer/evaluator.h"
#include "vitrum/infer/match_labels.h"
#include "vitrum/weights/npy.h"

namespace vitrum {
namespace {

struct Options : ModelOptions {
  std::vector<std::string> images;
  std::string method = "all", fusion = "mean", output = "explain";
  std::optional<std::string> target;
  std::optional<int64_t> layer, head;
  double discard = 0;
  int64_t size = 512;
  bool weights = false, npy = false, force = false;

  bool asks_for(const char* what) const { return method == "all" || method == what; }
};

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

// Files of one call, all in one folder.
class Folder {
 public:
  Folder(const std::string& path, int threads, OutputGuard guard)
      : path_(path), pool_(threads), guard_(std::move(guard)) {
    guard_.refuse_read(path);
    for (const std::string& name : entries_of(path))
      if (const auto ending = std::filesystem::path(name).extension();
          ending != ".png" && ending != ".npy" && ending != ".csv")
        guard_.require_force(path, fmt::format("holds '{}', which is no picture", name));
    ensure_directory(path);
  }

  void write(const std::string& name, Content content, std::string_view bytes) {
    write_file_atomic(add(name, content), bytes);
  }
  void write(const std::string& name, const Shape& shape, std::span<const float> values) {
    write_npy(add(name, Content::kNpy), shape, values);
  }
  void write(const Explanation& found, const std::string& prefix, bool arrays) {
    for (const NamedPicture& p : found.pictures)
      write(prefix + p.name + ".png", Content::kPng, encode_png(p.image, pool_));
    for (const NamedArray& a : found.maps)
      if (arrays) write(prefix + a.name + ".npy", a.shape, a.values);
  }
  const std::vector<std::string>& files() const { return files_; }
  ThreadPool& pool() { return pool_; }  // that draws and encodes

 private:
  std::string add(const std::string& name, Content content) {
    files_.push_back((std::filesystem::path(path_) / name).string());
    guard_.file(files_.back(), content);
    return files_.back();
  }

  std::string path_;
  ThreadPool pool_;
  OutputGuard guard_;
  std::vector<std::string> files_;
};

// What images were taken for, and how far the heads looked.
struct Results {
  struct Row {
    std::string image;
    Prediction best, asked;  // the most probable class, and the one that is explained
  };
  std::vector<Row> rows;
  std::vector<std::vector<double>> distances;  // (layers, heads), summed over images
  int64_t unreadable = 0;
  double model_ms = 0, picture_ms = 0;
};

class ImageExplainer {
 public:
  ImageExplainer(const Options& o, Predictor& predictor, Folder& folder)
      : o_(o),
        predictor_(predictor),
        folder_(folder),
        preprocess_(preprocess_of(predictor.model())),
        gradient_(o.asks_for("gradient") && predictor.classes() > 0) {
    program_.emplace(predictor.model(), predictor.store(), program_options());
    if (o.method == "gradient" && predictor.classes() == 0)
      fail_usage("{} has no head, so no class to explain", o.model);
    if (o.target) target_ = output_of(predictor.model(), *o.target);
  }

  // Everything that fails for one image and not for the next.
  ExplainedPhoto read(const std::string& path) {
    const std::vector<uint8_t> bytes = read_bytes(path);
    ExplainedPhoto photo{.image = decode_image(bytes, path, {o_.exif_orientation}), .name = {}};
    if (!o_.exif_orientation) photo.orientation = read_orientation(bytes);
    if (predictor_.input().max_patches > 0) take_shape(photo.image);
    Preprocessor preprocessor(preprocess_);
    pixels_.resize(preprocessor.bytes());
    try {
      preprocessor.apply(photo.image, pixels_);
    } catch (const Error& e) {
      fail_input("{}: {}", path, e.what());
    }
    return photo;
  }

  void add(ExplainedPhoto photo, const std::string& path) {
    auto start = std::chrono::steady_clock::now();
    const std::vector<LayerAttention> layers = run(photo, path);
    results_.model_ms += milliseconds_since(start);
    start = std::chrono::steady_clock::now();
    if (o_.asks_for("distance")) add_distances(layers);
    ExplainOptions options{
        .attention = o_.asks_for("attention"),
        .rollout = o_.asks_for("rollout"),
        .gradient = gradient_,
        .layer = o_.layer,
        .head = o_.head,
        .rolled = {fusion(), o_.discard},
        .target = predictor_.classes() ? label(results_.rows.back().asked.index) : "",
        .edge = static_cast<int>(o_.size)};
    folder_.write(explain_photo(photo, preprocess_, layers, options, folder_.pool()), prefix(path),
                  o_.npy);
    results_.picture_ms += milliseconds_since(start);
  }

  void finish() {
    if (!o_.asks_for("distance") || results_.rows.empty()) return;
    std::vector<float> flat;
    std::string csv = "layer,head,distance\n";
    size_t most = 0;
    for (const auto& heads : results_.distances) most = std::max(most, heads.size());
    for (size_t l = 0; l < results_.distances.size(); ++l) {
      auto& heads = results_.distances[l];
      for (size_t h = 0; h < heads.size(); ++h) {
        heads[h] /= static_cast<double>(results_.rows.size());
        csv += fmt::format("{},{},{:.6g}\n", l, h, heads[h]);
      }
      for (size_t h = 0; h < most; ++h)
        flat.push_back(h < heads.size() ? static_cast<float>(heads[h]) : NAN);
    }
    const size_t images = results_.rows.size();
    const Image plot = distance_plot(
        results_.distances, images == 1
                                ? std::filesystem::path(results_.rows[0].image).filename().string()
                                : fmt::format("mean of {} images", images));
    folder_.write("distance.png", Content::kPng, encode_png(plot));
    folder_.write("distance.csv", Content::kTable, csv);
    folder_.write("distance.npy",
                  {static_cast<int64_t>(results_.distances.size()), static_cast<int64_t>(most)},
                  flat);
  }

  Results& results() { return results_; }

 private:
  // Of a model whose images keep theirs: the program is one for images of this size alone.
  void take_shape(const Image& image) {
    const InputSize size = input_size(predictor_.input(), image.height, image.width);
    if (size == InputSize{preprocess_.height, preprocess_.width}) return;
    preprocess_.height = static_cast<int>(size.height);
    preprocess_.width = static_cast<int>(size.width);
    ModelSpec model = predictor_.model();
    model.config.set_image_size(size.height, size.width);
    program_.emplace(model, predictor_.store(), program_options());
  }
  AttentionOptions program_options() const {
    AttentionOptions options{.gradient = gradient_, .compute = predictor_.precision()};
    if (o_.method == "attention" && o_.layer) options.layers = {*o_.layer};
    return options;
  }
  HeadFusion fusion() const {
    return o_.fusion == "max"   ? HeadFusion::kMax
           : o_.fusion == "min" ? HeadFusion::kMin
                                : HeadFusion::kMean;
  }
  std::string label(int index) const {
    const std::vector<std::string>& labels = predictor_.model().labels;
    const auto i = static_cast<size_t>(index);
    return i < labels.size() ? labels[i] : fmt::format("class {}", index);
  }

  std::string in_words(const Prediction& p) const {
    const double percent = 100 * static_cast<double>(p.probability);
    return percent >= 0.1 ? fmt::format("{}  {:.1f} %", label(p.index), percent)
                          : fmt::format("{}  {:.2g} %", label(p.index), percent);
  }
  Prediction asked_class() const {
    const std::vector<std::string>& labels = predictor_.model().labels;
    const auto i = static_cast<size_t>(*target_);
    return {*target_, i < labels.size() ? labels[i] : std::to_string(i),
            static_cast<float>(result_of(program_->logits(), *target_, 0).label_probability)};
  }

  std::vector<LayerAttention> run(ExplainedPhoto& photo, const std::string& path) {
    program_->run(pixels_.data());
    predictor_.check_answer(program_->logits());
    Results::Row row{path, {}, {}};
    photo.name = std::filesystem::path(path).filename().string();
    if (predictor_.classes() > 0) {
      row.best = top_predictions(program_->logits(), predictor_.model().labels, 1)[0];
      row.asked = target_ ? asked_class() : row.best;
      photo.name = in_words(row.best);
      if (target_) photo.name += ",  asked for " + in_words(row.asked);
    }
    if (gradient_) program_->run_backward(row.asked.index);
    results_.rows.push_back(std::move(row));
    return program_->all();
  }

  void add_distances(const std::vector<LayerAttention>& layers) {
    results_.distances.resize(layers.size());
    folder_.pool().run(static_cast<int64_t>(layers.size()), [&](int64_t i, int) {
      const auto l = static_cast<size_t>(i);
      const std::vector<double> means =
          mean_distances(layers[l], preprocess_.height, preprocess_.width);
      results_.distances[l].resize(means.size(), 0.0);
      for (size_t h = 0; h < means.size(); ++h) results_.distances[l][h] += means[h];
    });
  }

  // "cat-" for photos/cat.jpg; "cat-2-" where another cat was there before.
  std::string prefix(const std::string& path) {
    const std::string stem = std::filesystem::path(path).stem().string();
    std::string unique = stem;
    for (int i = 2; !used_.insert(unique).second; ++i) unique = fmt::format("{}-{}", stem, i);
    return unique + "-";
  }

  const Options& o_;
  Predictor& predictor_;
  Folder& folder_;
  Preprocess preprocess_;
  bool gradient_;
  std::optional<AttentionProgram> program_;
  std::vector<uint8_t> pixels_;  // of the image read last
  std::optional<int> target_;
  std::set<std::string> used_;
  Results results_;
};

Results explain_images(const Options& o, const Dataset& images, Predictor& predictor,
                       Folder& folder, const CommonOptions& common) {
  ImageExplainer explainer(o, predictor, folder);
  Progress progress("explain", images.size(), common.quiet || images.size() == 1);
  for (int64_t i = 0; i < images.size(); ++i) {
    std::optional<ExplainedPhoto> photo;
    try {
      photo = explainer.read(images.name(i));
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kInput) throw;
      progress.clear();
      print_error(e.what());
      ++explainer.results().unreadable;
    }
    if (photo) explainer.add(std::move(*photo), images.name(i));
    progress.update(i + 1);
  }
  progress.finish();
  explainer.finish();
  return std::move(explainer.results());
}

std::string to_json(const Results& results, const std::vector<std::string>& files) {
  JsonWriter json;
  json.begin_object().key("files").begin_array();
  for (const std::string& file : files) json.value(file);
  json.end_array().key("images").begin_array();
  for (const Results::Row& row : results.rows)
    json.begin_object()
        .field("image", row.image)
        .field("label", row.best.label)
        .field("index", row.best.index)
        .field("probability", row.best.probability)
        .field("asked_label", row.asked.label)
        .field("asked_index", row.asked.index)
        .field("asked_probability", row.asked.probability)
        .end_object();
  json.end_array().field("unreadable", results.unreadable);
  json.field("model_milliseconds", results.model_ms);
  json.field("picture_milliseconds", results.picture_ms);
  return json.end_object().str() + "\n";
}

int run(const Options& o, const CommonOptions& common) {
  if (o.weights != o.images.empty())
    fail_usage("explain needs images, or --weight-pictures instead; see `vitrum explain --help`");
  if (o.head && !o.layer) fail_usage("--head {} needs --layer", *o.head);
  if (!(o.discard >= 0 && o.discard < 1))
    fail_usage("--discard {}: expected a share from 0 to less than 1", o.discard);
  Predictor predictor(o.model, predictor_options(o, common));
  note_preprocessing(common, predictor.model());
  OutputGuard guard(o.force);
  guard.reads(o.model), guard.reads_list(o.images);
  std::unique_ptr<Dataset> images;
  if (!o.weights) images = open_images(o.images, {}), guard.reads_images(*images);
  // Of a folder every picture is read, the next time those that are written now, too.
  for (const std::string& input : o.images)
    if (std::filesystem::is_directory(input)) guard.reads(input);
  Folder folder(o.output, common.threads > 0 ? static_cast<int>(common.threads) : available_cores(),
                std::move(guard));
  Results results;
  if (o.weights) {
    Graph g;
    trace(g, predictor.model(), 1);
    const auto pictures = explain_weights(g, predictor.store());
    predictor.weights().check_intact();
    folder.write(pictures, "", /*arrays=*/true);
  } else {
    results = explain_images(o, *images, predictor, folder, common);
  }
  if (common.json)
    print_out(to_json(results, folder.files()));
  else
    for (const std::string& file : folder.files()) print_out(printable(file) + "\n");
  if (common.verbose && !o.weights)
    info(common,
         fmt::format("model {:.0f} ms, pictures {:.0f} ms", results.model_ms, results.picture_ms));
  return results.unreadable ? static_cast<int>(ErrorKind::kInput) : 0;
}

}  // namespace

Verb explain_verb() {
  auto o = std::make_shared<Options>();
  std::vector<Option> options = {
      {"IMAGE", &o->images,
       "image files (JPEG, PNG, HEIC ...), folders of them, or - for a list on standard input"},
      {.name = "--method",
       .target = &o->method,
       .help = "attention: what the class token looks at, by layer and head; rollout: through all "
               "layers; gradient: what speaks for a class; distance: how far heads look",
       .value = "NAME",
       .choices = {"all", "attention", "rollout", "gradient", "distance"}},
      {"--layer", &o->layer, "attention of this layer only, from 0", "N"},
      {"--head", &o->head, "and of this head", "N"},
      {"--class", &o->target,
       "label or number of the class to explain (gradient); by default the most probable", "NAME"},
      {.name = "--fusion",
       .target = &o->fusion,
       .help = "how heads become one map",
       .value = "NAME",
       .choices = {"mean", "max", "min"}},
      {"--discard", &o->discard,
       "share of the smallest weights that rollout counts as 0, such as 0.9", "X"},
      {.name = "--weight-pictures",
       .target = &o->weights,
       .help = "no image: similarity of positions and the filters of the first layer",
       .also = {"--weights"}},
      {"--output", &o->output, "folder for the pictures", "DIR"},
      {.name = "--size",
       .target = &o->size,
       .help = "longer edge of a picture in pixels",
       .value = "N",
       .min = 64,
       .max = 4096},
      {"--npy", &o->npy, "write the maps as numbers too (with --weight-pictures always)"}};
  for (Option& option : model_options(*o)) options.push_back(std::move(option));
  options.push_back(force_option(o->force));
  return {.name = "explain",
          .summary = "pictures of what a model looks at, and of its weights",
          .examples = {"explain cat.jpg --model DIR",
                       "explain cat.jpg --model DIR --method gradient --class tabby",
                       "explain cat.jpg --model DIR --method attention --layer 11 --head 2",
                       "explain --weight-pictures --model DIR --output weights"},
          .options = std::move(options),
          .run = [o](const CommonOptions& common) { return run(*o, common); }};
}

}  // namespace vitrum
