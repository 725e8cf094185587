#include <fmt/format.h>

#include <limits>

#include "vitrum/cli/image_inputs.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/progress.h"
#include "vitrum/infer/predict_all.h"
#include "vitrum/weights/npy.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

struct Options : ModelOptions {
  std::vector<std::string> images;
  std::string data, split, output;
};

// Row i belongs to image i; that of an image that cannot be read is NaN.
struct Table {
  int64_t dimension = 0, unreadable = 0;
  std::vector<float> values;        // (images, dimension)
  std::vector<std::string> images;  // their names
  std::vector<int32_t> labels;      // of a data set, else none
};

Table compute(Predictor& predictor, const Dataset& data, bool labelled,
              const CommonOptions& common) {
  Table table{.dimension = predictor.dimension()};
  Progress progress("embed", data.size(), common.quiet);
  const auto add = [&](const PredictedSample& sample) {
    if (!sample.error.empty()) {
      progress.clear();
      print_error(sample.error);
      ++table.unreadable;
      table.values.resize(table.values.size() + static_cast<size_t>(table.dimension),
                          std::numeric_limits<float>::quiet_NaN());
    }
    table.values.insert(table.values.end(), sample.features.begin(), sample.features.end());
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

Shape shape_of(const Table& t) { return {static_cast<int64_t>(t.images.size()), t.dimension}; }

// Features, labels where there are any, and the names as a JSON list in the metadata.
void write_tensors(const std::string& path, Table& t) {
  JsonWriter names;
  names.begin_array();
  for (const std::string& name : t.images) names.value(name);
  names.end_array();
  std::vector<NamedTensor> tensors = {{"features", {t.values.data(), shape_of(t), DType::kF32}}};
  if (!t.labels.empty())
    tensors.push_back({"labels", {t.labels.data(), {shape_of(t)[0]}, DType::kI32}});
  write_safetensors(path, tensors, {{"images", names.str()}});
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

void write_csv(const std::string& path, const Table& t) {
  AtomicFile file(path);
  std::string line = t.labels.empty() ? "image" : "image,label";
  for (int64_t i = 0; i < t.dimension; ++i) line += fmt::format(",f{}", i);
  const float* value = t.values.data();
  for (size_t row = 0; row < t.images.size(); ++row) {
    file.write(line + "\n");
    line = csv_field(t.images[row]);
    if (!t.labels.empty()) line += fmt::format(",{}", t.labels[row]);
    for (int64_t i = 0; i < t.dimension; ++i)
      fmt::format_to(std::back_inserter(line), ",{}", *value++);
  }
  file.write(line + "\n");
  file.commit();
}

bool ends_with(const std::string& path, std::string_view extension) {
  return path.ends_with(extension);
}

void check_output(const std::string& path) {
  if (!ends_with(path, ".npy") && !ends_with(path, ".safetensors") && !ends_with(path, ".csv"))
    fail_usage("--output {}: expected a name that ends in .npy, .safetensors or .csv", path);
}

void write(const std::string& path, Table& t) {
  if (ends_with(path, ".npy"))
    write_npy(path, shape_of(t), t.values);
  else if (ends_with(path, ".csv"))
    write_csv(path, t);
  else
    write_tensors(path, t);
}

int run(const Options& o, const CommonOptions& common) {
  check_output(o.output);
  if (o.images.empty() == o.data.empty())
    fail_usage("embed needs either images or --data; see `vitrum embed --help`");
  Predictor predictor(o.model, predictor_options(o, common));
  note_preprocessing(common, predictor.model());
  const DecodeOptions decode{.exif_orientation = o.exif_orientation};
  const std::unique_ptr<Dataset> data =
      o.data.empty() ? open_images(o.images, decode) : open_split(o.data, o.split, decode);
  Table table = compute(predictor, *data, !o.data.empty(), common);
  write(o.output, table);
  const auto images = static_cast<int64_t>(table.images.size());
  if (common.json) {
    JsonWriter json;
    json.begin_object().field("images", images).field("dimension", table.dimension);
    json.field("output", o.output).field("unreadable", table.unreadable).end_object();
    print_out(json.str() + "\n");
  } else {
    info(common,
         fmt::format(
             "{}: {} x {}{}", o.output, with_commas(images), table.dimension,
             table.unreadable ? fmt::format(", {} unreadable (NaN)", table.unreadable) : ""));
  }
  return table.unreadable ? static_cast<int>(ErrorKind::kInput) : 0;
}

}  // namespace

Verb embed_verb() {
  auto o = std::make_shared<Options>();
  std::vector<Option> options = {
      {"IMAGE", &o->images,
       "JPEG, PNG or WebP files, folders of them, or - for a list on standard input"},
      {"--data", &o->data, "a data set instead, as for `vitrum data`", "DATA"},
      {"--split", &o->split, "of the data set: train, test or val", "NAME"},
      {.name = "--output",
       .target = &o->output,
       .help = "FILE.npy, FILE.safetensors (names and labels too) or FILE.csv, a row an image; one "
               "that cannot be read has NaN",
       .value = "FILE",
       .required = true}};
  for (Option& option : model_options(*o)) options.push_back(std::move(option));
  return {.name = "embed",
          .summary = "write the features before the head, one row for each image",
          .examples = {"embed photos/ --model DIR --output features.npy",
                       "embed --data folder:flowers --model DIR --output features.safetensors",
                       "embed a.jpg b.png --model DIR --output features.csv --json"},
          .options = std::move(options),
          .run = [o](const CommonOptions& common) { return run(*o, common); }};
}

}  // namespace vitrum
