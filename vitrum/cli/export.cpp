#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "vitrum/cli/output_guard.h"
#include "vitrum/cli/size_options.h"
#include "vitrum/core/error.h"
#include "vitrum/core/json_text.h"
#include "vitrum/export/onnx.h"
#include "vitrum/graph/functional.h"
#include "vitrum/graph/passes.h"
#include "vitrum/infer/model_program.h"
#include "vitrum/models/vit.h"
#include "vitrum/runtime/backends.h"

namespace vitrum {
namespace {

struct Options {
  std::string model, arch, output, pos_resample = "auto";
  std::optional<InputSize> image_size;
  std::optional<int64_t> patch_size;
  bool normalize = false, external = false, force = false;
};

// Layers of eight bits where they are asked for, or where the model is stored so.
void round_layers(Graph& g, const Options& o, const ModelSpec& spec, const std::string& precision) {
  if (precision == "fp8")
    fail_usage(
        "ONNX models are of f32 or int8; a model of fp8 is exported as the numbers it stands "
        "for (leave --precision out)");
  const std::vector<std::string> stored = quantized_layers(o.model, spec);
  if (precision != "int8" && (precision != "auto" || stored.empty())) return;
  const auto keeps = [&](const std::string& layer) {
    return !stored.empty() && std::ranges::find(stored, layer) == stored.end();
  };
  block_layers(spec, o.model);
  quantize(g, keeps);
}

OnnxSummary export_model(const Options& o, const std::string& precision) {
  const ModelSpec spec = resolve_sized(o.model, {o.image_size, {}, o.patch_size}, o.arch);
  if (!has_weights(o.model)) fail_without_weights(o.model);
  const ModelConfig& c = spec.config;
  Graph g;
  Value image = g.input("pixel_values", {1, c.channels(), c.image_h(), c.image_w()},
                        o.normalize ? DType::kU8 : DType::kF32);
  if (o.normalize) image = normalize(image, spec.preprocess.mean, spec.preprocess.std);
  const Value result = model(Scope(g), image, c);
  const auto backend = make_backend({.device = "reference"});  // nothing is computed
  ParamStore store(g, *backend);
  load_weights(o.model, spec, store, {.pos_resample = parse_pos_resample(o.pos_resample)});
  round_layers(g, o, spec, precision);
  return write_onnx(o.output, g, result, store, spec, {.external_data = o.external});
}

void guard_output(const Options& o) {
  OutputGuard guard(o.force);
  guard.reads(o.model);
  guard.file(o.output, Content::kOnnx);
  // Bytes of weights look like anything; those of an earlier export have their model beside them.
  const std::string data = o.output + ".data";
  guard.refuse_read(data);
  std::error_code ignored;
  if (o.external && std::filesystem::exists(data, ignored) &&
      !std::filesystem::exists(o.output, ignored))
    guard.require_force(data, "exists, and no ONNX model that it belongs to");
}

int run(const Options& o, const CommonOptions& common) {
  guard_output(o);
  const OnnxSummary s = export_model(o, common.precision);
  if (common.json) {
    JsonWriter json;
    json.begin_object().field("opset", s.opset).field("nodes", s.nodes).field("bytes", s.bytes);
    print_out(json.field("output", o.output).end_object().str() + "\n");
  } else {
    info(common, fmt::format("{}: opset {}, {} nodes, {}", o.output, s.opset, s.nodes,
                             human_bytes(s.bytes)));
  }
  return 0;
}

}  // namespace

Verb export_verb() {
  auto o = std::make_shared<Options>();
  return {
      .name = "export",
      .summary = "write a model as ONNX for other runtimes",
      .examples = {"export --model runs/1/best --output model.onnx",
                   "export --model DIR --output model.onnx --normalize",
                   "export --model DIR --output model.onnx --external --json"},
      .options = {{.name = "--model",
                   .target = &o->model,
                   .help = "model directory or weight file",
                   .value = "MODEL",
                   .required = true},
                  {.name = "--output",
                   .target = &o->output,
                   .help = "the ONNX file to write",
                   .value = "FILE",
                   .required = true},
                  {"--arch", &o->arch, "the preset that a single weight file belongs to", "PRESET"},
                  image_size_option(o->image_size),
                  patch_size_option(o->patch_size),
                  {.name = "--pos-resample",
                   .target = &o->pos_resample,
                   .help = "how positions are resampled; auto: as the model's framework does",
                   .choices = {"auto", "bilinear", "bicubic"}},
                  {"--normalize", &o->normalize,
                   "take uint8 pixels and subtract the mean and divide by the deviation inside"},
                  {"--external", &o->external,
                   "weights in FILE.data beside the model, as above 2 GB in any case"},
                  force_option(o->force)},
      .run = [o](const CommonOptions& common) { return run(*o, common); }};
}

}  // namespace vitrum
