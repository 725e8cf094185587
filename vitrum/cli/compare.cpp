#include "vitrum/cli/compare.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>

#include "vitrum/cli/evaluate.h"
#include "vitrum/core/error.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/nearest.h"
#include "vitrum/core/utf8.h"
#include "vitrum/models/registry.h"
#include "vitrum/runtime/summary.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

struct Row {
  std::string name, family;
  int64_t parameters = 0, macs = 0;  // MACs of one image
  int64_t image_size = 0;
  int64_t bytes = 0;  // of its weights on disk; of a preset what they would take in f32
  bool on_disk = false;
  double accuracy = kNone, images_per_second = kNone;
};

Row count(const std::string& name, const ModelConfig& c) {
  Graph g;
  model(Scope(g), g.input("image", {1, c.channels(), c.image_h(), c.image_w()}), c);
  const int64_t parameters = count_parameters(g).all;
  return {.name = name,
          .family = std::string(family_of(c)),
          .parameters = parameters,
          .macs = multiply_adds(g),
          .image_size = c.image_h(),
          .bytes = 4 * parameters};
}

// Weight files of a model directory, sharded ones together.
int64_t weight_bytes(const std::string& model) {
  int64_t bytes = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(model, ignored)) {
    const std::string kind = entry.path().extension().string();
    for (const char* weights : {".safetensors", ".bin", ".pth", ".npz"})
      if (kind == weights) bytes += static_cast<int64_t>(entry.file_size(ignored));
  }
  return bytes;
}

void add_presets(std::vector<Row>& rows, const std::string& glob) {
  const size_t before = rows.size();
  std::vector<std::string> names;
  for (const Preset& preset : presets()) {
    names.push_back(preset.name);
    if (fnmatch(glob.c_str(), preset.name.c_str(), 0) == 0)
      rows.push_back(count(preset.name, preset.config));
  }
  if (rows.size() == before)
    fail_input("'{}' is neither a model directory nor a preset{}", glob, did_you_mean(glob, names));
}

// Speed is that of the whole way: reading, decoding, the model.
void measure(Row& row, const Dataset& data, const CommonOptions& common) {
  PredictorOptions options{
      .device = common.device, .threads = static_cast<int>(common.threads), .max_batch = 64};
  if (common.precision != "auto") options.precision = compute_precision(common);
  Predictor predictor(row.name, options);
  const LabelMatch match = match_labels(data, predictor.model());
  const auto start = std::chrono::steady_clock::now();
  row.accuracy = evaluate(predictor, data, match, common).top1;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  row.images_per_second = static_cast<double>(data.size()) / took.count();
}

std::string json_line(const Row& row) {
  JsonWriter json;
  json.begin_object().field("name", row.name).field("family", row.family);
  json.field("parameters", row.parameters).field("macs", row.macs);
  json.field("image_size", row.image_size).field("bytes", row.bytes);
  json.field("on_disk", row.on_disk).field("accuracy", row.accuracy);
  return json.field("images_per_second", row.images_per_second).end_object().str() + "\n";
}

// Of a path that is too long the end tells more than the beginning.
std::string fitted(const std::string& name, int width) {
  if (columns(name) <= width) return fit_columns(name, width);
  size_t from = 0;
  while (columns(name.substr(from)) > width - 3) from += decode_utf8(name.substr(from)).bytes;
  return "..." + fit_columns(name.substr(from), width - 3);
}

std::string table(const std::vector<Row>& rows, bool measured) {
  const int width = measured ? 24 : 30;
  const auto line = [&](const std::string& name, const auto&... cells) {
    const std::string own = fitted(name, width - 1);
    return own + std::string(static_cast<size_t>(width - columns(own)), ' ') +
           fmt::format("{:>7}{:>12}{:>9}{:>10}", cells...);
  };
  std::string out = line("model", "family", "parameters", "MACs", "weights");
  out += measured ? fmt::format("{:>9}{:>9}\n", "top-1", "images/s") : "\n";
  for (const Row& row : rows) {
    out += line(row.name, row.family, with_commas(row.parameters),
                human_count(static_cast<double>(row.macs)), human_bytes(row.bytes));
    if (!std::isnan(row.accuracy))
      out += fmt::format("{:>7.2f} %{:>9.1f}", 100 * row.accuracy, row.images_per_second);
    out += "\n";
  }
  return out;
}

}  // namespace

int compare_models(const std::vector<std::string>& models, const std::string& data,
                   const CommonOptions& common) {
  std::vector<Row> rows;
  for (const std::string& name : models) {
    if (!is_model_dir(name)) {
      add_presets(rows, name);
      continue;
    }
    Row& row = rows.emplace_back(count(name, resolve_model(name).config));
    row.on_disk = true, row.bytes = weight_bytes(name);
  }
  if (models.empty()) add_presets(rows, "*");
  if (!data.empty()) {
    if (std::none_of(rows.begin(), rows.end(), [](const Row& row) { return row.on_disk; }))
      fail_usage("--data needs model directories to evaluate; presets have no weights");
    const std::unique_ptr<Dataset> images = open_split(data);
    for (Row& row : rows)
      if (row.on_disk) measure(row, *images, common);
  }
  // Nothing is known of a preset's accuracy: it comes last.
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    const double x = std::isnan(a.accuracy) ? -1 : a.accuracy,
                 y = std::isnan(b.accuracy) ? -1 : b.accuracy;
    return x != y ? x > y : a.macs < b.macs;
  });
  std::string out;
  for (const Row& row : rows) out += common.json ? json_line(row) : "";
  common.json ? print_out(out) : print_text(table(rows, !data.empty()));
  return 0;
}

}  // namespace vitrum
