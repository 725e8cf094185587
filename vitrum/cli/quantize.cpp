#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "vitrum/cli/output_guard.h"
#include "vitrum/core/error.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/progress.h"
#include "vitrum/infer/agreement.h"
#include "vitrum/infer/match_labels.h"
#include "vitrum/infer/model_program.h"
#include "vitrum/weights/checkpoint.h"
#include "vitrum/weights/convert.h"

namespace vitrum {
namespace {

struct Options {
  std::string model, target, arch, format = "int8", dialect, data, split;
  std::vector<std::string> keep;
  double max_change = 2;
  bool force = false;
};

constexpr int64_t kCardBatch = 256;  // what keeps a card busy

struct Speed {
  int64_t batch = 1;
  double before = 0, after = 0;  // ms a batch
};

struct Report {
  std::vector<std::string> layers;  // that are rounded
  size_t linear = 0;                // layers in blocks, those that stay included
  Agreement agreement;
  std::vector<Speed> speeds;
  std::string compared = "f32";  // with what speed is
  Converted written;
  int64_t bytes_before = 0;
};

bool fits_any(const std::vector<std::string>& patterns, const std::string& layer) {
  return std::ranges::any_of(
      patterns, [&](const std::string& p) { return fnmatch(p.c_str(), layer.c_str(), 0) == 0; });
}

// The layers to round; a pattern that fits none is a mistake.
std::vector<std::string> chosen_layers(const Options& o, std::vector<std::string> layers) {
  for (const std::string& pattern : o.keep)
    if (std::ranges::none_of(layers, [&](const auto& l) { return fits_any({pattern}, l); }))
      fail_usage("--keep {}: no layer fits; they are called {} and so on", pattern, layers.front());
  std::erase_if(layers, [&](const std::string& layer) { return fits_any(o.keep, layer); });
  if (layers.empty()) fail_usage("--keep leaves no layer to round");
  return layers;
}

double milliseconds(Predictor& predictor, const std::vector<uint8_t>& pixels, int64_t batch) {
  std::vector<float> features(static_cast<size_t>(batch * predictor.dimension()));
  const auto start = std::chrono::steady_clock::now();
  predictor.run(pixels, {}, features);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  return took.count();
}

double median(std::vector<double> times) {
  std::ranges::nth_element(times, times.begin() + static_cast<long>(times.size() / 2));
  return times[times.size() / 2];
}

// In turns, so that both see the same disturbances.
Speed measure_speed(Predictor& before, Predictor& after, int64_t batch) {
  constexpr int kTurns = 7;
  const size_t image = Preprocessor(preprocess_of(before.model())).bytes();
  std::vector<uint8_t> pixels(image * static_cast<size_t>(batch));
  for (size_t i = 0; i < pixels.size(); ++i)
    pixels[i] = static_cast<uint8_t>(i * 2654435761u >> 24);
  std::vector<double> times[2];
  for (int i = -1; i < kTurns; ++i)
    for (Predictor* predictor : {&before, &after})
      if (const double ms = milliseconds(*predictor, pixels, batch); i >= 0)
        times[predictor == &after].push_back(ms);
  return {batch, median(times[0]), median(times[1])};
}

// Whose names: the model's own, so that nothing but its weights changes.
std::string dialect_of(const Options& o) {
  if (!o.dialect.empty()) return o.dialect;
  return Checkpoint(weights_path(o.model)).dialect().name == "hf" ? "hf" : "timm";
}

void guard_target(const Options& o) {
  OutputGuard guard(o.force);
  guard.reads(o.model);
  if (!o.data.empty()) guard.reads_data(o.data);
  guard.model_directory(o.target);
}

Agreement compare(const Options& o, Predictor& before, Predictor& after,
                  const CommonOptions& common) {
  const std::unique_ptr<Dataset> data = open_split(o.data, o.split);
  std::vector<int> outputs;
  try {
    if (before.classes() > 0) outputs = match_labels(*data, before.model()).outputs;
  } catch (const Error&) {
    info(common,
         "the classes of the data are not those of the model: labels are compared, and "
         "accuracy is not measured");
  }
  Progress progress("compare", data->size(), common.quiet);
  return compare_answers(before, after, *data, outputs,
                         [&](int64_t done) { progress.update(done); });
}

bool is_fp8(const Options& o) { return o.format == "fp8"; }

void require_agreement(const Options& o, const Agreement& a) {
  if (!a.has_head || o.force) return;
  const double changed =
      100 * static_cast<double>(a.images - a.same) / static_cast<double>(a.images);
  if (changed <= o.max_change) return;
  fail(
      "{} changes the label of {} of {} images, more than --max-change {} allows: nothing was "
      "written; keep layers as they are (--keep PATTERN), or write it all the same with --force",
      o.format, a.images - a.same, a.images, o.max_change);
}

std::string worst_layers(const std::vector<QuantizedLayer>& layers) {
  std::vector<QuantizedLayer> worst = layers;
  std::ranges::sort(worst, std::ranges::greater(), &QuantizedLayer::error);
  worst.resize(std::min<size_t>(worst.size(), 3));
  std::string out;
  for (const QuantizedLayer& layer : worst)
    out += fmt::format("{}{} {:.2f} %", out.empty() ? "" : ", ", layer.name, 100 * layer.error);
  return out;
}

std::string to_text(const Options& o, const Report& r, const CommonOptions& common) {
  double error = 0;
  for (const QuantizedLayer& layer : r.written.layers)
    error += layer.error / static_cast<double>(r.written.layers.size());
  std::string out = fmt::format("layers     {} of {} in {}; the rest stays as it is\n",
                                r.layers.size(), r.linear, o.format);
  out += fmt::format("weights    {} -> {}\n", human_bytes(r.bytes_before),
                     human_bytes(r.written.bytes));
  out += fmt::format("rounding   {:.2f} % of a layer's weights on average\n           worst: {}\n",
                     100 * error, worst_layers(r.written.layers));
  const Agreement& a = r.agreement;
  if (a.has_head) {
    out +=
        fmt::format("agreement  {} of {} images have the same label; logits differ by {:.2f} %\n",
                    a.same, a.images, 100 * a.error);
    if (std::isfinite(a.top1_before))
      out +=
          fmt::format("accuracy   {:.2f} % -> {:.2f} %\n", 100 * a.top1_before, 100 * a.top1_after);
  } else if (a.images > 0) {
    out += fmt::format("agreement  features of {} images differ by {:.2f} %\n", a.images,
                       100 * a.error);
  } else {
    out += "agreement  not measured: give images with --data\n";
  }
  for (const Speed& s : r.speeds)
    out += fmt::format("{}  batch {}: {:.1f} -> {:.1f} ms, {:.2f} times as fast{}\n",
                       s.batch == 1 ? "speed    " : "         ", s.batch, s.before, s.after,
                       s.before / s.after, r.compared == "f32" ? "" : " as " + r.compared);
  if (r.speeds.empty())
    out += "speed      not measured: fp8 is fast on cards of compute capability 9.0 (H100, H200)\n";
  if (common.verbose)
    for (const QuantizedLayer& layer : r.written.layers)
      out += fmt::format("  {:<40} {:.2f} %\n", layer.name, 100 * layer.error);
  return out + fmt::format("\nnext: vitrum classify PHOTO --model {}\n", o.target);
}

std::string to_json(const Options& o, const Report& r) {
  JsonWriter json;
  json.begin_object().field("output", o.target).field("format", o.format);
  json.key("layers").begin_array();
  for (const QuantizedLayer& layer : r.written.layers)
    json.begin_object().field("name", layer.name).field("error", layer.error).end_object();
  json.end_array().field("bytes", r.written.bytes).field("bytes_before", r.bytes_before);
  const Agreement& a = r.agreement;
  const double nan = Agreement::kUnknown;
  json.field("images", a.images)
      .field("agreement",
             a.has_head ? static_cast<double>(a.same) / static_cast<double>(a.images) : nan)
      .field("logits_error", a.images > 0 ? a.error : nan)
      .field("largest_change", a.images > 0 ? a.largest_change : nan)
      .field("top1", a.top1_after)
      .field("top1_before", a.top1_before);
  json.field("speedup", r.speeds.empty() ? nan : r.speeds.front().before / r.speeds.front().after);
  json.key("speeds").begin_array();
  for (const Speed& s : r.speeds)
    json.begin_object()
        .field("batch", s.batch)
        .field("milliseconds_before", s.before)
        .field("milliseconds", s.after)
        .end_object();
  return json.end_array().end_object().str() + "\n";
}

void check_options(const Options& o, const CommonOptions& common) {
  if (!is_fp8(o) && common.device.starts_with("cuda"))
    fail_usage("int8 computes on CPUs: quantize compares there; leave --device out");
  if (common.precision != "auto" && common.precision != o.format)
    fail_usage("quantize compares {} with f32; leave --precision {} out", o.format,
               common.precision);
}

// What rounds the layers is compared with f32, and in speed with what else one would take.
void measure_speeds(const Options& o, const PredictorOptions& options, Predictor& before,
                    Predictor& after, Report& r) {
  const bool on_card = !before.backend().host_visible();
  if (is_fp8(o) && !before.backend().multiplies_e4m3()) return;
  std::unique_ptr<Predictor> usual, chosen;
  if (on_card) {
    PredictorOptions other = options;
    other.e4m3_everywhere = false;
    chosen = std::make_unique<Predictor>(o.model, other);
    other.precision = DType::kBF16, other.keeps_float = {};
    usual = std::make_unique<Predictor>(o.model, other);
    r.compared = "bf16";
  }
  for (const int64_t batch : {int64_t{1}, on_card ? kCardBatch : int64_t{16}})
    r.speeds.push_back(measure_speed(usual ? *usual : before, chosen ? *chosen : after, batch));
}

int run(const Options& o, const CommonOptions& common) {
  check_options(o, common);
  guard_target(o);
  const ModelSpec spec = resolve_model(o.model, o.arch);
  if (!has_weights(o.model)) fail_without_weights(o.model);
  const std::vector<std::string> all = block_layers(spec, o.model);
  Report r{.layers = chosen_layers(o, is_fp8(o) ? e4m3_layers(spec, o.model) : all),
           .linear = all.size()};
  r.bytes_before = static_cast<int64_t>(std::filesystem::file_size(weights_path(o.model)));
  PredictorOptions options{
      .arch = o.arch, .device = is_fp8(o) ? common.device : "cpu", .precision = DType::kF32};
  options.threads = static_cast<int>(common.threads);
  if (is_fp8(o)) options.max_batch = kCardBatch;
  Predictor before(o.model, options);
  if (const std::string name = before.weights().not_finite(); !name.empty())
    fail_input("weights '{}': {} holds NaN or infinite numbers", o.model, name);
  options.precision = is_fp8(o) ? DType::kE4M3 : DType::kI8;
  options.e4m3_everywhere = true;  // what is written is rounded everywhere
  const auto chosen = [&](const std::string& layer) {
    return std::ranges::find(r.layers, layer) != r.layers.end();
  };
  options.keeps_float = [&](const std::string& layer) { return !chosen(layer); };
  Predictor after(o.model, options);
  if (!o.data.empty()) r.agreement = compare(o, before, after, common);
  require_agreement(o, r.agreement);
  measure_speeds(o, options, before, after, r);
  r.written = convert_model(o.model, o.arch, o.target, dialect_of(o), chosen,
                            {.eight_bits = *options.precision});
  for (const std::string& note : r.written.notes) info(common, "note: " + note);
  common.json ? print_out(to_json(o, r)) : print_text(to_text(o, r, common));
  return 0;
}

}  // namespace

Verb quantize_verb() {
  auto o = std::make_shared<Options>();
  return {
      .name = "quantize",
      .summary = "write a model in eight bits, and say what that costs",
      .examples = {"quantize vit_tiny_patch16_224.augreg_in21k_ft_in1k small --data folder:photos",
                   "quantize runs/1/best small --keep 'blocks.11.*'",
                   "classify photos/ --model small"},
      .options =
          {{.name = "MODEL",
            .target = &o->model,
            .help = "model directory, or a weight file with --arch",
            .required = true},
           {.name = "DIR",
            .target = &o->target,
            .help = "directory to write",
            .required = true,
            .also = {"--output", "--out"}},
           {.name = "--format",
            .target = &o->format,
            .help = "int8: weights a row each, activations a token each, on CPUs; fp8 (e4m3): "
                    "activations a tensor, on cards of compute capability 9.0",
            .value = "NAME",
            .choices = {"int8", "fp8"}},
           {.name = "--to",
            .target = &o->dialect,
            .help = "whose names and layout, hf for transformers; by default the model's own",
            .value = "NAME",
            .choices = {"timm", "hf"}},
           {"--keep", &o->keep, "layers that stay as they are: a name, or a pattern with * and ?",
            "PATTERN"},
           {"--data", &o->data, "images to compare on: agreement and accuracy", "DATA"},
           {"--split", &o->split, "of the data: train, test or val", "NAME"},
           {.name = "--max-change",
            .target = &o->max_change,
            .help = "percent of the images whose label may change before nothing is written"},
           {"--arch", &o->arch, "preset that a weight file without a config is of", "PRESET"},
           force_option(o->force)},
      .run = [o](const CommonOptions& common) { return run(*o, common); }};
}

}  // namespace vitrum
