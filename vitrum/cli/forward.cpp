#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "vitrum/cli/output_guard.h"
#include "vitrum/cli/size_options.h"
#include "vitrum/cli/trace_table.h"
#include "vitrum/core/all_finite.h"
#include "vitrum/core/error.h"
#include "vitrum/core/join.h"
#include "vitrum/graph/passes.h"
#include "vitrum/models/vit.h"
#include "vitrum/runtime/finite.h"
#include "vitrum/weights/model_dir.h"
#include "vitrum/weights/npy.h"

namespace vitrum {
namespace {

struct Options : SizeOptions {
  std::string model, arch, input, output, pos_resample = "auto";
  bool trace = false, force = false;
};

ModelSpec model_of(const Options& o) {
  ModelSpec spec = resolve_sized(o.model, o, o.arch);
  if (!has_weights(o.model)) fail_without_weights(o.model);
  return spec;
}

void say(const CommonOptions& common, const std::string& model, const LoadReport& loaded) {
  if (!common.verbose) return;
  info(common, fmt::format("{}: {} names{}{}", model, loaded.dialect,
                           loaded.adapted.empty() ? "" : "; ", join(loaded.adapted, "; ")));
}

void require_finite(const NpyArray& input, const std::string& path) {
  if (all_finite(input.values)) return;
  const auto bad = std::ranges::find_if(input.values, [](float x) { return !std::isfinite(x); });
  std::vector<int64_t> place;
  int64_t index = bad - input.values.begin();
  for (int i = input.shape.rank(); i-- > 0; index /= input.shape[i])
    place.insert(place.begin(), index % input.shape[i]);
  fail_input("{}: the value at [{}] is {}; expected finite numbers", path, join(place, ", "), *bad);
}

int run(const Options& o, const CommonOptions& common) {
  const ModelSpec spec = model_of(o);
  OutputGuard guard(o.force);
  guard.reads(o.model), guard.reads(o.input);
  guard.file(o.output, Content::kNpy);
  const NpyArray input = read_npy(o.input);
  const ModelConfig& c = spec.config;
  const Shape& shape = input.shape;
  if (shape.rank() != 4 || shape != Shape{shape[0], c.channels(), c.image_h(), c.image_w()})
    fail_input("{}: shape {}, {} needs (N, {}, {}, {})", o.input, shape.str(), o.model,
               c.channels(), c.image_h(), c.image_w());
  require_finite(input, o.input);

  const std::unique_ptr<Backend> backend = open_backend(common);
  Graph g;
  const Value image = g.input("image", shape);
  const Value logits = model(Scope(g), image, c);
  fuse(g);
  ParamStore store(g, *backend);
  say(common, o.model,
      load_weights(o.model, spec, store,
                   {.pos_resample = parse_pos_resample(o.pos_resample), .finite = !o.trace}));
  Program program(g, std::span(&logits, 1), store,
                  {.compute = compute_precision(common, *backend)});
  program.upload(image, input.values.data());
  const auto start = std::chrono::steady_clock::now();
  TraceTable trace;
  if (o.trace)
    program.run_traced([&](const Program::Step& step, double seconds) {
      require_finite(*backend, step);
      trace.add(step, seconds);
    });
  else
    program.run();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  std::vector<float> out(static_cast<size_t>(logits.shape().numel()));
  program.download(out.data(), logits);
  write_npy(o.output, logits.shape(), out);
  if (o.trace) info(common, trace.text());
  if (common.json)
    print_out(fmt::format("{{\"shape\":[{},{}],\"milliseconds\":{}}}\n", logits.dim(0),
                          logits.dim(1), took.count()));
  else
    info(common,
         fmt::format("{}: logits {} in {:.1f} ms", o.output, logits.shape().str(), took.count()));
  return 0;
}

}  // namespace

Verb forward_verb() {
  auto o = std::make_shared<Options>();
  std::vector<Option> options = {
      {.name = "--model",
       .target = &o->model,
       .help = "model directory, or a weight file with --arch",
       .value = "DIR",
       .required = true},
      {"--arch", &o->arch, "preset that a weight file without a config is of", "PRESET"},
      {.name = "--pos-resample",
       .target = &o->pos_resample,
       .help = "how positions are resampled; auto: as the model's framework does",
       .choices = {"auto", "bilinear", "bicubic"}},
      {.name = "--input",
       .target = &o->input,
       .help = "float32 .npy of shape (N, C, H, W), as the model sees it",
       .value = "FILE",
       .required = true},
      {.name = "--output",
       .target = &o->output,
       .help = "where the logits (N, classes) go, as .npy",
       .value = "FILE",
       .required = true},
      {"--trace", &o->trace,
       "kernel by kernel: fail at the first that gives NaN or infinity, and say where time goes"}};
  for (Option& option : size_options(*o)) options.push_back(std::move(option));
  options.push_back(force_option(o->force));
  return {.name = "forward",
          .summary = "run a model on a raw tensor, without preprocessing",
          .examples = {"forward --model DIR --input x.npy --output logits.npy",
                       "forward --model vit_b_16.pth --arch vit_b_16 --input x.npy --output y.npy",
                       "forward --model DIR --image-size 384 --input x.npy --output y.npy --json"},
          .options = std::move(options),
          .run = [o](const CommonOptions& common) { return run(*o, common); }};
}

}  // namespace vitrum
