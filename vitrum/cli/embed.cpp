#include <fmt/format.h>

#include <limits>

#include "vitrum/cli/image_inputs.h"
#include "vitrum/cli/output_guard.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/join.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/progress.h"
#include "vitrum/core/utf8.h"
#include "vitrum/infer/predict_all.h"
#include "vitrum/infer/text_encoder.h"
#include "vitrum/infer/zero_shot.h"
#include "vitrum/weights/npy.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

struct Options : ModelOptions {
  std::vector<std::string> images, texts, taps;
  std::string data, split, output, shard;
  bool force = false;
};

struct Tapped {
  std::string name;
  Shape shape;  // of one image
  std::vector<float> values = {};
};

// Row i belongs to image or text i; that of an image that cannot be read is NaN.
struct Table {
  const char* kind = "image";
  int64_t dimension = 0, unreadable = 0;
  std::vector<float> values;        // (images, dimension)
  std::vector<std::string> images;  // their names
  std::vector<int32_t> labels;      // of a data set, else none
  std::vector<Tapped> taps;
};

Shape with_images(const Shape& shape, const Table& t) {
  Shape all{static_cast<int64_t>(t.images.size())};
  for (int64_t n : shape) all.append(n);
  return all;
}

// One row of `values`: what was computed, or NaN.
void append(std::vector<float>& values, std::span<const float> row, int64_t size) {
  if (row.empty())
    values.resize(values.size() + static_cast<size_t>(size),
                  std::numeric_limits<float>::quiet_NaN());
  values.insert(values.end(), row.begin(), row.end());
}

Table compute(Predictor& predictor, const Dataset& data, bool labelled, const Options& o,
              const CommonOptions& common) {
  // A model with words is asked for vectors that can be compared with those of texts.
  const bool joint = has_text_tower(o.model) && predictor.classes() > 0;
  Table table{.dimension = joint ? predictor.classes() : predictor.dimension()};
  for (size_t i = 0; i < o.taps.size(); ++i)
    table.taps.push_back({o.taps[i], predictor.tap_shapes()[i]});
  Progress progress("embed", data.size(), common.quiet);
  const auto add = [&](const PredictedSample& sample) {
    if (!sample.error.empty()) {
      progress.clear();
      print_error(sample.error);
      ++table.unreadable;
    }
    append(table.values, joint ? sample.logits : sample.features, table.dimension);
    for (size_t i = 0; i < table.taps.size(); ++i)
      append(table.taps[i].values, sample.taps.empty() ? std::span<const float>{} : sample.taps[i],
             table.taps[i].shape.numel());
    table.images.push_back(data.name(sample.index));
    if (labelled) table.labels.push_back(data.label(sample.index));
    progress.update(sample.index + 1);
    return true;
  };
  predict_all(predictor, data, {.threads = static_cast<int>(common.threads), .tolerant = true},
              add);
  progress.finish();
  return table;
}

Table embed_texts(const Options& o, const CommonOptions& common) {
  std::vector<std::string> texts;
  for (const std::string& text : o.texts) {
    if (!text.starts_with('@')) {
      texts.push_back(text);
      continue;
    }
    const std::vector<std::string> lines = read_labels(text);
    texts.insert(texts.end(), lines.begin(), lines.end());
  }
  SharedDevice device(
      DeviceOptions{.device = common.device, .threads = static_cast<int>(common.threads)});
  TextEncoder encoder(o.model, device, compute_precision(common, device.backend()));
  Table table{.kind = "text", .dimension = encoder.spec().config.space};
  table.values = encoder.encode(texts);
  table.images = std::move(texts);
  return table;
}

Shape shape_of(const Table& t) { return {static_cast<int64_t>(t.images.size()), t.dimension}; }

// Features, taps, labels where there are any, and the names as a JSON list in the metadata.
void write_tensors(const std::string& path, Table& t) {
  JsonWriter names;
  names.begin_array();
  for (const std::string& name : t.images) names.value(name);
  names.end_array();
  std::vector<NamedTensor> tensors = {{"features", {t.values.data(), shape_of(t), DType::kF32}}};
  if (!t.labels.empty())
    tensors.push_back({"labels", {t.labels.data(), {shape_of(t)[0]}, DType::kI32}});
  for (Tapped& tap : t.taps)
    tensors.push_back({tap.name, {tap.values.data(), with_images(tap.shape, t), DType::kF32}});
  write_safetensors(path, tensors, {{std::string(t.kind) + "s", names.str()}});
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

void write_csv(const std::string& path, const Table& t) {
  AtomicFile file(path);
  std::string line = t.labels.empty() ? t.kind : "image,label";
  for (int64_t i = 0; i < t.dimension; ++i) line += fmt::format(",f{}", i);
  const float* value = t.values.data();
  for (size_t row = 0; row < t.images.size(); ++row) {
    file.write(line + "\n");
    line = csv_field(t.images[row]);
    if (!t.labels.empty()) line += fmt::format(",{}", t.labels[row]);
    for (int64_t i = 0; i < t.dimension; ++i) line += fmt::format(",{}", *value++);
  }
  file.write(line + "\n");
  file.commit();
}

bool ends_with(const std::string& path, std::string_view extension) {
  return path.ends_with(extension);
}

void check_output(const Options& o) {
  const std::string& path = o.output;
  if (ends_with(path, ".csv") && !o.taps.empty())
    fail_usage("--output {}: what --tap gives goes into .npy or .safetensors", path);
  if (!ends_with(path, ".npy") && !ends_with(path, ".safetensors") && !ends_with(path, ".csv"))
    fail_usage("--output {}: expected a name that ends in .npy, .safetensors or .csv", path);
}

// Where an array goes that has a .npy file of its own: "f.npy" for one tap, "f.NAME.npy" for
// several.
std::string npy_path(const std::string& path, size_t taps, const std::string& tap) {
  return taps == 1 ? path : path.substr(0, path.size() - 3) + tap + ".npy";
}

void guard_output(const Options& o, const Dataset& images) {
  OutputGuard guard(o.force);
  guard.reads(o.model), guard.reads_data(o.data), guard.reads_images(images);
  guard.reads_list(o.images);
  if (ends_with(o.output, ".csv")) return guard.file(o.output, Content::kTable);
  if (ends_with(o.output, ".safetensors")) return guard.file(o.output, Content::kSafetensors);
  if (o.taps.empty()) guard.file(o.output, Content::kNpy);
  for (const std::string& tap : o.taps)
    guard.file(npy_path(o.output, o.taps.size(), tap), Content::kNpy);
}

void write(const std::string& path, Table& t) {
  if (ends_with(path, ".npy") && !t.taps.empty())
    for (const Tapped& tap : t.taps)
      write_npy(npy_path(path, t.taps.size(), tap.name), with_images(tap.shape, t), tap.values);
  else if (ends_with(path, ".npy"))
    write_npy(path, shape_of(t), t.values);
  else if (ends_with(path, ".csv"))
    write_csv(path, t);
  else
    write_tensors(path, t);
}

void to_json(JsonWriter& json, const std::string& output, const Table& t) {
  json.key("taps").begin_array();
  for (const Tapped& tap : t.taps) {
    json.begin_object().field("name", tap.name).key("shape").begin_array();
    for (int64_t n : with_images(tap.shape, t)) json.value(n);
    json.end_array();
    if (ends_with(output, ".npy")) json.field("output", npy_path(output, t.taps.size(), tap.name));
    json.end_object();
  }
  json.end_array();
}

int report(const Options& o, Table& table, const CommonOptions& common) {
  write(o.output, table);
  const auto rows = static_cast<int64_t>(table.images.size());
  if (common.json) {
    JsonWriter json;
    json.begin_object().field(std::string(table.kind) + "s", rows);
    json.field("dimension", table.dimension).field("output", o.output);
    json.field("unreadable", table.unreadable);
    if (!table.taps.empty()) to_json(json, o.output, table);
    print_out(json.end_object().str() + "\n");
  } else {
    info(common,
         fmt::format(
             "{}: {} x {}{}", printable(o.output), with_commas(rows),
             o.taps.empty() ? std::to_string(table.dimension) : join(o.taps, ", "),
             table.unreadable ? fmt::format(", {} unreadable (NaN)", table.unreadable) : ""));
  }
  return table.unreadable ? static_cast<int>(ErrorKind::kInput) : 0;
}

int run_texts(const Options& o, const CommonOptions& common) {
  if (!o.images.empty() || !o.data.empty() || !o.taps.empty())
    fail_usage("--text embeds texts alone; images and --tap are for a run of their own");
  OutputGuard guard(o.force);
  guard.reads(o.model);
  for (const std::string& text : o.texts)
    if (text.starts_with('@')) guard.reads(text.substr(1));
  guard.file(o.output, ends_with(o.output, ".csv")           ? Content::kTable
                       : ends_with(o.output, ".safetensors") ? Content::kSafetensors
                                                             : Content::kNpy);
  Table table = embed_texts(o, common);
  return report(o, table, common);
}

int run(const Options& o, const CommonOptions& common) {
  check_output(o);
  if (!o.texts.empty()) return run_texts(o, common);
  if (o.images.empty() == o.data.empty())
    fail_usage("embed needs either images, --data or --text; see `vitrum embed --help`");
  PredictorOptions options = predictor_options(o, common);
  options.taps = o.taps;
  Predictor predictor(o.model, options);
  note_preprocessing(common, predictor.model());
  const DecodeOptions decode{.exif_orientation = o.exif_orientation};
  const std::unique_ptr<Dataset> data = take_shard(
      o.data.empty() ? open_images(o.images, decode) : open_split(o.data, o.split, decode),
      o.shard);
  guard_output(o, *data);
  Table table = compute(predictor, *data, !o.data.empty(), o, common);
  return report(o, table, common);
}

}  // namespace

Verb embed_verb() {
  auto o = std::make_shared<Options>();
  std::vector<Option> options = {
      {"IMAGE", &o->images,
       "image files (JPEG, PNG, HEIC ...), folders of them, shards:DIR, or - for a list on "
       "standard "
       "input"},
      {"--data", &o->data, "a data set instead, as for `vitrum data`", "DATA"},
      {"--split", &o->split, "of the data set: train, test or val", "NAME"},
      {"--text", &o->texts,
       "a text instead, or @FILE with one a line, where the model has a text tower; may be "
       "repeated",
       "TEXT"},
      shard_option(o->shard),
      {"--tap", &o->taps,
       "what a module inside the model returns: blocks.3, norm, blocks.7.attn.probs, ...; may be "
       "repeated. A .npy file holds taps instead of features, one file a tap",
       "NAME"},
      {.name = "--output",
       .target = &o->output,
       .help = "FILE.npy, FILE.safetensors (names and labels too) or FILE.csv, a row an image; one "
               "that cannot be read has NaN",
       .value = "FILE",
       .required = true}};
  for (Option& option : model_options(*o)) options.push_back(std::move(option));
  options.push_back(force_option(o->force));
  return {.name = "embed",
          .summary =
              "write the features before the head, one row for each image; of a model that has "
              "words, vectors of images or texts to compare",
          .examples = {"embed photos/ --model DIR --output features.npy",
                       "embed --data folder:flowers --model DIR --output features.safetensors",
                       "embed a.jpg b.png --model DIR --output features.csv --json",
                       "embed --text 'a cat' --text 'a dog' --model DIR --output texts.npy",
                       "embed a.jpg --model DIR --tap blocks.11.attn.probs --output probs.npy"},
          .options = std::move(options),
          .run = [o](const CommonOptions& common) { return run(*o, common); }};
}

}  // namespace vitrum
