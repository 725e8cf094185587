#include "vitrum/runtime/summary.h"

#include <fmt/format.h>

#include <algorithm>

#include "vitrum/cli/layer_table.h"
#include "vitrum/cli/size_options.h"
#include "vitrum/core/error.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/nearest.h"
#include "vitrum/infer/model_memory.h"
#include "vitrum/train/param_rules.h"
#include "vitrum/weights/check_arch.h"

namespace vitrum {
namespace {

struct Options : SizeOptions {
  std::string model, arch, module, columns;
  std::vector<std::string> freeze;
  std::optional<int64_t> depth;
  int64_t batch = 1;
  bool all = false;
};

// The whole model at one batch size, in both precisions.
struct MemoryRow {
  int64_t batch;
  ModelMemory inference[2], training[2];  // f32, bf16
};

struct Report {
  std::string model;
  std::vector<LayerSummary> rows;
  std::vector<MemoryRow> memory;  // the batch that was asked for first
  DType compute;
  const MemoryRow& asked() const { return memory[0]; }
  size_t precision() const { return compute == DType::kBF16 ? 1 : 0; }
};

void freeze(Graph& g, const ModelSpec& spec, const Options& o) {
  Recipe recipe;
  recipe.freeze = o.freeze;
  freeze_params(g.params, spec.config, recipe);
}

std::vector<LayerSummary> layers_of(const ModelSpec& spec, const Options& o) {
  const ModelConfig& c = spec.config;
  Graph g;
  model(Scope(g), g.input("image", {o.batch, c.channels(), c.image_h(), c.image_w()}), c);
  freeze(g, spec, o);
  return summarize(g);
}

std::vector<MemoryRow> memory_of(const ModelSpec& spec, const Options& o) {
  std::vector<int64_t> batches = {o.batch};
  for (const int64_t usual : {1, 8, 32, 128})
    if (usual != o.batch) batches.push_back(usual);
  std::vector<MemoryRow> rows;
  for (const int64_t batch : batches) {
    MemoryRow& row = rows.emplace_back(MemoryRow{.batch = batch});
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      const MemoryOptions options{
          .batch = batch, .compute = compute, .freeze = [&](Graph& g) { freeze(g, spec, o); }};
      row.inference[compute == DType::kBF16] = inference_memory(spec, options);
      row.training[compute == DType::kBF16] = training_memory(spec, options);
    }
  }
  return rows;
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

std::string memory_table(const Report& r) {
  std::vector<MemoryRow> rows = r.memory;
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.batch < b.batch; });
  std::string out = fmt::format("\nmemory in total {:>16}{:>14}{:>18}{:>14}\n", "inference f32",
                                "bf16", "training f32", "bf16");
  for (const MemoryRow& row : rows)
    out += fmt::format("  batch {:<8}{:>16}{:>14}{:>18}{:>14}\n", row.batch,
                       human_bytes(row.inference[0].total()), human_bytes(row.inference[1].total()),
                       human_bytes(row.training[0].total()), human_bytes(row.training[1].total()));
  return out + "  weights and planned activations; training adds gradients and AdamW's moments\n";
}

std::string totals(const Report& r) {
  const LayerSummary& all = r.rows[0];
  const int64_t frozen = all.parameters - all.trainable;
  std::string out = fmt::format("\nparameters   {}, {} in f32; {} trainable, {} frozen\n",
                                with_commas(all.parameters), human_bytes(4 * all.parameters),
                                with_commas(all.trainable), with_commas(frozen));
  out += fmt::format("MACs         {} for a batch of {}\n",
                     human_count(static_cast<double>(all.macs)), r.asked().batch);
  if (!all.name.empty()) return out;
  const ModelMemory &inference = r.asked().inference[r.precision()],
                    &training = r.asked().training[r.precision()];
  out += fmt::format("activations  {} at inference, {} in training (planned, {})\n",
                     human_bytes(inference.arena), human_bytes(training.arena), name_of(r.compute));
  return out + memory_table(r);
}

void put_memory(JsonWriter& json, const Report& r) {
  json.key("memory").begin_array();
  for (const MemoryRow& row : r.memory) {
    json.begin_object().field("batch", row.batch);
    const auto put = [&](const char* key, const ModelMemory& m) {
      json.key(key).begin_object().field("weights", m.weights).field("arena", m.arena);
      json.field("inputs", m.inputs).field("total", m.total()).end_object();
    };
    put("inference_f32", row.inference[0]), put("inference_bf16", row.inference[1]);
    put("training_f32", row.training[0]), put("training_bf16", row.training[1]);
    json.end_object();
  }
  json.end_array();
}

std::string to_json(const Report& r) {
  const LayerSummary& all = r.rows[0];
  const auto shape = [](JsonWriter& json, const char* key, const Shape& s) {
    json.key(key).begin_array();
    for (int64_t n : s) json.value(n);
    json.end_array();
  };
  JsonWriter json;
  json.begin_object().field("model", r.model).field("module", all.name);
  json.field("batch", r.asked().batch)
      .field("parameters", all.parameters)
      .field("trainable", all.trainable)
      .field("macs", all.macs);
  json.field("parameter_bytes", 4 * all.parameters)
      .field("activation_bytes", r.asked().inference[r.precision()].arena);
  json.field("training_activation_bytes", r.asked().training[r.precision()].arena);
  put_memory(json, r);
  json.key("layers").begin_array();
  for (const LayerSummary& row : r.rows) {
    json.begin_object().field("name", row.name).field("type", row.type).field("depth", row.depth);
    json.field("leaf", row.leaf);
    shape(json, "input", row.input), shape(json, "output", row.output);
    shape(json, "weight", row.weight);
    json.field("parameters", row.parameters)
        .field("trainable", row.trainable)
        .field("macs", row.macs)
        .field("result_bytes", 4 * row.results)
        .end_object();
  }
  return json.end_array().end_object().str() + "\n";
}

int run(const Options& o, const CommonOptions& common) {
  if (common.precision == "int8" || common.precision == "fp8")
    fail_usage("summary counts in f32 and bf16; `vitrum quantize` says what {} takes",
               common.precision);
  if (!o.arch.empty()) check_arch(o.model, o.arch);
  const ModelSpec spec = resolve_sized(o.model, o, o.arch);
  Report report{o.model, subtree(layers_of(spec, o), o.module), memory_of(spec, o),
                compute_precision(common)};
  if (!common.json && !o.all) report.rows = fold_repeats(report.rows);
  const int64_t depth = o.depth.value_or(common.json || !o.module.empty() ? 100 : 3);
  std::erase_if(report.rows, [&](const LayerSummary& row) { return row.depth > depth; });
  common.json ? print_out(to_json(report))
              : print_text(layer_table(report.rows, o.columns) + totals(report));
  return 0;
}

}  // namespace

Verb summary_verb() {
  auto o = std::make_shared<Options>();
  std::vector<Option> options = {
      {.name = "MODEL",
       .target = &o->model,
       .help = "preset, model directory, or a weight file with --arch",
       .required = true},
      {"--arch", &o->arch, "preset that a weight file without a config is of", "PRESET"},
      {.name = "--batch", .target = &o->batch, .help = "images in a batch", .min = 1, .max = 65536},
      {.name = "--depth",
       .target = &o->depth,
       .help = "levels of the tree to show (default 3; all with --json and --module)",
       .max = 100},
      {.name = "--columns",
       .target = &o->columns,
       .help = "in this order, with commas: " + layer_columns() + " (default: what fits)",
       .value = "LIST"},
      {.name = "--module",
       .target = &o->module,
       .help = "only this part of the model, as blocks.0",
       .value = "NAME"},
      {.name = "--freeze",
       .target = &o->freeze,
       .help = "parameters that do not learn, as 'blocks.*'; may be given again and again",
       .value = "PATTERN"},
      {"--all", &o->all, "every block, also where many are alike"}};
  for (Option& option : size_options(*o)) options.push_back(std::move(option));
  return {.name = "summary",
          .summary = "show the layers of a model: shapes, parameters, MACs, memory",
          .examples = {"summary vit_base_patch16_224", "summary runs/1/best --batch 32 --depth 1",
                       "summary vit_base_patch16_224 --num-classes 3 --freeze 'blocks.*'"},
          .options = std::move(options),
          .run = [o](const CommonOptions& common) { return run(*o, common); }};
}

}  // namespace vitrum
