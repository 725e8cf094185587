#include "vitrum/runtime/summary.h"

#include <fmt/format.h>

#include <algorithm>

#include "vitrum/cli/verbs.h"
#include "vitrum/core/error.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/nearest.h"
#include "vitrum/core/progress.h"
#include "vitrum/graph/functional.h"
#include "vitrum/graph/passes.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {
namespace {

struct Options {
  std::string model, module, columns;
  std::optional<int64_t> image_size, num_classes;
  std::optional<int64_t> depth;
  int64_t batch = 1;
};

Value record(Graph& g, const ModelConfig& c, int64_t batch) {
  return model(Scope(g), g.input("image", {batch, c.channels(), c.image_h(), c.image_w()}), c);
}

// Bytes of the planned arena, for inference and for training.
struct ActivationBytes {
  int64_t inference, training;
};

ActivationBytes plan_activations(const ModelConfig& c, int64_t batch, DType compute) {
  const auto plan = [&](Graph& g, Value output) {
    assign_dtypes(g, compute, std::span(&output, 1));
    drop_dead(g, std::span(&output, 1));
    return plan_memory(g, std::span(&output, 1)).bytes;
  };
  Graph inference, training(Mode::kTraining);
  const Value y = record(inference, c, batch);
  fuse(inference);
  const Value logits = record(training, c, batch);
  Value loss = cross_entropy(logits, training.input("target", {batch}, DType::kI32),
                             training.input("weight", {batch}, DType::kF32, /*exact=*/true));
  fuse(training);
  differentiate(training, loss, Recompute::kNone);
  return {plan(inference, y), plan(training, loss)};
}

// The rows of `module` and below, its depth becoming 0.
std::vector<LayerSummary> subtree(std::vector<LayerSummary> rows, const std::string& module) {
  if (module.empty()) return rows;
  std::vector<std::string> names;
  for (const LayerSummary& row : rows) names.push_back(row.name);
  const auto root = std::find(names.begin(), names.end(), module);
  if (root == names.end())
    fail_usage("--module: there is no '{}'{}", module, did_you_mean(module, names));
  const int depth = rows[static_cast<size_t>(root - names.begin())].depth;
  std::erase_if(rows, [&](const auto& row) {
    return row.name != module && !row.name.starts_with(module + ".");
  });
  for (LayerSummary& row : rows) row.depth -= depth;
  return rows;
}

// ---- the table ----

std::string dims(const Shape& shape) {
  return fmt::format("{}", fmt::join(shape.begin(), shape.end(), "x"));
}

struct Column {
  const char* name;
  const char* title;
  bool right;
  std::string (*cell)(const LayerSummary&);
};

std::string tree_name(const LayerSummary& row) {
  const std::string leaf = row.name.empty() ? "(model)"
                           : row.depth == 0 ? row.name
                                            : row.name.substr(row.name.rfind('.') + 1);
  return std::string(static_cast<size_t>(2 * row.depth), ' ') + leaf;
}

std::string trains(const LayerSummary& row) {
  if (row.parameters == 0) return "-";
  return row.trainable == row.parameters ? "yes" : row.trainable == 0 ? "no" : "partly";
}

const std::vector<Column> kColumns = {
    {"name", "layer", false, tree_name},
    {"type", "type", false, [](const LayerSummary& r) { return r.type; }},
    {"input", "input", false, [](const LayerSummary& r) { return dims(r.input); }},
    {"output", "output", false, [](const LayerSummary& r) { return dims(r.output); }},
    {"parameters", "parameters", true,
     [](const LayerSummary& r) { return r.parameters ? with_commas(r.parameters) : "-"; }},
    {"trainable", "train", false, trains},
    {"macs", "MACs", true,
     [](const LayerSummary& r) { return r.macs ? human_count(static_cast<double>(r.macs)) : "-"; }},
};

std::vector<Column> chosen_columns(const std::string& list) {
  std::vector<Column> chosen;
  std::vector<std::string> names;
  for (const Column& column : kColumns) names.emplace_back(column.name);
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    const std::string name = list.substr(at, comma - at);
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end())
      fail_usage("--columns: unknown column '{}'{}", name, did_you_mean(name, names));
    chosen.push_back(kColumns[static_cast<size_t>(found - names.begin())]);
    at = comma + 1;
  }
  return chosen;
}

std::vector<size_t> widths(const std::vector<Column>& columns,
                           const std::vector<LayerSummary>& rows) {
  std::vector<size_t> all;
  for (const Column& column : columns) {
    size_t width = std::string_view(column.title).size();
    for (const LayerSummary& row : rows) width = std::max(width, column.cell(row).size());
    all.push_back(width);
  }
  return all;
}

// All columns, less the inputs and what is trained where the terminal is too narrow for them.
std::vector<Column> fitting_columns(const std::vector<LayerSummary>& rows) {
  std::vector<Column> columns = kColumns;
  for (const char* dispensable : {"input", "trainable", "type"}) {
    size_t total = 2 * (columns.size() - 1);
    for (size_t width : widths(columns, rows)) total += width;
    if (total <= static_cast<size_t>(terminal_width(stdout))) break;
    std::erase_if(columns,
                  [&](const Column& c) { return std::string_view(c.name) == dispensable; });
  }
  return columns;
}

std::string table(const std::vector<LayerSummary>& rows, const std::vector<Column>& columns) {
  const std::vector<size_t> width = widths(columns, rows);
  const auto line = [&](const auto& cell) {
    std::string text;
    for (size_t i = 0; i < columns.size(); ++i) {
      const std::string word = cell(i), space(width[i] - word.size(), ' ');
      text += columns[i].right ? space + word : word + space;
      text += "  ";
    }
    return text.erase(text.find_last_not_of(' ') + 1) + "\n";
  };
  std::string out = line([&](size_t i) { return std::string(columns[i].title); });
  out += line([&](size_t i) { return std::string(width[i], '-'); });
  for (const LayerSummary& row : rows) out += line([&](size_t i) { return columns[i].cell(row); });
  return out;
}

struct Report {
  std::string model;
  std::vector<LayerSummary> rows;
  ActivationBytes activations;
  int64_t batch;
};

std::string totals(const Report& r) {
  const LayerSummary& all = r.rows[0];
  std::string out =
      fmt::format("\nparameters   {} ({} trainable), {} in f32\n", with_commas(all.parameters),
                  with_commas(all.trainable), human_bytes(4 * all.parameters));
  out += fmt::format("MACs         {} for a batch of {}\n",
                     human_count(static_cast<double>(all.macs)), r.batch);
  if (all.name.empty())
    out += fmt::format("activations  {} at inference, {} in training\n",
                       human_bytes(r.activations.inference), human_bytes(r.activations.training));
  return out;
}

std::string to_json(const Report& r) {
  const LayerSummary& all = r.rows[0];
  const auto shape = [](JsonWriter& json, const char* key, const Shape& s) {
    json.key(key).begin_array();
    for (int64_t n : s) json.value(n);
    json.end_array();
  };
  JsonWriter json;
  json.begin_object().field("model", r.model).field("module", all.name).field("batch", r.batch);
  json.field("parameters", all.parameters)
      .field("trainable", all.trainable)
      .field("macs", all.macs);
  json.field("parameter_bytes", 4 * all.parameters)
      .field("activation_bytes", r.activations.inference);
  json.field("training_activation_bytes", r.activations.training).key("layers").begin_array();
  for (const LayerSummary& row : r.rows) {
    json.begin_object().field("name", row.name).field("type", row.type).field("depth", row.depth);
    json.field("leaf", row.leaf);
    shape(json, "input", row.input), shape(json, "output", row.output);
    json.field("parameters", row.parameters)
        .field("trainable", row.trainable)
        .field("macs", row.macs)
        .end_object();
  }
  return json.end_array().end_object().str() + "\n";
}

int run(const Options& o, const CommonOptions& common) {
  ModelSpec spec = resolve_model(o.model);
  if (o.image_size) set_image_size(spec, *o.image_size, *o.image_size);
  if (o.num_classes) set_classes(spec, *o.num_classes);
  const std::vector<Column> wanted =
      o.columns.empty() ? std::vector<Column>{} : chosen_columns(o.columns);
  Graph g;
  record(g, spec.config, o.batch);
  Report report{o.model, subtree(summarize(g), o.module),
                plan_activations(spec.config, o.batch, compute_precision(common)), o.batch};
  const int64_t depth = o.depth.value_or(common.json ? 100 : o.module.empty() ? 3 : 100);
  std::erase_if(report.rows, [&](const LayerSummary& row) { return row.depth > depth; });
  if (common.json) return print_out(to_json(report)), 0;
  print_out(table(report.rows, wanted.empty() ? fitting_columns(report.rows) : wanted) +
            totals(report));
  return 0;
}

}  // namespace

Verb summary_verb() {
  auto o = std::make_shared<Options>();
  return {.name = "summary",
          .summary = "show the layers of a model: shapes, parameters, MACs, memory",
          .examples = {"summary vit_base_patch16_224", "summary runs/1/best --batch 32 --depth 1",
                       "summary vit_base_patch16_224 --num-classes 3 --module blocks.0"},
          .options = {{.name = "MODEL",
                       .target = &o->model,
                       .help = "preset or model directory",
                       .required = true},
                      {.name = "--image-size",
                       .target = &o->image_size,
                       .help = "another input size, in pixels",
                       .min = 1,
                       .max = 16384},
                      {.name = "--num-classes",
                       .target = &o->num_classes,
                       .help = "another number of classes",
                       .max = 10'000'000},
                      {.name = "--batch",
                       .target = &o->batch,
                       .help = "images in a batch",
                       .min = 1,
                       .max = 65536},
                      {.name = "--depth",
                       .target = &o->depth,
                       .help = "levels of the tree to show (default 3; all with --json)",
                       .max = 100},
                      {.name = "--columns",
                       .target = &o->columns,
                       .help = "which of name,type,input,output,parameters,trainable,macs",
                       .value = "LIST"},
                      {.name = "--module",
                       .target = &o->module,
                       .help = "only this part of the model, as blocks.0",
                       .value = "NAME"}},
          .run = [o](const CommonOptions& common) { return run(*o, common); }};
}

}  // namespace vitrum
